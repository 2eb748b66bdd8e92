#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "server/bench/route/route_simulation.h"
#include "server/inspect/size_balance.h"

namespace aludel {

// What a run of the simulator with so many servers gave.
struct SizeTrial {
  int prefill = 0;
  int decode = 0;
  double within = 0;  // share of the requests that kept to both objectives
  SimResult run;

  int servers() const { return prefill + decode; }
};

struct SizeProposal {
  std::optional<SizeFormat> format;  // nothing: decode servers prefill themselves
  SizeBalance balance;
  SizeTrial trial;
  // Share with one server less of a role; nothing where the role has none to spare.
  std::optional<double> one_prefill_less;
  std::optional<double> one_decode_less;
};

// That are tried.
inline constexpr int kMostServers = 10'000;

struct SizeOptions {
  SizeServers servers;
  SizeObjective objective;
  int gateways = 2;
  int most_servers = 0;  // at most kMostServers; 0: four times what the equations take, and four
  uint64_t seed = 1;     // of the simulation
};

// FailedPrecondition where no number of servers can keep the objective: a request that is alone takes longer.
absl::Status CheckReachable(const SizeDemand& demand, const SizeOptions& options,
                            const std::vector<SizeFormat>& formats);

// The fewest servers that keep the objective in the simulator (`aludel-bench route-sim`), which runs the gateway's own policy:
// from the balance up, and then down until one less of either role misses it. `format`: nothing is handed over without one.
// `tried` is called before each run. FailedPrecondition where more than most_servers would be needed, or kMostServers by the equations.
using SizeTried = absl::FunctionRef<void()>;
absl::StatusOr<SizeProposal> ProposeSize(const std::vector<SimRequest>& requests, const SizeOptions& options,
                                         const SizeBalance& balance, const std::optional<SizeFormat>& format,
                                         SizeTried tried);
// Of those with each of the `balances`, which differ in their thresholds: the one with the fewest servers, of equals the first.
absl::StatusOr<SizeProposal> ProposeBest(const std::vector<SimRequest>& requests, const SizeOptions& options,
                                         const std::vector<SizeBalance>& balances,
                                         const std::optional<SizeFormat>& format, SizeTried tried);

}  // namespace aludel
