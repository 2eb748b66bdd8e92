#include "runtime/engine/engine_step.h"

#include <utility>

#include "runtime/codec/handoff.h"
#include "runtime/status_macros.h"

namespace aludel {

void StepRunner::AddItems(Sequence& sequence, int64_t tokens, std::vector<BatchItem>* items) {
  sequence.clock.Charge(std::exchange(sequence.lacked_room, false) ? &sequence.times.await
                                                                   : &sequence.times.queue);
  blocks_->Prepare(sequence, tokens, model_->stream());
  const int64_t end = sequence.computed + tokens;
  const auto part = [&](int64_t begin, int64_t part_end) {
    BatchItem item{.ids = absl::MakeConstSpan(sequence.tokens).subspan(begin, part_end - begin),
                   .position = begin,
                   .blocks = sequence.blocks.ids(),
                   .observer = sequence.encoder.get(),
                   .adapter = sequence.AdapterAt(begin)};
    if (sequence.scoring()) item.all_logits = sequence.scorer.get();
    return item;
  };
  int64_t begin = sequence.computed;
  if (sequence.adapter_begin > begin && sequence.adapter_begin < end) {
    items->push_back(part(begin, sequence.adapter_begin));
    begin = sequence.adapter_begin;
  }
  BatchItem item = part(begin, end);
  const bool last = end == static_cast<int64_t>(sequence.tokens.size());
  if (last && sequence.max_completion > 0) {
    item.draw = sequence.DeviceDraw();
    item.wants_logits = !item.draw.has_value();
  }
  items->push_back(std::move(item));
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
                                       /*observer=*/nullptr, /*logits=*/nullptr, sequence.AdapterAt(0)));
      continue;
    }
    rows += head;
    items->push_back({.ids = absl::MakeConstSpan(sequence.tokens).subspan(0, head),
                      .blocks = sequence.blocks.ids(),
                      .adapter = sequence.AdapterAt(0)});
  }
  return absl::OkStatus();
}

absl::Status StepRunner::Run(absl::Span<const StepItem> plan, const SequenceMap& sequences,
                             std::vector<StepResult>* results) {
  std::vector<BatchItem> items;
  std::vector<size_t> last_items;  // of each step
  for (const StepItem& step : plan) {
    AddItems(*sequences.at(step.id), step.tokens, &items);
    last_items.push_back(items.size() - 1);
  }
  ALUDEL_RETURN_IF_ERROR(PayHeads(plan, sequences, &items));
  ALUDEL_RETURN_IF_ERROR(model_->Forward(absl::MakeSpan(items), *pool_, &logits_));
  const size_t vocab = model_->config().vocab;
  size_t next_logits = 0;
  for (size_t i = 0; i < plan.size(); ++i) {
    BatchItem& item = items[last_items[i]];
    const int64_t head = std::exchange(sequences.at(plan[i].id)->owed_head, 0);
    StepResult result{.id = plan[i].id,
                      .tokens = plan[i].tokens,
                      .rows = plan[i].tokens + head,
                      .observer_status = std::move(item.observer_status)};
    if (item.draw.has_value()) result.drawn = item.token;
    if (item.wants_logits) {
      result.logits = absl::MakeConstSpan(logits_).subspan(vocab * next_logits++, vocab);
    }
    results->push_back(std::move(result));
  }
  return absl::OkStatus();
}

}  // namespace aludel
