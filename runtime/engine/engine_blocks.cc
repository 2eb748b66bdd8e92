#include "runtime/engine/engine_blocks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "runtime/engine/engine_options.h"
#include "runtime/engine/engine_stats.h"
#include "runtime/kv/prefix_watcher.h"

namespace aludel {

EngineBlocks::EngineBlocks(const std::string& model_hash, const EngineOptions& options, BlockPool* pool,
                           EngineStats* counters)
    : model_hash_(model_hash),
      block_tokens_(options.block_tokens),
      token_budget_(options.max_num_batched_tokens),
      pool_(pool),
      counters_(counters),
      cache_(options.prefix_cache ? std::make_unique<PrefixCache>(pool) : nullptr) {}

Provenance EngineBlocks::ProvenanceOf(const CodecSpec* codec, const std::string& cache_salt,
                                      const AdapterTurn& turn) const {
  const bool whole = !turn.hash.empty() && turn.begin == 0;
  Provenance provenance{.model_hash = whole ? turn.hash : model_hash_, .salt = cache_salt};
  if (codec != nullptr) {
    provenance.format = codec->name;
    provenance.artifact_hash = codec->artifact_hash;
    // What another decoder made of the same codes is another cache.
    if (!codec->decoder_hash.empty()) absl::StrAppend(&provenance.artifact_hash, " ", codec->decoder_hash);
    provenance.recomputed_head = codec->recomputed_head_tokens;
  }
  if (!whole) {
    provenance.turn_hash = turn.hash;
    provenance.turn_begin = turn.begin;
  }
  return provenance;
}

void EngineBlocks::Begin(Sequence& sequence, const SequenceMap& sequences) {
  sequence.chain.emplace(ProvenanceOf(sequence.format, sequence.cache_salt, sequence.turn()), block_tokens_);
  if (sequence.awaiting()) {
    const int64_t blocks = pool_->layout().BlocksFor(sequence.handed_over);
    std::vector<Sequence*> ranked = Ranked(sequences);
    // Hedges stand last. No admission counts on their blocks, so each of them may have to give them up.
    for (; !ranked.empty() && ranked.back()->hedge_of != 0; ranked.pop_back()) {
      if (pool_->free_blocks() < blocks) Preempt(*ranked.back());
    }
    std::vector<SchedulerSequence> entries;
    const SchedulerState state = MakeState(ranked, &entries);
    for (const SequenceId id : PlanReservation(state, blocks)) Preempt(*sequences.at(id));
    const absl::Status grown = sequence.blocks.Grow(*pool_, sequence.handed_over);
    ALUDEL_CHECK(grown.ok());
  } else if (sequence.format != nullptr) {
    Attach(sequence);
    sequence.handed_over = sequence.computed;
  }
}

void EngineBlocks::Received(Sequence& sequence) {
  CountQuery(sequence);
  sequence.computed = sequence.handed_over;
  Insert(sequence);
}

void EngineBlocks::Upgraded(Sequence& sequence) {
  sequence.shared_end = sequence.handed_over;
  Insert(sequence);
}

void EngineBlocks::FallBack(Sequence& sequence) {
  sequence.blocks.Clear();
  sequence.handed_over = 0;
  sequence.computed = 0;
  sequence.format = nullptr;
  sequence.chain.emplace(ProvenanceOf(nullptr, sequence.cache_salt, sequence.turn()), block_tokens_);
}

void EngineBlocks::Fork(const Sequence& sequence, Sequence& fork) {
  fork.computed = sequence.computed;
  fork.handed_over = sequence.handed_over;
  fork.running = true;
  fork.last_step = sequence.last_step;
  // A hedge has none, and what it replaces may have frames on their way still.
  if (sequence.codec_owner != nullptr) fork.codec_owner = sequence.codec_owner;
  fork.format = sequence.format;
  fork.cache_salt = sequence.cache_salt;
  fork.keep_prefix = sequence.keep_prefix;
  fork.adapter = sequence.adapter;
  fork.adapter_begin = sequence.adapter_begin;
  fork.adapter_reads_only = sequence.adapter_reads_only;
  fork.chain = sequence.chain;
  fork.inserted_blocks = sequence.inserted_blocks;
  fork.shared_end = sequence.shared_end;
  fork.queried = true;
  fork.cached_tokens = sequence.cached_tokens;
  for (const BlockRef& block : sequence.blocks.blocks()) fork.blocks.Append(block);
}

void EngineBlocks::Adopt(const Sequence& hedge, Sequence& late) {
  Fork(hedge, late);
  if (hedge.queried) RaiseQueries(late);
}

std::vector<Sequence*> EngineBlocks::Ranked(const SequenceMap& sequences) const {
  std::vector<Sequence*> ranked;
  for (const auto& [id, sequence] : sequences) {
    if (sequence->awaiting()) continue;
    if (sequence->has_room != nullptr && !sequence->has_room()) {
      sequence->lacked_room = true;
      continue;
    }
    ranked.push_back(sequence.get());
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const Sequence* a, const Sequence* b) { return a->rank() < b->rank(); });
  return ranked;
}

