#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/bench/request_trace.h"
#include "server/bench/route/sim_prefill_pool.h"
#include "server/bench/route/sim_replica.h"
#include "server/gateway/routing/policy/fleet.h"

namespace aludel {

struct SimRequest {
  double arrival = 0;
  PrefixKeys keys;
  int64_t output_tokens = 1;
};
// One key a block. A request without blocks has a prompt that no other shares.
std::vector<SimRequest> ToSimRequests(const std::vector<TraceRequest>& trace);
// The share of prompt tokens that one cache without bounds would have.
double IdealHits(const std::vector<SimRequest>& requests);

// What happens to the servers meanwhile.
struct SimChange {
  enum class Kind { kAdd, kFail, kDrain };
  double at = 0;  // seconds
  Kind kind = Kind::kAdd;
  size_t replica = 0;      // of kFail and kDrain
  double for_seconds = 0;  // of kFail: then it is back, with nothing in its cache
};
// "600 add", "900 fail 2 60" or "1200 drain 0".
absl::StatusOr<SimChange> ParseSimChange(absl::string_view text);

struct SimOptions {
  // The gateway's own: prefix, least_pending, round_robin. For comparison: hash (where the prefix lives, whatever the load),
  // dualmap (ICLR 2026), lmetric (2603.15202), least_ttft (of all servers), and least_ttft_exact, which knows every queue and
  // every cache as it is.
  std::string policy = "prefix";
  int replicas = 8;
  int gateways = 1;
  double probe_seconds = 0.2;  // between two reports of a server
  double stale_seconds = 0;    // from a report to the gateways
  bool reply_hints = true;     // replies bring their server's report at once
  // How often a server may send a request back that found a longer queue than its gateway believed; with it comes a report.
  int turn_aways = kMaxTurnAways;
  // How often a request that waits at a server may move to another one (ShallMove), which gateways do not do. 0: never.
  int moves = 0;
  double move_margin = 0.1;  // of the objective
  double objective_seconds = 5;
  double max_ttft_seconds =
      0;  // later first tokens are refused, where they are predicted (prefix); 0: none is
  uint64_t seed = 1;
  SimCosts costs;
  SimPrefill prefill;
  std::vector<SimChange> changes;
};
absl::Status CheckSimPolicy(const std::string& policy);

struct SimResult {
  std::vector<double> ttft;          // seconds, of every request
  std::vector<double> itl;           // mean seconds between two tokens of its answer; 0 where that has one
  std::vector<bool> handed_over;     // computed by a prefill server
  double link_bytes_per_second = 0;  // of all prefill servers' links, mean over the trace
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  double imbalance = 0;                 // prefill work of the busiest server over the mean, mean over minutes
  std::vector<double> decision_micros;  // real time
  std::map<std::string, int64_t> reasons;
  int64_t retried = 0;      // requests whose server failed
  int64_t refused = 0;      // requests, for being late; their ttft is infinite
  int64_t turned_away = 0;  // times that a request was sent back
  int64_t moved = 0;        // times that one that waited moved
};

// Discrete events: requests come as the trace says to gateways at random; each gateway knows what it has sent itself, what its
// own replies report, and of the rest what reports say that are `stale_seconds` old. The same seed gives the same run.
SimResult Simulate(const std::vector<SimRequest>& requests, const SimOptions& options);

}  // namespace aludel
