#pragma once

#include <algorithm>

namespace aludel {

// A request that waits at a server before its first token, which another server may be sooner with: seconds.
struct WaitingRequest {
  double waited = 0;     // since it came
  double remaining = 0;  // until its first token where it is
  double there = 0;      // until its first token where it may move to
  double more_work = 0;  // of the prefill there than here, for what the cache there lacks: it holds up others
};

// Whether it moves: it would miss the objective where it is, is in time there, and gains more than `margin` (hysteresis) and
// than what the move costs others. A pure function.
//
// Only the simulator moves what waits. Servers turn requests away on arrival; after that nothing comes before them in their
// queue, and all queues grow shorter alike. tests/bench/RESULTS.md has what moving gives.
inline bool ShallMove(const WaitingRequest& request, double objective, double margin) {
  return request.waited + request.remaining > objective && request.waited + request.there <= objective &&
         request.there + std::max(0.0, request.more_work) + margin < request.remaining;
}

}  // namespace aludel
