#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "runtime/engine/engine_blocks.h"
#include "runtime/engine/engine_stats.h"
#include "runtime/engine/sequence.h"
#include "runtime/kv/kv_layout.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace aludel {

// Local prefill beside handoffs that are late. A hedge is a sequence of its own that computes a waiting
// sequence's prompt, all but the last token, exactly. It ranks behind every other sequence: it gets the tokens
// of a step and the blocks that they leave, gives up its blocks first, and no admission counts on them. What
// it has computed is the waiting sequence's when that falls back, and is dropped when the handoff is complete.
// Owned by the engine thread.
class EngineHedges {
 public:
  // All must outlive this.
  EngineHedges(const KvLayout& layout, int64_t max_hedges, const Tokenizer* tokenizer, EngineBlocks* blocks,
               EngineStats* counters)
      : layout_(layout),
        max_hedges_(max_hedges),
        tokenizer_(tokenizer),
        blocks_(blocks),
        counters_(counters) {}

  // Begins a hedge, as sequence `id`, for `late`, which has none yet. `reason` is why `late` falls back if
  // the hedge is complete first. False, and counted once for each sequence, where max_hedges run already or
  // the blocks beside `promised_blocks` are too few.
  bool Begin(Sequence& late, SequenceId id, const absl::Status& reason, int64_t promised_blocks,
             SequenceMap& sequences);
  // `late` has fallen back: it goes on from what its hedge, if there is one, has computed.
  void Adopt(Sequence& late, SequenceMap& sequences);
  // `late` no longer needs its hedge, if there is one.
  void Drop(Sequence& late, SequenceMap& sequences);
  // Drops the hedges of sequences that have everything.
  void DropNeedless(SequenceMap& sequences);

  int64_t running() const { return running_; }

 private:
  // False where there is none.
  bool Remove(Sequence& late, SequenceMap& sequences);

  const KvLayout& layout_;
  const int64_t max_hedges_;
  const Tokenizer* const tokenizer_;
  EngineBlocks* const blocks_;
  EngineStats* const counters_;
  int64_t running_ = 0;
  int64_t blocks_wanted_ = 0;  // by those that run, when they are complete
};

}  // namespace aludel
