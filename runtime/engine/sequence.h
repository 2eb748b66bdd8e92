#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/codec/codec.h"
#include "runtime/engine/encoding_observer.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/sampling/prompt_scorer.h"
#include "runtime/engine/sampling/sampler.h"
#include "runtime/engine/sampling/stop_matcher.h"
#include "runtime/engine/scheduler.h"
#include "runtime/kv/block_pool.h"
#include "runtime/kv/prefix_cache.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace aludel {

// Splits the time of one sequence into exclusive stages: every moment since admission counts in exactly one.
class StageClock {
 public:
  explicit StageClock(SteadyClock::time_point now) : start_(now), mark_(now) {}
  // Charges the time since the last charge to `stage`, a field of SequenceTimes. Nothing after Stop.
  void Charge(double* stage) { *stage += Take(); }
  // As above, when several sequences share the cost.
  double Take() {
    if (stopped_) return 0;
    const SteadyClock::time_point before = std::exchange(mark_, SteadyClock::now());
    return std::chrono::duration<double>(mark_ - before).count();
  }
  void Stop() { stopped_ = true; }
  double total() const { return std::chrono::duration<double>(mark_ - start_).count(); }

 private:
  SteadyClock::time_point start_;
  SteadyClock::time_point mark_;
  bool stopped_ = false;
};

// A handoff in progress, or the second parts of its frames (CodecSpec::base_planes).
struct Receiving {
  const DecoderFactory* codec = nullptr;
  std::unique_ptr<KvDecoder> decoder;
  FrameLedger ledger;
};

// What the choices of one request have in common. Owned by the request's sequences.
struct ChoiceGroup {
  SequenceId request = 0;  // what the caller knows; the id of choice 0
  SamplingParams sampling;
  uint64_t seed = 0;  // where sampling has none
  std::shared_ptr<TokenAutomaton> constraint;
  int unforked = 0;  // choices that become sequences when the prompt is computed
  int open = 1;      // choices that have not ended
};

// From which token on another model than the engine's own computes a sequence.
struct AdapterTurn {
  std::string hash;  // of the model with the adapter; "": the sequence has none
  int64_t begin = 0;
};

// Everything the engine knows of one choice of a request. Owned by the engine thread.
struct Sequence {
  Sequence(std::vector<int32_t> prompt, int64_t max_completion, std::shared_ptr<SequenceListener> listener,
           std::shared_ptr<ChoiceGroup> group, int choice, const Tokenizer* tokenizer)
      : group(std::move(group)),
        choice(choice),
        tokens(std::move(prompt)),
        prompt_tokens(static_cast<int64_t>(tokens.size())),
        max_completion(max_completion),
        listener(std::move(listener)),
        sampler(this->group->sampling, this->group->seed, static_cast<uint32_t>(choice), tokens,
                max_completion),
        text(tokenizer),
        stops(this->group->sampling.stop, this->group->sampling.include_stop),
        clock(SteadyClock::now()) {}

  bool awaiting() const { return receiving.has_value(); }
  // Tokens of the prompt are still to be scored: what is computed is computed for that.
  bool scoring() const { return scorer != nullptr && !scorer->done(); }
  int64_t completion_tokens() const { return static_cast<int64_t>(tokens.size()) - prompt_tokens; }
  AdapterTurn turn() const {
    return {adapter == nullptr || adapter_reads_only ? "" : adapter->hash(), adapter_begin};
  }
  // What the cache of the token at `position` is computed with; null: the model alone.
  const LoraWeights* AdapterAt(int64_t position) const {
    return adapter_reads_only || position < adapter_begin ? nullptr : adapter.get();
  }
  // Prompt tokens still to be computed here.
  int64_t prompt_left() const { return std::max<int64_t>(0, prompt_end - computed); }
  // Tokens to be computed before the next one is chosen, or before a prefill server's sequence ends.
  int64_t left() const {
    return (max_completion > 0 ? static_cast<int64_t>(tokens.size()) : prompt_end) - computed;
  }
  // How the device may draw the next token: unset where more than a token is wanted of the logits, or they
  // are not to be taken as they are. Choices that are still to part share one row.
  std::optional<RowSampling> DeviceDraw() const {
    if (constraint != nullptr || group->sampling.top_logprobs.has_value() || group->unforked > 0) {
      return std::nullopt;
    }
    return sampler.PlainDraw();
  }
  // Charges the time since the last charge, a step of `step_rows` rows: the encoder's own, then its share by rows; the
  // rest counts as waiting for others.
  void ChargeStep(int64_t own_rows, int64_t step_rows);
  int64_t rank() const {
    if (hedge_of != 0) return std::numeric_limits<int64_t>::max();
    return static_cast<int64_t>(id) + kPriorityStride * priority;
  }

