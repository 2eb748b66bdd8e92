#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/frame.h"
#include "runtime/engine/engine_options.h"
#include "runtime/engine/engine_stats.h"
#include "runtime/engine/sampling/sampler.h"
#include "runtime/engine/scheduler.h"
#include "runtime/model/transformer.h"
#include "runtime/text/constrain/token_automaton.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace aludel {

using SequenceId = uint64_t;
using SteadyClock = std::chrono::steady_clock;  // setting the wall clock moves no deadline

enum class FinishReason : uint8_t { kStop, kLength };

// Exclusive seconds on one sequence's critical path, from admission to the first token.
struct SequenceTimes {
  double queue = 0;        // admitted, not yet computing; of shared steps the others' tokens' share
  double prefill = 0;      // local prefill steps (local plan or fallback)
  double await = 0;        // waiting for frames with nothing to do, or for room for them (prefill server)
  double reconstruct = 0;  // applying frames
  double recompute = 0;    // tokens the consumer computes itself over a handed-over cache
  double encode = 0;       // inside the encoder (prefill server)
  double sample = 0;       // choosing the first token and making its text
  double ttft = 0;         // admission to first token
};

struct TokenEvent {
  int choice = 0;
  int32_t id = 0;
  std::string text;  // what this token completed; held back while it may begin a stop string
  // Where sampling.top_logprobs is set: this token's, then the likeliest ones'.
  std::vector<TokenLogprob> logprobs;
  bool first = false;  // of its choice: `times` and `cached_tokens` are final now
  uint64_t step = 0;   // of the engine, that computed it
  SequenceTimes times;
  int64_t cached_tokens = 0;  // of the prompt, neither computed nor handed over for this request
  bool fell_back = false;
  absl::Status fallback_reason;
};

// Of consecutive tokens of a prompt, what the model gave them before it saw them.
struct PromptScores {
  struct Token {
    std::vector<TokenLogprob> logprobs;  // this token's, then the likeliest ones'
    int32_t rank = 1;                    // among the whole vocabulary; 1: the likeliest
  };
  int64_t begin = 1;  // position of the first; nothing stands before token 0
  std::vector<Token> tokens;
};

struct SequenceResult {
  int choice = 0;
  FinishReason reason = FinishReason::kStop;
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  std::string tail_text;  // released at the end
  // What of the request's own stops ended it, if one did.
  std::string stop;
  std::optional<int32_t> stop_id;
  SequenceTimes times;
  int64_t cached_tokens = 0;  // of the prompt, neither computed nor handed over for this request
  bool fell_back = false;
  absl::Status fallback_reason;
};

// The calls come from the engine thread and must not block. OnDone comes exactly once for every choice of a
// request that was admitted (sampling.choices, usually one); nothing follows it for that choice.
class SequenceListener {
 public:
  virtual ~SequenceListener() = default;
  virtual void OnToken(const TokenEvent& event) = 0;
  // Where sampling.prompt_logprobs is set: every token of the prompt but the first, in order, before the first OnToken.
  virtual void OnPromptScores(const PromptScores& /*scores*/) {}
  // Where the codec's frames come in two parts: the second ones are all in the cache, after so many tokens of the answer; or
  // one of them failed a check, and the cache stays as it is. At most once, perhaps before the first OnToken, and never
  // after EndUpgrade.
  virtual void OnUpgraded(const absl::Status& /*status*/, int64_t /*completion_tokens*/) {}
  virtual void OnDone(const absl::Status& status, const SequenceResult& result) = 0;
};

struct GenerateSpec {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  SteadyClock::time_point deadline = SteadyClock::time_point::max();
  // Set: tokens [the codec's recomputed head, handed_over_tokens) arrive as frames of this codec (ApplyFrame);
  // the rest is computed here. The last prompt token always is, so handed_over_tokens < prompt.size(). Where frames come in
  // two parts, the answer begins with the first ones, of one choice alone, and the second ones are written to its blocks
  // between steps; only then do other sequences share those blocks, and none behind them. With 0
  // nothing arrives: the prompt's prefix is taken from the prefix cache in this format and the rest is
  // computed over it. If the cache holds less than `cached_tokens` by then, everything is computed, as if no
  // codec were set.
  const DecoderFactory* codec = nullptr;
  int64_t handed_over_tokens = 0;
  int64_t cached_tokens = 0;
  int priority = 0;  // -kMaxPriority to kMaxPriority, lower goes first (scheduler.h says by how much)
  // Set: only texts of its grammar are generated, and the answer ends where the grammar does. After
  // submission only the engine's thread uses it.
  std::shared_ptr<TokenAutomaton> constraint = nullptr;
  // Prefixes are shared with requests of the same salt only.
  std::string cache_salt = {};
  bool keep_prefix = true;  // false: cached prefixes are used, and none is left
  // Over the engine's model, for this request; null: none. Held until the request ends, and released on the engine's
  // thread. Acts from the token `adapter_begin` on: the cache of those before is the model's own, and shared as such.
  // From there on prefixes are shared under the same adapter only. With 0 a codec is one for the model with this
  // adapter; else for the model alone, and handed_over_tokens is at most adapter_begin.
  std::shared_ptr<const LoraWeights> adapter = nullptr;
  int64_t adapter_begin = 0;
  // The adapter makes no cache: that of the whole sequence, the answer included, is the model's own and shared as such, and
  // the adapter chooses each token over it (ICaRus, 2026). It has no updates of keys and values, and adapter_begin is not
  // looked at; a codec is one for the model alone.
  bool adapter_reads_only = false;
  // What `codec` lives in: held until the request ends, and released on the engine's thread. Null: it outlives the engine.
  std::shared_ptr<const void> codec_owner = nullptr;
};

