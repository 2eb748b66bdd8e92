#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/codec/codec.h"
#include "runtime/engine.h"
#include "runtime/kv/block_pool.h"
#include "runtime/model/tokenizer.h"
#include "runtime/sampler.h"
#include "runtime/stop_matcher.h"

namespace aludel {

using SteadyClock = std::chrono::steady_clock;

// Splits the time of one sequence into exclusive stages: every moment since admission is charged to exactly
// one.
class StageClock {
 public:
  explicit StageClock(SteadyClock::time_point now) : start_(now), mark_(now) {}
  // Charges the time since the last charge to `stage`, a field of SequenceTimes. Nothing after Stop.
  void Charge(double* stage) {
    if (stopped_) return;
    const SteadyClock::time_point now = SteadyClock::now();
    *stage += std::chrono::duration<double>(now - mark_).count();
    mark_ = now;
  }
  void Stop() { stopped_ = true; }
  double total() const { return std::chrono::duration<double>(mark_ - start_).count(); }

 private:
  SteadyClock::time_point start_;
  SteadyClock::time_point mark_;
  bool stopped_ = false;
};

// A hand-over that is still landing.
struct Landing {
  const KvCodec* codec = nullptr;
  std::unique_ptr<KvDecoder> decoder;
  FrameLedger ledger;
};

// Everything the engine knows of one request. Owned by the engine thread.
struct Sequence {
  Sequence(SequenceId id, std::vector<int32_t> prompt, std::shared_ptr<SequenceListener> listener,
           const SamplingParams& sampling, const Tokenizer* tokenizer)
      : id(id),
        tokens(std::move(prompt)),
        prompt_tokens(static_cast<int64_t>(tokens.size())),
        listener(std::move(listener)),
        ignore_eos(sampling.ignore_eos),
        sampler(sampling),
        text(tokenizer),
        stops(sampling.stop),
        clock(SteadyClock::now()) {}

  bool awaiting() const { return landing.has_value(); }
  int64_t completion_tokens() const { return static_cast<int64_t>(tokens.size()) - prompt_tokens; }
  // Prompt tokens still to be computed here.
  int64_t prompt_left() const { return std::max<int64_t>(0, prompt_end - computed); }

  SequenceId id;
  std::vector<int32_t> tokens;  // prompt, then what was sampled
  int64_t prompt_tokens;
  int64_t prompt_end = 0;      // prefill server: tokens to compute; else prompt_tokens
  int64_t max_completion = 0;  // 0: a prefill server's sequence, which ends with its prompt
  int64_t computed = 0;        // tokens [0, computed) are in the cache
  int64_t handed_over = 0;     // of them, tokens that came as codes
  int64_t reserved_blocks = 0;
  SteadyClock::time_point deadline = SteadyClock::time_point::max();
  std::shared_ptr<SequenceListener> listener;

  BlockTable blocks;
  std::optional<Landing> landing;
  bool fell_back = false;
  absl::Status fallback_reason;

  std::unique_ptr<LayerObserver> encoder;  // prefill server

  bool ignore_eos;
  Sampler sampler;
  StreamDecoder text;
  StopMatcher stops;
  bool started = false;  // the first token is out: times are final

  StageClock clock;
  SequenceTimes times;
};

}  // namespace aludel