SchedulerState EngineBlocks::MakeState(const std::vector<Sequence*>& ranked,
                                       std::vector<SchedulerSequence>* entries) const {
  for (const Sequence* sequence : ranked) {
    entries->push_back(
        {.id = sequence->id,
         .computed = sequence->computed,
         .left = sequence->left(),
         // One that was preempted has to start again first: as a decode that may not start yet it
         // would be the one that has waited longest, and take the turn of others, for ever.
         .decoding = sequence->running && sequence->completion_tokens() > 0 && sequence->left() == 1,
         .started = sequence->running,
         .last_step = sequence->last_step,
         .blocks = sequence->blocks.ids(),
         .kept_blocks = pool_->layout().BlocksFor(sequence->handed_over),
         // Its next token could not be chosen yet.
         .paused = sequence->lacks_mask && sequence->left() <= token_budget_,
         .spare = sequence->hedge_of != 0,
         .most_tokens = sequence->step_tokens,
         .scored = sequence->scoring()});
  }
  return {.sequences = *entries,
          .references = pool_->references(),
          .free_blocks = pool_->free_blocks(),
          .block_tokens = block_tokens_,
          .token_budget = token_budget_,
          .step = counters_->steps,
          .after_long = after_long_};
}

void EngineBlocks::Attach(Sequence& sequence) {
  // Of what was cached nothing can be scored. A partly written block is not shared as a prefix.
  if (cache_ == nullptr || sequence.scoring() || sequence.computed % block_tokens_ != 0 ||
      sequence.computed / block_tokens_ != static_cast<int64_t>(sequence.blocks.ids().size())) {
    return;
  }
  const int64_t end = sequence.computed + sequence.left() - 1;
  const int64_t usable = sequence.encoder == nullptr ? end : std::min(end, sequence.encoder->token_begin());
  if (usable < sequence.computed + block_tokens_) return;
  const auto hashes = sequence.chain->Extend(sequence.tokens);
  // Where it still owes its head, the cache does not know the blocks that came over the wire.
  const bool known = sequence.inserted_blocks == sequence.blocks.ids().size();
  cache_->Attach(hashes, usable / block_tokens_, &sequence.blocks);
  sequence.computed = static_cast<int64_t>(sequence.blocks.ids().size()) * block_tokens_;
  if (known) sequence.inserted_blocks = sequence.blocks.ids().size();
}

void EngineBlocks::Preempt(Sequence& sequence) {
  const int64_t kept = pool_->layout().BlocksFor(sequence.handed_over);
  sequence.blocks.Truncate(kept);
  sequence.computed = std::min(sequence.computed, kept * block_tokens_);
  sequence.inserted_blocks = std::min<size_t>(sequence.inserted_blocks, kept);
  // A hedge is no request: it gives up its blocks to any, as planned.
  if (std::exchange(sequence.running, false) && sequence.hedge_of == 0) ++counters_->preemptions;
}

