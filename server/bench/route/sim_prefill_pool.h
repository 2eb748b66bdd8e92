#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "server/bench/route/sim_replica.h"
#include "server/gateway/routing/policy/prefix_index.h"

namespace aludel {

// The prefill servers of a simulation, and what one handoff takes.
struct SimPrefill {
  int servers = 0;  // 0: decode servers compute every prompt themselves
  int64_t threshold_tokens =
      0;                       // a prompt of which the decode server's cache lacks no more is computed there
  double speed = 1;            // of prefill, times a decode server's
  double bytes_per_token = 0;  // of the whole prompt, as the planner's cost model has it
  double link_bytes_per_second = std::numeric_limits<double>::infinity();  // of each server
  double compute_share = 0;  // of the whole prompt's prefill, which is left to the decode server
};

// Seconds of computing a prompt in chunks on a server that does nothing else.
double PrefillAlone(const SimCosts& costs, int64_t tokens, int64_t cached);

// Prefill servers that all decode servers share. Each computes one prompt after the other, and sends its frames while it
// computes; each has a prefix cache and a link of its own. Times are seconds of the simulation. Not thread-safe.
class SimPrefillPool {
 public:
  SimPrefillPool(const SimPrefill& prefill, const SimCosts& costs);

  // Whether a prompt of which the decode server lacks so many tokens is handed over.
  bool Takes(int64_t lacking_tokens) const {
    return !servers_.empty() && lacking_tokens > prefill_.threshold_tokens;
  }
  struct Handoff {
    double at = 0;  // the last frame is there
    int64_t cached_tokens = 0;
  };
  // By the server that has it there soonest. `now` never goes back.
  Handoff Send(const PrefixKeys& keys, double now);

  double sent_bytes() const { return sent_bytes_; }

 private:
  struct Server {
    double free_at = 0;
    double link_free_at = 0;
    PrefixLru cache;
  };
  struct Times {
    double computed = 0;
    double sent = 0;
  };
  Times TimesOf(const Server& server, const PrefixKeys& keys, int64_t cached, double now) const;

  const SimPrefill prefill_;
  const SimCosts costs_;
  std::vector<Server> servers_;
  double sent_bytes_ = 0;
  std::vector<uint64_t> scratch_;
};

}  // namespace aludel
