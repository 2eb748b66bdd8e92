#pragma once

#include <chrono>
#include <cstdint>

#include "kernels/replay_stats.h"

namespace aludel {

struct EngineStats {
  int64_t running = 0;  // sequences that the next steps compute
  int64_t waiting = 0;  // admitted, waiting for frames or for their first step
  int64_t kv_blocks_total = 0;
  int64_t kv_blocks_used = 0;      // held by sequences
  int64_t kv_blocks_cached = 0;    // unreferenced, with a prefix that may be asked for again
  int64_t kv_blocks_reserved = 0;  // promised to admitted sequences, held or not
  uint64_t steps = 0;
  uint64_t prompt_tokens = 0;  // computed here
  uint64_t generated_tokens = 0;
  uint64_t frames_applied = 0;
  uint64_t frames_rejected = 0;
  uint64_t fallbacks = 0;
  uint64_t hedges_started = 0;  // local prefills beside late handoffs
  uint64_t hedges_won = 0;      // of them, those whose work was used
  uint64_t hedges_lost = 0;     // and those whose handoff was sooner, or whose request ended
  uint64_t hedges_refused = 0;  // requests whose hedge found no place when it was first wanted
  uint64_t preemptions = 0;
  uint64_t prefix_queries = 0;  // prompt tokens that were looked up in the prefix cache
  uint64_t prefix_hits = 0;     // of them, found
  ReplayStats replays;          // CUDA graphs of steps that only decode
  // The last turn of the engine thread's loop, which turns twice a second or more unless a step takes longer.
  std::chrono::steady_clock::time_point last_progress;
};

}  // namespace aludel
