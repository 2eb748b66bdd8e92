#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "runtime/engine/engine_options.h"
#include "runtime/engine/engine_stats.h"
#include "runtime/engine/scheduler.h"
#include "runtime/engine/sequence.h"
#include "runtime/kv/block_pool.h"
#include "runtime/kv/prefix_cache.h"

namespace aludel {

// Moves blocks between sequences, the prefix cache and the pool. Knows no model, so that tests drive it
// alone. Owned by the engine thread; MatchedTokens comes from any.
class EngineBlocks {
 public:
  // `pool` and `counters` must outlive this.
  EngineBlocks(const std::string& model_hash, const EngineOptions& options, BlockPool* pool,
               EngineStats* counters);

  // A new sequence: finds its prefix in the cache where an earlier handoff left it, and reserves blocks for
  // the tokens that will come over the wire. `sequences` may be preempted for it.
  void Begin(Sequence& sequence, const SequenceMap& sequences);
  // The whole handoff is in the sequence's blocks.
  void Received(Sequence& sequence);
  // What came of it in two parts is whole now: it may be shared, and nothing that was computed over the first ones.
  void Upgraded(Sequence& sequence);
  // The handoff has failed: the prompt will be computed here, exactly.
  void FallBack(Sequence& sequence);

  // `fork`, a new choice of the same request, goes on from everything that `sequence` has computed.
  static void Fork(const Sequence& sequence, Sequence& fork);
  // `late`, whose handoff is given up, goes on from what its hedge has computed, and asked of the prefix cache.
  void Adopt(const Sequence& hedge, Sequence& late);

  // Plans the next step over all sequences that do not wait for frames; carries out its preemptions, and lets
  // sequences that have not started share what the cache has of them.
  std::vector<StepItem> Plan(const SequenceMap& sequences);
  // Tokens of the next steps, at most max_num_batched_tokens.
  void SetTokenBudget(int64_t tokens) { token_budget_ = tokens; }
  // Allocates the sequence's own blocks for its next `tokens` tokens; the plan has made sure that they
  // are free.
  void Prepare(Sequence& sequence, int64_t tokens, Stream stream);
  // They are computed.
  void Advance(Sequence& sequence, int64_t tokens);

  // Tokens that a prompt of this format (null: exact), salt and adapter begins with and that are in the cache now.
  int64_t MatchedTokens(absl::Span<const int32_t> prompt, const CodecSpec* codec,
                        const std::string& cache_salt, const AdapterTurn& turn) const;
  // As PrefixCache::Watch; nothing is heard where the cache is off.
  void Watch(PrefixWatcher* watcher) {
    if (cache_ != nullptr) cache_->Watch(watcher);
  }

 private:
  Provenance ProvenanceOf(const CodecSpec* codec, const std::string& cache_salt,
                          const AdapterTurn& turn) const;
  std::vector<Sequence*> Ranked(const SequenceMap& sequences) const;
  SchedulerState MakeState(const std::vector<Sequence*>& ranked,
                           std::vector<SchedulerSequence>* entries) const;
  void Attach(Sequence& sequence);
  void Preempt(Sequence& sequence);
  void Insert(Sequence& sequence);
  void CountQuery(Sequence& sequence);
  void RaiseQueries(const Sequence& sequence);

  const std::string model_hash_;
  const int block_tokens_;
  int64_t token_budget_;
  bool after_long_ = false;  // StepPlan::has_long of the last step
  BlockPool* const pool_;
  EngineStats* const counters_;
  const std::unique_ptr<PrefixCache> cache_;  // null: switched off
};

}  // namespace aludel
