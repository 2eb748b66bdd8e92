#include "runtime/engine/engine_step.h"

#include <iterator>
#include <limits>
#include <utility>

#include "runtime/codec/handoff.h"
#include "runtime/status_macros.h"

namespace aludel {

void StepRunner::AddItems(Sequence& sequence, int64_t tokens, std::vector<BatchItem>* items,
                          std::vector<BatchItem>* readers) {
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
    if (sequence.scoring() && !sequence.adapter_reads_only) item.all_logits = sequence.scorer.get();
    return item;
  };
  int64_t begin = sequence.computed;
  if (sequence.adapter_begin > begin && sequence.adapter_begin < end) {
    items->push_back(part(begin, sequence.adapter_begin));
    begin = sequence.adapter_begin;
  }
  items->push_back(part(begin, end));
  const bool chooses = end == static_cast<int64_t>(sequence.tokens.size()) && sequence.max_completion > 0;
  BatchItem* answering = &items->back();
  if (sequence.adapter_reads_only) {
    if (!chooses && !sequence.scoring()) return;
    BatchItem reader = part(sequence.scoring() ? begin : end - 1, end);
    reader.observer = nullptr;
    reader.adapter = sequence.adapter.get();
    reader.reads_only = true;
    if (sequence.scoring()) reader.all_logits = sequence.scorer.get();
    answering = &readers->emplace_back(std::move(reader));
  }
  if (!chooses) return;
  answering->draw = sequence.DeviceDraw();
  answering->wants_logits = !answering->draw.has_value();
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

absl::Status StepRunner::Forward(absl::Span<BatchItem> items, size_t writing) {
  size_t end = 0;
  const auto next_pass = [&] {
    const size_t begin = end;
    int64_t rows = 0;
    for (; end < items.size(); ++end) {
      rows += static_cast<int64_t>(items[end].ids.size());
      if (end >= writing && rows > model_->options().max_rows) break;
    }
    return items.subspan(begin, end - begin);
  };
  ALUDEL_RETURN_IF_ERROR(model_->Forward(next_pass(), *pool_, &logits_));
  while (end < items.size()) {
    std::vector<float> more;
    ALUDEL_RETURN_IF_ERROR(model_->Forward(next_pass(), *pool_, &more));
    logits_.insert(logits_.end(), more.begin(), more.end());
  }
  return absl::OkStatus();
}

absl::Status StepRunner::Run(absl::Span<const StepItem> plan, const SequenceMap& sequences,
                             std::vector<StepResult>* results) {
  std::vector<BatchItem> items;
  std::vector<BatchItem> readers;
  std::vector<size_t> last_items, read_items;  // of each step; the latter in `readers`
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  for (const StepItem& step : plan) {
    const size_t before = readers.size();
    AddItems(*sequences.at(step.id), step.tokens, &items, &readers);
    last_items.push_back(items.size() - 1);
    read_items.push_back(readers.size() > before ? before : kNone);
  }
  ALUDEL_RETURN_IF_ERROR(PayHeads(plan, sequences, &items));
  const size_t writing = items.size();
  std::move(readers.begin(), readers.end(), std::back_inserter(items));
  ALUDEL_RETURN_IF_ERROR(Forward(absl::MakeSpan(items), writing));
  std::vector<size_t> logits_before(items.size());  // rows of logits_
  for (size_t i = 1; i < items.size(); ++i)
    logits_before[i] = logits_before[i - 1] + items[i - 1].wants_logits;
  const size_t vocab = model_->config().vocab;
  for (size_t i = 0; i < plan.size(); ++i) {
    const bool reads = read_items[i] != kNone;
    const size_t answering = reads ? writing + read_items[i] : last_items[i];
    const BatchItem& item = items[answering];
    const int64_t head = std::exchange(sequences.at(plan[i].id)->owed_head, 0);
    StepResult result{.id = plan[i].id,
                      .tokens = plan[i].tokens,
                      .rows = plan[i].tokens + head + (reads ? static_cast<int64_t>(item.ids.size()) : 0),
                      .observer_status = std::move(items[last_items[i]].observer_status)};
    if (item.draw.has_value()) result.drawn = item.token;
    if (item.wants_logits) {
      result.logits = absl::MakeConstSpan(logits_).subspan(vocab * logits_before[answering], vocab);
    }
    results->push_back(std::move(result));
  }
  return absl::OkStatus();
}

}  // namespace aludel