  SequenceId id = 0;
  std::shared_ptr<ChoiceGroup> group;
  int choice = 0;
  std::vector<int32_t> tokens;  // prompt, then what was sampled
  int64_t prompt_tokens;
  int64_t max_completion;   // 0: the sequence ends with its prompt, as a prefill server's does
  int64_t prompt_end = 0;   // prefill server: tokens to compute; else prompt_tokens
  int64_t computed = 0;     // tokens [0, computed) are in the cache
  int64_t handed_over = 0;  // of them, tokens that came as codes; preemption leaves them
  // The first ones of those, the codec's recomputed head, which its next step computes beside what follows
  // the codes (engine_step.h): until then no other sequence may attend to its blocks.
  int64_t owed_head = 0;
  int priority = 0;
  SteadyClock::time_point deadline = SteadyClock::time_point::max();
  std::shared_ptr<SequenceListener> listener;

  BlockTable blocks;
  bool running = false;                        // has computed something since it was admitted or preempted
  uint64_t last_step = 0;                      // it was part of
  std::shared_ptr<const void> codec_owner;     // what `format`, and what decodes or encodes, lives in
  const CodecSpec* format = nullptr;           // whose tokens its cache begins with; null: exact
  std::string cache_salt;                      // the tenant whose cached prefixes it shares
  bool keep_prefix = true;                     // for others
  std::shared_ptr<const LoraWeights> adapter;  // over the model; null: none
  int64_t adapter_begin = 0;                   // tokens before it are the model's alone
  bool adapter_reads_only = false;             // over the model's cache of every token
  std::optional<PrefixChain> chain;
  size_t inserted_blocks = 0;  // of `blocks`, those that the prefix cache knows
  // Tokens from here on are not for others: they are coarser than their format, or computed over such.
  int64_t shared_end = std::numeric_limits<int64_t>::max();
  bool queried = false;       // the prefix cache's counters know of it
  int64_t cached_tokens = 0;  // of the prompt, found in the prefix cache
  int64_t cached_wanted = 0;  // with a format that nothing arrives in: fewer, and it falls back

  std::optional<Receiving> receiving;
  std::optional<Receiving> upgrading;  // after it
  bool fell_back = false;
  absl::Status fallback_reason;

  SequenceId hedge_of = 0;     // set: this is a hedge (engine_hedges.h), of that sequence
  SequenceId hedge = 0;        // set: this sequence's
  absl::Status hedge_reason;   // why it has one
  bool hedge_refused = false;  // once or more

  std::unique_ptr<EncodingObserver> encoder;                  // prefill server
  std::function<bool()> has_room;                             // for its next step's frames; null: always
  int64_t step_tokens = std::numeric_limits<int64_t>::max();  // at most
  bool lacked_room = false;                                   // since its last step

  std::unique_ptr<PromptScorer> scorer;  // null: no log-probabilities of the prompt are asked for

  Sampler sampler;
  std::unique_ptr<TokenAutomaton::Cursor> constraint;  // null: none; made on the engine thread
  bool lacks_mask = false;                             // EngineMasks has not finished it
  StreamDecoder text;
  StopMatcher stops;
  std::optional<int32_t> stop_id;  // of sampling.stop_ids, that ended it
  bool started = false;            // the first token is out: times are final

  StageClock clock;
  SequenceTimes times;
};

// Another choice of the request, where choice 0 is now: its id follows from that of `first`, and it has the same mask for its
// first token. Its blocks are EngineBlocks::Fork's.
std::unique_ptr<Sequence> ForkChoice(const Sequence& first, int choice, const Tokenizer* tokenizer);
// What the listener is told at the end: with the text that was held back, if it ends well.
SequenceResult EndSequence(Sequence& sequence, bool ok, FinishReason reason);

using SequenceMap = std::map<SequenceId, std::unique_ptr<Sequence>>;

}  // namespace aludel
