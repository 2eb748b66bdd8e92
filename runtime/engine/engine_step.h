#pragma once

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/replay_stats.h"
#include "runtime/engine/engine_blocks.h"
#include "runtime/engine/scheduler.h"
#include "runtime/engine/sequence.h"
#include "runtime/kv/block_pool.h"
#include "runtime/model/transformer.h"

namespace aludel {

// One sequence's part in a forward pass that has run.
struct StepResult {
  SequenceId id = 0;
  int64_t tokens = 0;
  int64_t rows =
      0;  // of the model's work: the tokens, the head that the sequence owed, what its adapter read
  absl::Status observer_status;
  // After its last token either of them, where the next one is to be chosen.
  absl::Span<const float> logits;  // until the next step
  std::optional<int32_t> drawn;    // or kNoToken
};

// Carries out plans: has every item's blocks prepared, lays the items out as one batch, runs the model. The
// head that a sequence owes joins the batch: a pass reads all weights, and one for a few tokens more costs
// hardly more than without them. Owned by the engine thread.
class StepRunner {
 public:
  // All must outlive the runner.
  StepRunner(Transformer* model, BlockPool* pool, EngineBlocks* blocks)
      : model_(model), pool_(pool), blocks_(blocks) {}

  // Computes `plan` over `sequences`. An error is every item's.
  absl::Status Run(absl::Span<const StepItem> plan, const SequenceMap& sequences,
                   std::vector<StepResult>* results);

  // Graph statistics of the steps that only decode.
  ReplayStats replays() const { return model_->device()->replay_stats(model_->stream()); }

 private:
  // Appends the sequence's next `tokens` tokens to `items`: those before its adapter acts as an item of their own. An adapter
  // that only reads the cache reads it in an item of `readers`, where the next token is to be chosen or tokens are scored.
  void AddItems(Sequence& sequence, int64_t tokens, std::vector<BatchItem>* items,
                std::vector<BatchItem>* readers);
  // Adds the heads that the plan's sequences owe to `items`, or where the batch has no room computes them.
  absl::Status PayHeads(absl::Span<const StepItem> plan, const SequenceMap& sequences,
                        std::vector<BatchItem>* items);
  // Runs the model over the first `writing` items, which fit one pass, and the readers behind them, as many as fit beside
  // those and the rest in passes of their own. Leaves the logits of all in logits_.
  absl::Status Forward(absl::Span<BatchItem> items, size_t writing);

  Transformer* const model_;
  BlockPool* const pool_;
  EngineBlocks* const blocks_;
  std::vector<float> logits_;
};

}  // namespace aludel
