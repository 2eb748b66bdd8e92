#include "server/inspect/size_report.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "runtime/evaluate/score.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

constexpr char kNone[] = "none";

double Round(double x) { return std::round(x * 1e3) / 1e3; }

// Of one role's servers: how many times the trace's requests they carry, by the equations.
double Headroom(double servers, double needed) { return needed > 0 ? Round(servers / needed) : 0; }

// What is used most.
std::string Bottleneck(const SizeBalance& balance, double prefill, double decode) {
  const auto use = [](double needed, double servers) { return servers > 0 ? needed / servers : 0; };
  const std::pair<double, const char*> uses[] = {{use(balance.decode, decode), "decode"},
                                                 {use(balance.prefill_compute, prefill), "prefill"},
                                                 {use(balance.link, prefill), "link"}};
  return std::max_element(std::begin(uses), std::end(uses),
                          [](const auto& a, const auto& b) { return a.first < b.first; })
      ->second;
}

double LinkUse(const SizeOptions& options, double bytes_per_second, int prefill) {
  return prefill == 0 ? 0 : Round(bytes_per_second / (prefill * options.servers.link_bytes_per_second));
}

ordered_json BoundRow(const std::string& name, const SizeFormat& format, const SizeBalance& balance) {
  return {{"format", name},
          {"token_bytes_sent", format.bytes_per_token},
          {"compute_share", Round(format.compute_share)},
          {"handed_over", Round(balance.offloaded)},
          {"prefill", Round(balance.prefill_compute)},
          {"link", Round(balance.link)},
          {"decode", Round(balance.decode)},
          {"link_gbps", Round(balance.link_bytes_per_second * 8 / 1e9)},
          {"bottleneck", Bottleneck(balance, std::ceil(balance.prefill()), std::ceil(balance.decode))}};
}

ordered_json Proposed(const SizeProposal& proposal, const SizeOptions& options) {
  const SizeTrial& trial = proposal.trial;
  const SizeBalance& balance = proposal.balance;
  ordered_json result = {{"format", proposal.format ? proposal.format->name : kNone},
                         {"prefill_servers", trial.prefill},
                         {"decode_servers", trial.decode}};
  if (proposal.format) {
    result["offload_above_tokens"] = balance.threshold_tokens;
    result["link_use"] = LinkUse(options, trial.run.link_bytes_per_second, trial.prefill);
    result["times_the_trace_prefill"] = Headroom(trial.prefill, balance.prefill_compute);
    if (balance.link > 0) result["times_the_trace_link"] = Headroom(trial.prefill, balance.link);
  }
  result["times_the_trace_decode"] = Headroom(trial.decode, balance.decode);
  result["bottleneck"] = Bottleneck(balance, trial.prefill, trial.decode);
  return result;
}

ordered_json Simulated(const SizeProposal& proposal) {
  const SimResult& run = proposal.trial.run;
  ordered_json result = {
      {"within_objective", Round(proposal.trial.within)},
      {"ttft_s_p50", Round(Percentile(run.ttft, .5))},
      {"ttft_s_p90", Round(Percentile(run.ttft, .9))},
      {"ttft_s_p99", Round(Percentile(run.ttft, .99))},
      {"itl_s_p90", Round(Percentile(run.itl, .9))},
      {"hits", Round(static_cast<double>(run.cached_tokens) / static_cast<double>(run.prompt_tokens))}};
  if (proposal.one_prefill_less) result["with_one_prefill_server_less"] = Round(*proposal.one_prefill_less);
  if (proposal.one_decode_less) result["with_one_decode_server_less"] = Round(*proposal.one_decode_less);
  return result;
}

}  // namespace

const SizeProposal& Smallest(const std::vector<SizeProposal>& proposals) {
  return *std::min_element(proposals.begin(), proposals.end(), [](const auto& a, const auto& b) {
    return a.trial.servers() < b.trial.servers();
  });
}

ordered_json DescribeSize(const SizeDemand& demand, const SizeOptions& options, const SizeBalance& alone,
                          const std::vector<SizeBound>& bounds, const std::vector<SizeProposal>& proposals) {
  double tokens = 0, cached = 0;
  for (const SizeDemand::Prompt& prompt : demand.prompts) {
    tokens += static_cast<double>(prompt.tokens);
    cached += static_cast<double>(prompt.cached);
  }
  ordered_json report;
  report["trace"] = {{"requests", demand.prompts.size()},
                     {"requests_a_second", Round(demand.requests_per_second())},
                     {"prompt_tokens_a_second", Round(tokens / demand.seconds)},
                     {"in_caches_at_best", Round(cached / tokens)},
                     {"answer_tokens_a_second", Round(demand.output_tokens / demand.seconds)}};
  report["objective"] = {{"ttft_s", options.objective.ttft},
                         {"itl_s", options.objective.itl},
                         {"share", options.objective.share}};
  report["busy_servers_at_least"] = ordered_json::array({BoundRow(kNone, {}, alone)});
  for (const SizeBound& bound : bounds) {
    report["busy_servers_at_least"].push_back(BoundRow(bound.format.name, bound.format, bound.balance));
  }
  const SizeProposal& best = Smallest(proposals);
  report["proposal"] = Proposed(best, options);
  report["simulated"] = Simulated(best);
  for (const SizeProposal& proposal : proposals) {
    if (&proposal == &best) continue;
    report["instead"] = {{"format", proposal.format ? proposal.format->name : kNone},
                         {"prefill_servers", proposal.trial.prefill},
                         {"decode_servers", proposal.trial.decode}};
  }
  return report;
}

}  // namespace aludel
