#include "server/inspect/size_balance.h"

#include <algorithm>
#include <limits>
#include <set>

namespace aludel {
namespace {

constexpr size_t kThresholds = 64;  // that are compared
constexpr size_t kTried = 5;        // of them, beside the best one

// On a decode server, whose steps run anyway.
double PrefillBeside(const SimCosts& costs, int64_t tokens, int64_t cached) {
  const auto all = static_cast<double>(tokens), had = static_cast<double>(cached);
  return costs.per_token * (all - had) + costs.per_pair * (all * all - had * had);
}

}  // namespace

SizeDemand DemandOf(const std::vector<SimRequest>& requests) {
  PrefixLru cache(std::numeric_limits<int64_t>::max());
  std::vector<uint64_t> added;
  SizeDemand demand;
  for (const SimRequest& request : requests) {
    const int64_t cached = std::min(cache.Match(request.keys), request.keys.tokens - 1);
    demand.prompts.push_back({.tokens = request.keys.tokens, .cached = cached});
    demand.output_tokens += static_cast<double>(request.output_tokens);
    demand.seconds = std::max(demand.seconds, request.arrival);
    added.clear();
    cache.Touch(request.keys, request.keys.size(), &added, &added);
  }
  return demand;
}

SizeBalance BalanceAt(const SizeDemand& demand, const SizeServers& servers, const SizeObjective& objective,
                      const SizeFormat& format, int64_t threshold_tokens) {
  const SimCosts& costs = servers.costs;
  SizeBalance balance{.threshold_tokens = threshold_tokens};
  double beside = 0, alone = 0, bytes = 0;
  int64_t offloaded = 0;
  for (const SizeDemand::Prompt& prompt : demand.prompts) {
    if (prompt.tokens - prompt.cached <= threshold_tokens) {
      beside += PrefillBeside(costs, prompt.tokens, prompt.cached);
      continue;
    }
    ++offloaded;
    alone += PrefillAlone(costs, prompt.tokens, prompt.cached) / servers.prefill_speed;
    beside += format.compute_share * PrefillBeside(costs, prompt.tokens, 0);
    bytes += format.bytes_per_token * static_cast<double>(prompt.tokens);
  }
  balance.offloaded = static_cast<double>(offloaded) / static_cast<double>(demand.prompts.size());
  balance.prefill_compute = alone / demand.seconds;
  balance.link_bytes_per_second = bytes / demand.seconds;
  balance.link = balance.link_bytes_per_second / (servers.link_cap * servers.link_bytes_per_second);
  const double tokens = demand.output_tokens / demand.seconds;
  const double busy = beside / demand.seconds + costs.per_sequence * tokens;
  balance.decode = std::max(busy / (1 - costs.step / objective.itl),
                            busy + tokens * costs.step / static_cast<double>(costs.max_sequences));
  return balance;
}

std::vector<SizeBalance> Balances(const SizeDemand& demand, const SizeServers& servers,
                                  const SizeObjective& objective, const SizeFormat& format) {
  std::vector<int64_t> lacking;
  for (const SizeDemand::Prompt& prompt : demand.prompts) lacking.push_back(prompt.tokens - prompt.cached);
  std::sort(lacking.begin(), lacking.end());
  // The longest is left out: with it nothing is handed over. Those between two of the trace's lengths are alike.
  const auto at = [&](size_t i, size_t of) {
    const int64_t length = lacking[i * lacking.size() / of];
    return i == 0 || length == lacking.back() ? 0 : length;
  };
  SizeBalance best = BalanceAt(demand, servers, objective, format, 0);
  for (size_t i = 1; i < kThresholds; ++i) {
    const SizeBalance balance = BalanceAt(demand, servers, objective, format, at(i, kThresholds));
    if (balance.servers() < best.servers() ||
        (balance.servers() == best.servers() && balance.threshold_tokens > best.threshold_tokens)) {
      best = balance;
    }
  }
  std::vector<SizeBalance> balances = {best};
  std::set<int64_t> seen = {best.threshold_tokens};
  for (size_t i = 0; i < kTried; ++i) {
    if (seen.insert(at(i, kTried)).second) {
      balances.push_back(BalanceAt(demand, servers, objective, format, at(i, kTried)));
    }
  }
  return balances;
}

SizeBalance BalanceAlone(const SizeDemand& demand, const SizeServers& servers,
                         const SizeObjective& objective) {
  return BalanceAt(demand, servers, objective, {}, std::numeric_limits<int64_t>::max());
}

}  // namespace aludel
