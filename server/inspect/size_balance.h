#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "server/bench/route/route_simulation.h"

namespace aludel {

// What answers shall keep to: `share` of the requests have their first token within `ttft` seconds, and then a token within
// `itl` seconds on average.
struct SizeObjective {
  double ttft = 2;
  double itl = 0.05;
  double share = 0.9;
};

// How prompts may be handed over.
struct SizeFormat {
  std::string name;
  double bytes_per_token = 0;  // of the whole prompt
  double compute_share = 0;    // of the whole prompt's prefill, which is left to the decode server
};

// What a prefill server is, beside a decode server with the costs of SimCosts.
struct SizeServers {
  SimCosts costs;
  double prefill_speed = 1;  // of prefill, times a decode server's
  double link_bytes_per_second = std::numeric_limits<double>::infinity();  // of each prefill server
  double link_cap = 0.8;                                                   // of that, at most
};

// A trace's work: what no cache without bounds has, and the tokens of the answers.
struct SizeDemand {
  struct Prompt {
    int64_t tokens = 0;
    int64_t cached = 0;
  };
  std::vector<Prompt> prompts;
  double output_tokens = 0;
  double seconds = 0;  // of the trace

  double requests_per_second() const { return static_cast<double>(prompts.size()) / seconds; }
};
SizeDemand DemandOf(const std::vector<SimRequest>& requests);

// Servers that the work keeps busy when prompts that lack more than a threshold are handed over: lower bounds but for the
// links' cap, for they take arrivals to be even and caches to have no bounds. Prefill-as-a-Service (arXiv 2604.15039) has the equations for throughput,
// min(prefill / p, local / (1 - p), decode); here prefill that is not handed over runs on the decode servers, so that two of
// them are one.
struct SizeBalance {
  int64_t threshold_tokens = 0;
  double offloaded = 0;              // p: share of the requests
  double prefill_compute = 0;        // servers
  double link = 0;                   // prefill servers, whose links are used up to their cap
  double decode = 0;                 // servers
  double link_bytes_per_second = 0;  // of all links

  double prefill() const { return prefill_compute > link ? prefill_compute : link; }
  double servers() const { return prefill() + decode; }
};

// Decode servers. Each step of s seconds plus c for each of n sequences also computes prefill, which takes a share f of the
// time, so that a sequence has its next token after t = (s + c n) / (1 - f). With r tokens a second from d servers n = r t / d
// (Little), and t <= itl where d >= (prefill seconds a second + c r) / (1 - s / itl). n <= max_sequences where
// d >= prefill seconds a second + c r + r s / max_sequences.
SizeBalance BalanceAt(const SizeDemand& demand, const SizeServers& servers, const SizeObjective& objective,
                      const SizeFormat& format, int64_t threshold_tokens);
// With the threshold that takes the fewest servers first, of equals the highest; then with some others over the trace's
// lengths: the equations know means, and a long prompt beside short answers shows in the simulator alone.
std::vector<SizeBalance> Balances(const SizeDemand& demand, const SizeServers& servers,
                                  const SizeObjective& objective, const SizeFormat& format);
// Where nothing is handed over.
SizeBalance BalanceAlone(const SizeDemand& demand, const SizeServers& servers,
                         const SizeObjective& objective);

}  // namespace aludel