struct PrefillSpec {
  std::vector<int32_t> prompt;  // tokens [0, token_end) are computed, and encoded from the recomputed head on
  int64_t token_end = 0;
  SteadyClock::time_point deadline = SteadyClock::time_point::max();
  const EncoderFactory* codec = nullptr;
  // Owned by the caller; used from the engine thread until OnDone.
  FrameSink* sink = nullptr;
  int64_t encode_begin = 0;  // tokens before it are computed but not encoded: their frames exist already
  // Set: called on the engine thread before each step. While it returns false, this sequence is left out of
  // steps and no other is. Call Nudge when that changes.
  std::function<bool()> has_room;
  // At most so many of its tokens are computed in one step, positive: what has_room asks room for.
  int64_t step_tokens = std::numeric_limits<int64_t>::max();
  std::string cache_salt = {};  // as in GenerateSpec, and so are the next
  bool keep_prefix = true;
  std::shared_ptr<const void> codec_owner = nullptr;
};

class PrefixWatcher;

// Runs sequences on one model: admits, plans steps (runtime/engine/scheduler.h), runs the forward, samples, emits.
// Owns one thread, the KV cache and every sequence's state; callers talk to it through a bounded queue and
// are thread-safe. Admission promises blocks for the prompt and a first stretch of the answer
// (runtime/engine/admission.h); beyond them sequences may preempt each other (runtime/engine/scheduler.h), and every
// admitted one ends.
class Engine {
 public:
  // `model` and `tokenizer` must outlive the engine.
  static absl::StatusOr<std::unique_ptr<Engine>> Start(Transformer* model, const Tokenizer* tokenizer,
                                                       const EngineOptions& options);
  // Ends every sequence with Unavailable and joins the thread. No other call may be in progress.
  ~Engine();

  // Admits at once or fails: ResourceExhausted (blocks, sequences), InvalidArgument (empty prompt, ids out of
  // range, longer than the context; the message holds both numbers). Several choices share one prompt,
  // computed or handed off once, and have blocks of their own from the first token on.
  absl::StatusOr<SequenceId> Generate(GenerateSpec spec, std::shared_ptr<SequenceListener> listener);
  absl::StatusOr<SequenceId> Prefill(PrefillSpec spec, std::shared_ptr<SequenceListener> listener);

  // A frame for a sequence admitted with a codec. The engine checks header, checksum and coverage; `release`
  // runs on the engine thread when the bytes are no longer needed. A bad frame turns the sequence to local
  // prefill. Frames for sequences that have ended are dropped.
  void ApplyFrame(SequenceId id, const FrameHeader& header, std::vector<uint8_t> header_bytes,
                  absl::Span<const uint8_t> payload, std::function<void()> release);
  // The handoff has failed: unless every frame was received, the prompt is computed here.
  void FallBack(SequenceId id, absl::Status reason);
  // The handoff is late: unless every frame was received, the prompt is also computed here, with what other
  // sequences leave of steps and blocks. If that is done before the handoff is complete, the sequence falls back
  // to it with `reason`. Nothing happens where that has begun already, or where options.max_hedges run or
  // blocks are too few; a later call may find room.
  void Hedge(SequenceId id, absl::Status reason);
  // The handoff starts again from its first frame: unless every frame was received, those received so far are
  // dropped, also those that ApplyFrame was given and that wait.
  void RestartHandoff(SequenceId id);
  // Of a codec whose frames come in two parts: no more of the second ones come. Those that wait are dropped, and what was
  // kept for them goes.
  void EndUpgrade(SequenceId id);
  // Wakes the engine: a sequence that was left out may have room now.
  void Nudge();
  // OnDone follows with `status` for every choice that has not ended; unknown ids are ignored.
  void Cancel(SequenceId id, absl::Status status);

  // Tokens at the start of a prompt that the prefix cache holds in this format (null: exact) for this salt and
  // adapter (null: none; its begin as GenerateSpec has it) now, at most all but the last.
  int64_t CachedTokens(absl::Span<const int32_t> prompt, const CodecSpec* codec,
                       const std::string& cache_salt, const LoraWeights* adapter = nullptr,
                       int64_t adapter_begin = 0) const;

  // Hears what the prefix cache stores and removes from now on (runtime/kv/prefix_watcher.h); must outlive the engine's
  // last step. Once.
  void WatchPrefixes(PrefixWatcher* watcher);

  EngineStats stats() const;
  const EngineOptions& options() const;

 private:
  class Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace aludel
