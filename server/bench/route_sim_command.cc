#include <cstdio>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/status_macros.h"
#include "runtime/tool/flag_set.h"
#include "runtime/tool/progress.h"
#include "server/bench/commands.h"
#include "server/bench/request_trace.h"
#include "server/bench/route/route_report.h"
#include "server/bench/route/route_simulation.h"
#include "server/bench/route/sim_cost_flags.h"

namespace aludel {
namespace {

constexpr char kUsage[] =
    R"(aludel-bench route-sim plays a trace to simulated servers, which batch continuously and keep prefixes, and routes it
with the gateway's own code: how many requests have their first token within the objective, how much of the prompts is in
caches, how even the work is, what a decision costs. TRACE: JSON lines with "timestamp" (ms), "input_length",
"output_length" and "hash_ids", one for each 512 tokens. Timestamps in coarse steps are spread, by the seed.

  aludel-bench route-sim trace.jsonl --replicas 8 --seeds 3 --html routes.html
  aludel-bench route-sim trace.jsonl --gateways 4 --stale-ms 1000 --policy prefix --policy least_ttft_exact
  aludel-bench route-sim trace.jsonl --change "900 fail 2 120" --change "1800 add" --change "2400 drain 0"

Policies: prefix, least_pending and round_robin are the gateway's; hash, dualmap, lmetric and least_ttft are published ones
with what the same gateways know; least_ttft_exact knows every queue and cache as it is.)";

struct Flags {
  std::vector<std::string> traces;
  std::vector<std::string> policies;
  std::vector<std::string> changes;
  int64_t replicas = 8;
  int64_t gateways = 1;
  int64_t seeds = 3;
  int64_t requests = 0;
  double speed = 1;
  double stale_ms = 0;
  double probe_ms = 200;
  int64_t reply_hints = 1;
  int64_t turn_aways = kMaxTurnAways;
  int64_t moves = 0;
  double move_margin = 0.1;
  double objective_ms = 5000;
  double max_ttft_ms = 0;
  std::string json;
  std::string html;
  SimCostFlags costs;
  int64_t prefill_servers = 0;
  int64_t threshold = 0;
  double prefill_speed = 1;
  double bytes_per_token = 0;
  double link_gbps = 0;
  double compute_share = 0;
};

void Declare(FlagSet* flags, Flags* values) {
  flags->AddArguments("TRACE", 1, &values->traces, "requests");
  flags->AddList("policy", "NAME", &values->policies, "to simulate (default: all)");
  flags->Add("replicas", "N", &values->replicas, "servers");
  flags->Add("gateways", "N", &values->gateways, "that share nothing");
  flags->Add("seeds", "N", &values->seeds, "runs of each policy");
  flags->Add("requests", "N", &values->requests, "of the trace, from its start; 0: all");
  flags->Add("speed", "N", &values->speed, "play the trace N times as fast");
  flags->Add("probe-ms", "N", &values->probe_ms, "between two reports of a server");
  flags->Add("stale-ms", "N", &values->stale_ms, "that a report takes to the gateways");
  flags->Add("reply-hints", "0|1", &values->reply_hints,
             "whether a reply reports its server's queue to its gateway");
  flags->Add(
      "turn-aways", "N", &values->turn_aways,
      "times that a server may send a request back for a longer queue than its gateway believed (prefix)");
  flags->Add("moves", "N", &values->moves,
             "times that a request that waits, and will be late, may move to another server, which gateways "
             "do not do");
  flags->Add("move-margin", "N", &values->move_margin,
             "of the objective: the gain for which it moves (without --prefill-servers)");
  flags->Add("slo-ttft-ms", "N", &values->objective_ms, "wanted time to first token");
  flags->Add("max-ttft-ms", "N", &values->max_ttft_ms,
             "refuse requests whose first token is predicted later (prefix); 0: none");
  flags->AddList("change", "TEXT", &values->changes,
                 "\"SECOND add\", \"SECOND fail SERVER SECONDS\" or \"SECOND drain SERVER\"");
  values->costs.Declare(flags);
  flags->Add("prefill-servers", "N", &values->prefill_servers,
             "beside the servers; 0: they prefill themselves");
  flags->Add("offload-tokens", "N", &values->threshold,
             "a prompt goes to a prefill server where its server's cache lacks more than N");
  flags->Add("prefill-speed", "N", &values->prefill_speed, "of a prefill server, times a server's");
  flags->Add("token-bytes", "N", &values->bytes_per_token, "that a prefill server sends for a token");
  flags->Add("link-gbps", "N", &values->link_gbps, "of each prefill server, 1e9 bits a second; 0: no bound");
  flags->Add("compute-share", "N", &values->compute_share,
             "of a prompt's prefill, which a handoff leaves to the server");
  flags->Add("json", "FILE", &values->json, "write the figures");
  flags->Add("html", "FILE", &values->html, "write a page with a plot");
}

absl::Status Check(const Flags& flags) {
  if (flags.traces.empty()) return absl::InvalidArgumentError("a trace is needed (see --help)");
  if (flags.replicas < 1 || flags.gateways < 1 || flags.seeds < 1 || flags.requests < 0 ||
      flags.turn_aways < 0 || flags.moves < 0 || !(flags.move_margin >= 0) || !(flags.speed > 0) ||
      !(flags.probe_ms > 0) || !(flags.stale_ms >= 0) || flags.prefill_servers < 0 || flags.threshold < 0 ||
      !(flags.max_ttft_ms >= 0) || !(flags.prefill_speed > 0) || !(flags.bytes_per_token >= 0) ||
      !(flags.link_gbps >= 0) || !(flags.compute_share >= 0) || flags.compute_share > 1) {
    return absl::InvalidArgumentError(
        "a number is out of its range: none is negative, counts are at least 1, and a share at most 1");
  }
  for (const std::string& policy : flags.policies) ALUDEL_RETURN_IF_ERROR(CheckSimPolicy(policy));
  return absl::OkStatus();
}

absl::Status Write(const std::string& path, const std::string& text) {
  std::ofstream out(path);
  out << text;
  out.close();
  return out.good() ? absl::OkStatus() : absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
}

absl::Status Run(const Flags& flags) {
  ALUDEL_ASSIGN_OR_RETURN(std::vector<TraceRequest> trace, LoadTrace(flags.traces[0]));
  if (flags.requests > 0 && trace.size() > static_cast<size_t>(flags.requests)) {
    trace.resize(static_cast<size_t>(flags.requests));
  }
  SimOptions options{.replicas = static_cast<int>(flags.replicas),
                     .gateways = static_cast<int>(flags.gateways),
                     .probe_seconds = flags.probe_ms / 1e3,
                     .stale_seconds = flags.stale_ms / 1e3,
                     .reply_hints = flags.reply_hints != 0,
                     .turn_aways = static_cast<int>(flags.turn_aways),
                     .moves = static_cast<int>(flags.moves),
                     .move_margin = flags.move_margin,
                     .objective_seconds = flags.objective_ms / 1e3,
                     .max_ttft_seconds = flags.max_ttft_ms / 1e3,
                     .prefill = {.servers = static_cast<int>(flags.prefill_servers),
                                 .threshold_tokens = flags.threshold,
                                 .speed = flags.prefill_speed,
                                 .bytes_per_token = flags.bytes_per_token,
                                 .compute_share = flags.compute_share}};
  if (flags.link_gbps > 0) options.prefill.link_bytes_per_second = flags.link_gbps * 1e9 / 8;
  ALUDEL_ASSIGN_OR_RETURN(options.costs, flags.costs.Checked());
  for (const std::string& text : flags.changes) {
    ALUDEL_ASSIGN_OR_RETURN(const SimChange change, ParseSimChange(text));
    options.changes.push_back(change);
  }
  // Requests would wait for ever.
  int64_t left = flags.replicas;
  std::set<size_t> drained;
  for (const SimChange& change : options.changes) {
    if (change.kind == SimChange::Kind::kAdd) ++left;
    if (change.kind == SimChange::Kind::kDrain) drained.insert(change.replica);
  }
  if (static_cast<int64_t>(drained.size()) >= left) {
    return absl::InvalidArgumentError("--change drains every server");
  }
  std::vector<RouteRuns> policies;
  for (const std::string& name : flags.policies) policies.push_back({.policy = name});
  double ideal = 0;
  ProgressBar bar;
  const int64_t total = flags.seeds * static_cast<int64_t>(policies.size());
  for (int64_t seed = 1, done = 0; seed <= flags.seeds; ++seed) {
    std::vector<TraceRequest> spread = trace;
    SpreadArrivals(static_cast<uint64_t>(seed), &spread);
    for (TraceRequest& request : spread) request.arrival /= flags.speed;
    const std::vector<SimRequest> requests = ToSimRequests(spread);
    ideal = IdealHits(requests);
    options.seed = static_cast<uint64_t>(seed);
    for (RouteRuns& policy : policies) {
      bar.Update("runs", done++, total);
      options.policy = policy.policy;
      policy.runs.push_back(Simulate(requests, options));
    }
  }
  bar.Break();
  nlohmann::ordered_json summary = SummarizeRoutes(policies, options.objective_seconds);
  summary["requests"] = trace.size();
  summary["ideal_hits"] = ideal;
  absl::PrintF("%d requests to %d servers through %d gateways, reports %.0f ms old; ideal hits %.3f\n",
               trace.size(), flags.replicas, flags.gateways, flags.stale_ms, ideal);
  std::fputs(DescribeRoutes(summary).c_str(), stdout);
  if (!flags.json.empty()) ALUDEL_RETURN_IF_ERROR(Write(flags.json, summary.dump(2) + "\n"));
  if (!flags.html.empty()) {
    ALUDEL_RETURN_IF_ERROR(Write(flags.html, RouteHtml(summary, policies, "Routing, simulated")));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RouteSimCommand(int argc, char** argv) {
  Flags values;
  FlagSet flags(kUsage);
  Declare(&flags, &values);
  ALUDEL_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.help_asked()) {
    std::fputs(flags.Help().c_str(), stdout);
    return absl::OkStatus();
  }
  if (values.policies.empty()) {
    values.policies = {"prefix", "least_ttft_exact", "least_ttft", "lmetric", "dualmap",
                       "hash",   "least_pending",    "round_robin"};
  }
  ALUDEL_RETURN_IF_ERROR(Check(values));
  return Run(values);
}

}  // namespace aludel
