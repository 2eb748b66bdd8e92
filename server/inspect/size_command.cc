#include "server/inspect/size_command.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/inspect/inspect_text.h"
#include "runtime/status_macros.h"
#include "runtime/tool/flag_set.h"
#include "runtime/tool/progress.h"
#include "server/bench/request_trace.h"
#include "server/bench/route/sim_cost_flags.h"
#include "server/inspect/size_report.h"
#include "server/inspect/size_search.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

constexpr char kUsage[] =
    R"(aludel-inspect size says how many prefill and decode servers of a model a trace needs for an objective, from which prompt
length on prefill servers pay, and what runs out first.

  aludel-inspect size --model MODEL --codec CODEC --trace trace.jsonl --objective ttft=2s,itl=50ms --link-gbps 10
  aludel-inspect size --model MODEL --trace trace.jsonl --objective ttft=5s --token-s 1.2e-4 --format "int8 65536 0"

Equations bound the servers of even work from below for every format: work a second over what one server does, and of its link
up to --link-cap, which the simulator may go beyond. The simulator of
aludel-bench route-sim, which runs the gateway's own policy, then finds the fewest that keep the objective for --share of the
requests, without prefill servers, and with the format that the equations prefer and some thresholds; the fewest servers are proposed.
The costs are a decode server's: aludel-bench engine --model MODEL measures them (seconds of a token of prefill, of a step, and of
each sequence in it). A format's compute share is what its handoff leaves to the decode server, of a whole prefill; the one
shown is its recomputed layers over all, and aludel-bench codec measures what reconstruction takes besides.
TRACE: JSON lines with "timestamp" (ms), "input_length", "output_length" and "hash_ids", one for each 512 tokens.)";

struct Flags {
  std::string model;
  std::string codec;
  std::string trace;
  std::string objective = "ttft=2s,itl=50ms";
  double share = 0.9;
  std::vector<std::string> formats;
  int64_t requests = 0;
  double speed = 1;
  double prefill_speed = 1;
  double link_gbps = 10;
  double link_cap = 0.8;
  int64_t gateways = 2;
  int64_t most_servers = 0;
  int64_t seed = 1;
  SimCostFlags costs;
  bool as_json = false;
};

void Declare(FlagSet* flags, Flags* values) {
  flags->Add("model", "DIR", &values->model, "whose cache is handed over");
  flags->Add("codec", "DIR", &values->codec, "an artifact, whose formats are compared beside raw");
  flags->Add("trace", "FILE", &values->trace, "requests");
  flags->Add("objective", "TEXT", &values->objective, "wanted times to the first token and between tokens");
  flags->Add("share", "N", &values->share, "of the requests that shall keep to both");
  flags->AddList("format", "TEXT", &values->formats,
                 "compare only these: a name, or \"NAME BYTES SHARE\" (bytes for a token, compute share)");
  flags->Add("requests", "N", &values->requests, "of the trace, from its start; 0: all");
  flags->Add("speed", "N", &values->speed, "play the trace N times as fast");
  flags->Add("prefill-speed", "N", &values->prefill_speed, "of a prefill server, times a decode server's");
  flags->Add("link-gbps", "N", &values->link_gbps, "of each prefill server, 1e9 bits a second");
  flags->Add("link-cap", "N", &values->link_cap, "of that, at most, in the equations");
  flags->Add("gateways", "N", &values->gateways, "that share nothing");
  flags->Add("max-servers", "N", &values->most_servers,
             "of both roles; 0: four times what the equations take");
  flags->Add("seed", "N", &values->seed, "of the simulation");
  values->costs.Declare(flags);
  flags->Add("json", &values->as_json, "print JSON, for scripts");
}

