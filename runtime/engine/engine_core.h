#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/engine_blocks.h"
#include "runtime/engine/engine_front.h"
#include "runtime/engine/engine_hedges.h"
#include "runtime/engine/engine_intake.h"
#include "runtime/engine/engine_masks.h"
#include "runtime/engine/engine_step.h"
#include "runtime/engine/sampling/token_emitter.h"
#include "runtime/engine/sequence.h"
#include "runtime/engine/step_pace.h"

namespace aludel {

// The engine's sequences and what happens to them: frames are applied, steps planned and run, tokens emitted, sequences
// ended. Engine's thread owns it and turns it; not thread-safe, but for CachedTokens. A sequence that was begun ends exactly
// once: at the latest in EndAll.
class EngineCore {
 public:
  // All of them must outlive it.
  EngineCore(Transformer* model, const Tokenizer* tokenizer, const EngineOptions& options, BlockPool* pool,
             EngineFront* front);

  void Begin(std::unique_ptr<Sequence> sequence);
  void PushFrame(PendingFrame frame) { intake_.Push(std::move(frame), sequences_); }
  // As Engine's of the same names.
  void FallBack(SequenceId id, const absl::Status& reason);
  void Hedge(SequenceId id, const absl::Status& reason);
  void RestartHandoff(SequenceId id);
  void EndUpgrade(SequenceId id);
  void Cancel(SequenceId id, const absl::Status& status);
  // Ends what has expired, applies frames, runs a step. How long nothing is to be done but what others ask for.
  absl::Duration Turn();
  void EndAll(const absl::Status& status);

  // Thread-safe.
  int64_t CachedTokens(absl::Span<const int32_t> prompt, const CodecSpec* codec,
                       const std::string& cache_salt, const LoraWeights* adapter,
                       int64_t adapter_begin) const {
    return blocks_.MatchedTokens(prompt, codec, cache_salt,
                                 {adapter == nullptr ? "" : adapter->hash(), adapter_begin});
  }
  void WatchPrefixes(PrefixWatcher* watcher) { blocks_.Watch(watcher); }

 private:
  void FallBack(Sequence& sequence, const absl::Status& reason);
  bool Step();
  void AfterStep(Sequence& sequence, const StepResult& result, int64_t step_rows);
  void Emit(Sequence& sequence, const StepResult& result);
  // The prompt is in the cache: every choice becomes a sequence of its own over the same blocks.
  void Fork(Sequence& sequence);
  void Expire();
  void Finish(SequenceId id, const absl::Status& status, FinishReason reason);
  void PublishStats();

  const Tokenizer* const tokenizer_;
  BlockPool* const pool_;
  EngineFront* const front_;
  SequenceMap sequences_;  // in order of admission
  EngineStats counters_;   // the counting fields
  EngineBlocks blocks_;
  EngineHedges hedges_;
  EngineIntake intake_;
  EngineMasks masks_;
  StepRunner runner_;
  StepPace pace_;
  double step_seconds_ = 0;  // of the last step
  TokenEmitter emitter_;
};

}  // namespace aludel