std::vector<StepItem> EngineBlocks::Plan(const SequenceMap& sequences) {
  const std::vector<Sequence*> ranked = Ranked(sequences);
  if (ranked.empty()) return {};
  for (Sequence* sequence : ranked) {
    if (!sequence->running) Attach(*sequence);
  }
  std::vector<SchedulerSequence> entries;
  StepPlan plan = PlanStep(MakeState(ranked, &entries));
  after_long_ = plan.has_long;
  for (const SequenceId id : plan.preempted) Preempt(*sequences.at(id));
  return std::move(plan.items);
}

void EngineBlocks::Prepare(Sequence& sequence, int64_t tokens, Stream stream) {
  if (!std::exchange(sequence.running, true)) CountQuery(sequence);
  sequence.last_step = counters_->steps;
  const absl::Status writable = sequence.blocks.MakeWritable(*pool_, sequence.computed, stream);
  ALUDEL_CHECK(writable.ok());
  const absl::Status grown = sequence.blocks.Grow(*pool_, sequence.computed + tokens);
  ALUDEL_CHECK(grown.ok());
}

void EngineBlocks::Advance(Sequence& sequence, int64_t tokens) {
  sequence.computed += tokens;
  Insert(sequence);
}

void EngineBlocks::Insert(Sequence& sequence) {
  const size_t full = std::min(sequence.computed, sequence.shared_end) / block_tokens_;
  if (cache_ == nullptr || !sequence.keep_prefix || sequence.owed_head > 0 ||
      full <= sequence.inserted_blocks)
    return;
  const auto hashes =
      sequence.chain->Extend(absl::MakeConstSpan(sequence.tokens).subspan(0, sequence.computed));
  const size_t from = sequence.inserted_blocks;
  PrefixWatcher* const watcher = cache_->watcher();
  // From where an adapter writes the cache on, that is no other request's.
  const AdapterTurn turn = sequence.turn();
  const int64_t own = turn.hash.empty() ? sequence.computed : turn.begin;
  cache_->Insert(hashes.subspan(from, full - from), sequence.blocks.ids().subspan(from, full - from),
                 [&](size_t index) {
                   const size_t block = from + index;
                   const size_t end = (block + 1) * static_cast<size_t>(block_tokens_);
                   if (watcher == nullptr || static_cast<int64_t>(end) > own) return;
                   watcher->OnStored({.hash = hashes[block],
                                      .before = block == 0 ? nullptr : &hashes[block - 1],
                                      .salt = sequence.cache_salt,
                                      .tokens = absl::MakeConstSpan(sequence.tokens).first(end)});
                 });
  sequence.inserted_blocks = full;
}

void EngineBlocks::CountQuery(Sequence& sequence) {
  if (cache_ == nullptr || std::exchange(sequence.queried, true)) return;
  sequence.cached_tokens = sequence.computed;
  // What a hedge asked counts when it is adopted: else its request asks, too.
  if (sequence.hedge_of == 0) RaiseQueries(sequence);
}

void EngineBlocks::RaiseQueries(const Sequence& sequence) {
  counters_->prefix_queries += sequence.prompt_tokens;
  counters_->prefix_hits += sequence.cached_tokens;
}

int64_t EngineBlocks::MatchedTokens(absl::Span<const int32_t> prompt, const CodecSpec* codec,
                                    const std::string& cache_salt, const AdapterTurn& turn) const {
  if (cache_ == nullptr || prompt.empty()) return 0;
  PrefixChain chain(ProvenanceOf(codec, cache_salt, turn), block_tokens_);
  return cache_->MatchedBlocks(chain.Extend(prompt.subspan(0, prompt.size() - 1))) * block_tokens_;
}

}  // namespace aludel
