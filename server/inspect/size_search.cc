#include "server/inspect/size_search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace aludel {
namespace {

constexpr double kAlike = 0.002;  // of shares

// Of at most kMostServers.
int AtLeastOne(double servers) { return std::max(1, static_cast<int>(std::ceil(servers))); }

int MostServers(const SizeOptions& options, const SizeBalance& balance) {
  if (options.most_servers > 0) return options.most_servers;
  return std::min(kMostServers, 4 * (AtLeastOne(balance.prefill()) + AtLeastOne(balance.decode) + 1));
}

class Search {
 public:
  Search(const std::vector<SimRequest>& requests, const SizeOptions& options, const SizeBalance& balance,
         const std::optional<SizeFormat>& format, SizeTried tried)
      : requests_(requests),
        options_(options),
        tried_(tried),
        hands_over_(format.has_value()),
        most_(MostServers(options, balance)) {
    sim_.seed = options.seed;
    sim_.gateways = options.gateways;
    sim_.objective_seconds = options.objective.ttft;
    sim_.costs = options.servers.costs;
    if (!hands_over_) return;
    sim_.prefill = {.threshold_tokens = balance.threshold_tokens,
                    .speed = options.servers.prefill_speed,
                    .bytes_per_token = format->bytes_per_token,
                    .link_bytes_per_second = options.servers.link_bytes_per_second,
                    .compute_share = format->compute_share};
  }

  absl::StatusOr<SizeProposal> Run(int prefill, int decode) {
    if (const int sum = prefill + decode; sum > most_) {  // in the same proportion
      prefill = hands_over_ ? std::max(1, prefill * most_ / sum) : 0;
      decode = std::max(1, most_ - prefill);
    }
    while (!Keeps(prefill, decode)) {
      if (prefill + decode >= most_) {
        return absl::FailedPreconditionError(absl::StrFormat(
            "%d prefill and %d decode servers keep the objective for %.3f of the requests, want %.3f",
            prefill, decode, Try(prefill, decode).within, options_.objective.share));
      }
      std::tie(prefill, decode) = More(prefill, decode);
    }
    for (bool fewer = true; fewer;) {
      fewer = false;
      while (decode > 1 && Keeps(prefill, decode - 1)) {
        --decode;
        fewer = true;
      }
      while (prefill > 1 && Keeps(prefill - 1, decode)) {
        --prefill;
        fewer = true;
      }
    }
    if (prefill + decode > most_) {
      return absl::FailedPreconditionError(
          absl::StrFormat("%d prefill and %d decode servers are needed", prefill, decode));
    }
    SizeProposal proposal{.trial = Try(prefill, decode)};
    if (decode > 1) proposal.one_decode_less = Try(prefill, decode - 1).within;
    if (prefill > 1) proposal.one_prefill_less = Try(prefill - 1, decode).within;
    return proposal;
  }

 private:
  bool Keeps(int prefill, int decode) { return Try(prefill, decode).within >= options_.objective.share; }

  // Of more servers of either role what helps more.
  std::pair<int, int> More(int prefill, int decode) {
    const auto grown = [](int n) { return n + std::max(1, n / 8); };
    if (!hands_over_) return {prefill, grown(decode)};
    const double by_prefill = Try(grown(prefill), decode).within;
    const double by_decode = Try(prefill, grown(decode)).within;
    if (std::abs(by_prefill - by_decode) < kAlike) return {grown(prefill), grown(decode)};
    return by_prefill > by_decode ? std::pair(grown(prefill), decode) : std::pair(prefill, grown(decode));
  }

