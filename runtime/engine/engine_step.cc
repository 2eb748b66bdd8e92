#include "runtime/engine/engine_step.h"

#include <utility>

#include "runtime/codec/handoff.h"
#include "runtime/status_macros.h"

namespace aludel {

BatchItem StepRunner::MakeItem(Sequence& sequence, int64_t tokens) {
  sequence.clock.Charge(std::exchange(sequence.lacked_room, false) ? &sequence.times.await
                                                                   : &sequence.times.queue);
  blocks_->Prepare(sequence, tokens, model_->stream());
  const absl::Span<const int32_t> ids =
      absl::MakeConstSpan(sequence.tokens).subspan(sequence.computed, tokens);
  const bool last = sequence.computed + tokens == static_cast<int64_t>(sequence.tokens.size());
  BatchItem item{.ids = ids,
                 .position = sequence.computed,
                 .blocks = sequence.blocks.ids(),
                 .observer = sequence.encoder.get(),
                 .adapter = sequence.adapter.get()};
  if (sequence.scoring()) item.all_logits = sequence.scorer.get();
  if (last && sequence.max_completion > 0) {
    item.draw = sequence.DeviceDraw();
    item.wants_logits = !item.draw.has_value();
  }
  return item;
}

absl::Status StepRunner::PayHeads(absl::Span<const StepItem> plan, const SequenceMap& sequences,
                                  std::vector<BatchItem>* items) {
  int64_t rows = 0;
  for (const StepItem& step : plan) rows += step.tokens;
  for (const StepItem& step : plan) {
    const Sequence& sequence = *sequences.at(step.id);
    const int64_t head = sequence.owed_head;
    if (head == 0) continue;
    if (rows + head > model_->options().max_rows) {
      ALUDEL_RETURN_IF_ERROR(RunTokens(*model_, *pool_, sequence.blocks.ids(), sequence.tokens, 0, head,
                                       /*observer=*/nullptr, /*logits=*/nullptr, sequence.adapter.get()));
      continue;
    }
    rows += head;
    items->push_back({.ids = absl::MakeConstSpan(sequence.tokens).subspan(0, head),
                      .blocks = sequence.blocks.ids(),
                      .adapter = sequence.adapter.get()});
  }
  return absl::OkStatus();
}

absl::Status StepRunner::Run(absl::Span<const StepItem> plan, const SequenceMap& sequences,
                             std::vector<StepResult>* results) {
  std::vector<BatchItem> items;
  for (const StepItem& step : plan) items.push_back(MakeItem(*sequences.at(step.id), step.tokens));
  ALUDEL_RETURN_IF_ERROR(PayHeads(plan, sequences, &items));
  ALUDEL_RETURN_IF_ERROR(model_->Forward(absl::MakeSpan(items), *pool_, &logits_));
  const size_t vocab = model_->config().vocab;
  size_t next_logits = 0;
  for (size_t i = 0; i < plan.size(); ++i) {
    const int64_t head = std::exchange(sequences.at(plan[i].id)->owed_head, 0);
    StepResult result{.id = plan[i].id,
                      .tokens = plan[i].tokens,
                      .rows = plan[i].tokens + head,
                      .observer_status = std::move(items[i].observer_status)};
    if (items[i].draw.has_value()) result.drawn = items[i].token;
    if (items[i].wants_logits) {
      result.logits = absl::MakeConstSpan(logits_).subspan(vocab * next_logits++, vocab);
    }
    results->push_back(std::move(result));
  }
  return absl::OkStatus();
}

}  // namespace aludel