absl::StatusOr<SizeOptions> OptionsOf(const Flags& flags) {
  if (flags.model.empty()) return absl::InvalidArgumentError("--model is needed (see --help)");
  if (flags.trace.empty()) return absl::InvalidArgumentError("--trace is needed (see --help)");
  if (!(flags.share > 0 && flags.share <= 1) || !(flags.link_cap > 0 && flags.link_cap <= 1)) {
    return absl::InvalidArgumentError("want --share and --link-cap above 0 and at most 1");
  }
  for (const double value : {flags.speed, flags.prefill_speed, flags.link_gbps}) {
    if (!(value > 0 && std::isfinite(value))) {
      return absl::InvalidArgumentError("want --speed, --prefill-speed and --link-gbps above 0, and finite");
    }
  }
  if (flags.requests < 0 || flags.gateways < 1 || flags.gateways > 1000 || flags.most_servers < 0 ||
      flags.most_servers > kMostServers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "want no negative --requests, --gateways from 1 to 1000 and --max-servers from 0 to ", kMostServers));
  }
  SizeOptions options{.servers = {.prefill_speed = flags.prefill_speed,
                                  .link_bytes_per_second = flags.link_gbps * 1e9 / 8,
                                  .link_cap = flags.link_cap},
                      .gateways = static_cast<int>(flags.gateways),
                      .most_servers = static_cast<int>(flags.most_servers),
                      .seed = static_cast<uint64_t>(flags.seed)};
  ALUDEL_ASSIGN_OR_RETURN(options.objective, ParseSizeObjective(flags.objective));
  options.objective.share = flags.share;
  ALUDEL_ASSIGN_OR_RETURN(options.servers.costs, flags.costs.Checked());
  return options;
}

absl::StatusOr<std::vector<SimRequest>> RequestsOf(const Flags& flags) {
  ALUDEL_ASSIGN_OR_RETURN(std::vector<TraceRequest> trace, LoadTrace(flags.trace));
  if (flags.requests > 0 && trace.size() > static_cast<size_t>(flags.requests)) {
    trace.resize(static_cast<size_t>(flags.requests));
  }
  SpreadArrivals(static_cast<uint64_t>(flags.seed), &trace);
  if (trace.empty() || trace.back().arrival <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(flags.trace, ": want requests at two moments at least, for a rate"));
  }
  for (TraceRequest& request : trace) request.arrival /= flags.speed;
  return ToSimRequests(trace);
}

absl::Status Run(const Flags& flags) {
  ALUDEL_ASSIGN_OR_RETURN(const SizeOptions options, OptionsOf(flags));
  ALUDEL_ASSIGN_OR_RETURN(std::vector<SizeFormat> formats, FormatsOf(flags.model, flags.codec));
  if (!flags.formats.empty()) {
    std::vector<SizeFormat> wanted;
    for (const std::string& text : flags.formats) {
      ALUDEL_ASSIGN_OR_RETURN(wanted.emplace_back(), ParseSizeFormat(text, formats));
    }
    formats = std::move(wanted);
  }
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<SimRequest> requests, RequestsOf(flags));
  const SizeDemand demand = DemandOf(requests);
  ALUDEL_RETURN_IF_ERROR(CheckReachable(demand, options, formats));
  const SizeBalance alone = BalanceAlone(demand, options.servers, options.objective);
  std::vector<SizeBound> bounds;
  std::vector<SizeBalance> balances;  // of the format that takes the fewest
  const SizeFormat* best = nullptr;
  for (const SizeFormat& format : formats) {
    std::vector<SizeBalance> its = Balances(demand, options.servers, options.objective, format);
    bounds.push_back({format, its.front()});
    if (best != nullptr && its.front().servers() >= balances.front().servers()) continue;
    best = &format;
    balances = std::move(its);
  }
  ProgressBar bar;
  int64_t runs = 0;
  const auto tried = [&] {
    ++runs;
    bar.Update("runs", runs, runs + 1);
  };
  std::vector<SizeProposal> proposals;
  const auto keep = [&proposals](absl::StatusOr<SizeProposal> proposal) {
    if (proposal.ok()) proposals.push_back(*std::move(proposal));
    return proposal.status();
  };
  // One of the two may be out of reach.
  const absl::Status without = keep(ProposeSize(requests, options, alone, std::nullopt, tried));
  const absl::Status with = keep(ProposeBest(requests, options, balances, *best, tried));
  bar.Break();
  if (proposals.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("without prefill servers: ", without.message(),
                                                      "; with them: ", with.message(), " (--max-servers)"));
  }
  const ordered_json report = DescribeSize(demand, options, alone, bounds, proposals);
  // A name may be anything.
  const std::string text = flags.as_json
                               ? report.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n"
                               : RenderText(report);
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace

absl::Status SizeCommand(int argc, char** argv) {
  Flags values;
  FlagSet flags(kUsage);
  Declare(&flags, &values);
  ALUDEL_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.help_asked()) {
    std::fputs(flags.Help().c_str(), stdout);
    return absl::OkStatus();
  }
  return Run(values);
}

}  // namespace aludel