  const SizeTrial& Try(int prefill, int decode) {
    const auto known = trials_.find({prefill, decode});
    if (known != trials_.end()) return known->second;
    tried_();
    sim_.replicas = decode;
    sim_.prefill.servers = prefill;
    SizeTrial trial{.prefill = prefill, .decode = decode, .run = Simulate(requests_, sim_)};
    size_t kept = 0;
    for (size_t i = 0; i < requests_.size(); ++i) {
      kept += trial.run.ttft[i] <= options_.objective.ttft && trial.run.itl[i] <= options_.objective.itl;
    }
    trial.within = static_cast<double>(kept) / static_cast<double>(requests_.size());
    return trials_.emplace(std::pair(prefill, decode), std::move(trial)).first->second;
  }

  const std::vector<SimRequest>& requests_;
  const SizeOptions& options_;
  const SizeTried tried_;
  const bool hands_over_;
  const int most_;
  SimOptions sim_;
  std::map<std::pair<int, int>, SizeTrial> trials_;
};

}  // namespace

absl::Status CheckReachable(const SizeDemand& demand, const SizeOptions& options,
                            const std::vector<SizeFormat>& formats) {
  const SimCosts& costs = options.servers.costs;
  const SizeObjective& objective = options.objective;
  const double least = costs.step + costs.per_sequence;
  if (objective.itl <= least) {
    return absl::FailedPreconditionError(
        absl::StrFormat("itl=%gs: a sequence that is alone has a token each %g s (--step-s and --sequence-s)",
                        objective.itl, least));
  }
  size_t late = 0;
  for (const SizeDemand::Prompt& prompt : demand.prompts) {
    double alone = PrefillAlone(costs, prompt.tokens, prompt.cached);
    for (const SizeFormat& format : formats) {
      const double bytes = format.bytes_per_token * static_cast<double>(prompt.tokens);
      const double made = PrefillAlone(costs, prompt.tokens, prompt.cached) / options.servers.prefill_speed;
      alone = std::min(alone, std::max(made, bytes / options.servers.link_bytes_per_second) +
                                  format.compute_share * PrefillAlone(costs, prompt.tokens, 0));
    }
    late += alone > objective.ttft;
  }
  const auto all = static_cast<double>(demand.prompts.size());
  // As a trial's share is compared.
  if ((all - static_cast<double>(late)) / all >= objective.share) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "ttft=%gs: %.3f of the prompts take longer on a server of their own (--token-s, --pair-s), and at most "
      "%.3f may",
      objective.ttft, static_cast<double>(late) / all, 1 - objective.share));
}

absl::StatusOr<SizeProposal> ProposeSize(const std::vector<SimRequest>& requests, const SizeOptions& options,
                                         const SizeBalance& balance, const std::optional<SizeFormat>& format,
                                         SizeTried tried) {
  // Also where the work is not a number.
  if (!(balance.prefill() <= kMostServers && balance.decode <= kMostServers)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("even work keeps %g prefill and %g decode servers busy, want at most %d",
                        balance.prefill(), balance.decode, kMostServers));
  }
  absl::StatusOr<SizeProposal> proposal =
      Search(requests, options, balance, format, tried)
          .Run(format ? AtLeastOne(balance.prefill()) : 0, AtLeastOne(balance.decode));
  if (!proposal.ok()) return proposal;
  proposal->format = format;
  proposal->balance = balance;
  return proposal;
}

absl::StatusOr<SizeProposal> ProposeBest(const std::vector<SimRequest>& requests, const SizeOptions& options,
                                         const std::vector<SizeBalance>& balances,
                                         const std::optional<SizeFormat>& format, SizeTried tried) {
  absl::StatusOr<SizeProposal> best = absl::InvalidArgumentError("no threshold to try");
  SizeOptions fewer = options;
  for (const SizeBalance& balance : balances) {
    // One that takes more than the best so far need not be looked for.
    if (best.ok()) fewer.most_servers = best->trial.servers();
    absl::StatusOr<SizeProposal> proposal = ProposeSize(requests, fewer, balance, format, tried);
    if (!best.ok() || (proposal.ok() && proposal->trial.servers() < best->trial.servers())) {
      best = std::move(proposal);
    }
  }
  return best;
}

}  // namespace aludel
