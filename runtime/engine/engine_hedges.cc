#include "runtime/engine/engine_hedges.h"

#include <memory>
#include <utility>
#include <vector>

namespace aludel {

bool EngineHedges::Begin(Sequence& late, SequenceId id, const absl::Status& reason, int64_t promised_blocks,
                         SequenceMap& sequences) {
  const int64_t wanted = layout_.BlocksFor(late.prompt_tokens);
  if (running_ == max_hedges_ || promised_blocks + blocks_wanted_ + wanted > layout_.blocks) {
    if (!std::exchange(late.hedge_refused, true)) ++counters_->hedges_refused;
    return false;
  }
  auto hedge = std::make_unique<Sequence>(late.tokens, /*max_completion=*/0, /*listener=*/nullptr,
                                          std::make_shared<ChoiceGroup>(), /*choice=*/0, tokenizer_);
  hedge->id = id;
  hedge->group->request = id;
  hedge->hedge_of = late.id;
  hedge->prompt_end = late.prompt_tokens - 1;
  hedge->cache_salt = late.cache_salt;
  hedge->keep_prefix = late.keep_prefix;
  hedge->adapter = late.adapter;
  hedge->adapter_begin = late.adapter_begin;
  hedge->adapter_reads_only = late.adapter_reads_only;
  blocks_->Begin(*hedge, sequences);
  late.hedge = id;
  late.hedge_reason = reason;
  sequences.emplace(id, std::move(hedge));
  ++running_;
  blocks_wanted_ += wanted;
  ++counters_->hedges_started;
  return true;
}

void EngineHedges::Adopt(Sequence& late, SequenceMap& sequences) {
  const auto found = sequences.find(late.hedge);
  if (found == sequences.end()) return;
  const Sequence& hedge = *found->second;
  // The time of its steps was charged as waiting for frames.
  late.times.await -= hedge.times.prefill;
  late.times.prefill += hedge.times.prefill;
  // One that has not run yet, or was preempted, has nothing that the prefix cache does not have.
  const bool useful = hedge.running;
  if (useful) blocks_->Adopt(hedge, late);
  ++(useful ? counters_->hedges_won : counters_->hedges_lost);
  Remove(late, sequences);
}

void EngineHedges::Drop(Sequence& late, SequenceMap& sequences) {
  if (Remove(late, sequences)) ++counters_->hedges_lost;
}

bool EngineHedges::Remove(Sequence& late, SequenceMap& sequences) {
  const auto found = sequences.find(std::exchange(late.hedge, 0));
  if (found == sequences.end()) return false;
  sequences.erase(found);
  --running_;
  blocks_wanted_ -= layout_.BlocksFor(late.prompt_tokens);
  return true;
}

void EngineHedges::DropNeedless(SequenceMap& sequences) {
  if (running_ == 0) return;
  std::vector<Sequence*> complete;
  for (const auto& [id, sequence] : sequences) {
    if (sequence->hedge != 0 && !sequence->awaiting()) complete.push_back(sequence.get());
  }
  for (Sequence* sequence : complete) Drop(*sequence, sequences);
}

}  // namespace aludel
