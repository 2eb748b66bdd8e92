#include <cstdio>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "runtime/status_macros.h"
#include "runtime/tool/flag_set.h"
#include "server/bench/commands.h"
#include "server/bench/request_trace.h"
#include "server/bench/store/store_bound.h"
#include "server/bench/store/store_simulation.h"

namespace aludel {
namespace {

constexpr char kUsage[] =
    R"(aludel-bench store-sim plays a trace to a simulated prefix store with several devices and formats: what a prompt waits for
its cache, what the formats lose, and how much of the prompts each device had. Each format alone under LRU, under a decayed
count of uses ("score") and under Belady's rule (which knows the future, and is no bound where there are several
devices), beside what no store of this format can do better ("bound", see store_bound.h), and all of them placed by
utility, for each worth of quality: all at once ("utility"), and as a server does, move by move ("greedy").

  aludel-bench store-sim trace.jsonl --format raw:114688:0:0 --format scd:7168:0.01:2e-6 --device memory:8e9:2e10
      --device disk:64e9:2e9 --kl-seconds 0 --kl-seconds 0.001

--format NAME:BYTES_A_TOKEN:NATS_A_TOKEN:DECODE_SECONDS_A_TOKEN, best first; --device NAME:BYTES:BYTES_A_SECOND, fastest
first.)";

struct Flags {
  std::vector<std::string> traces;
  std::vector<std::string> formats;
  std::vector<std::string> devices;
  std::vector<std::string> kl_seconds;
  std::vector<std::string> policies;
  double prefill_tokens = 10000;
  double half_life = 600;
  int64_t requests = 0;
};

// "NAME:NUMBER:..." with so many numbers.
absl::StatusOr<std::vector<double>> Numbers(const std::string& text, size_t count, std::string* name) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  std::vector<double> numbers;
  for (size_t i = 1; i < parts.size(); ++i) {
    double number = 0;
    if (!absl::SimpleAtod(parts[i], &number) || !(number >= 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", text, "\": \"", parts[i], "\" is no number from 0 on"));
    }
    numbers.push_back(number);
  }
  if (numbers.size() != count) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\": want a name and ", count, " numbers"));
  }
  *name = parts[0];
  return numbers;
}

absl::StatusOr<StoreSimOptions> ToOptions(const Flags& flags) {
  StoreSimOptions options{.prefill_tokens_per_second = flags.prefill_tokens,
                          .half_life_seconds = flags.half_life};
  for (const std::string& text : flags.formats) {
    StoreSimFormat format;
    ALUDEL_ASSIGN_OR_RETURN(const std::vector<double> numbers, Numbers(text, 3, &format.name));
    format.bytes_per_token = numbers[0];
    format.kl = numbers[1];
    format.decode_seconds = numbers[2];
    options.formats.push_back(format);
  }
  for (const std::string& text : flags.devices) {
    StoreSimDevice device;
    ALUDEL_ASSIGN_OR_RETURN(const std::vector<double> numbers, Numbers(text, 2, &device.name));
    device.bytes = numbers[0];
    device.bytes_per_second = numbers[1];
    if (device.bytes_per_second == 0)
      return absl::InvalidArgumentError(absl::StrCat(text, ": reads nothing"));
    options.devices.push_back(device);
  }
  if (options.formats.empty() || options.devices.empty() || flags.traces.empty()) {
    return absl::InvalidArgumentError("a trace, a --format and a --device are needed (see --help)");
  }
  if (!(flags.prefill_tokens > 0) || !(flags.half_life > 0)) {
    return absl::InvalidArgumentError("--prefill-tokens and --half-life are above 0");
  }
  return options;
}

void Print(const std::string& name, const StoreSimResult& result) {
  absl::PrintF("%-28s %10.3f s %12.5f nats", name, result.mean_delay, result.mean_kl);
  for (const double share : result.hit_shares) absl::PrintF(" %7.1f %%", 100 * share);
  if (result.bound_share < 1) absl::PrintF("   %.4f of the bound", result.bound_share);
  absl::PrintF("\n");
  std::fflush(stdout);
}

absl::Status Run(const Flags& flags) {
  ALUDEL_ASSIGN_OR_RETURN(StoreSimOptions options, ToOptions(flags));
  ALUDEL_ASSIGN_OR_RETURN(std::vector<TraceRequest> trace, LoadTrace(flags.traces[0]));
  if (flags.requests > 0 && trace.size() > static_cast<size_t>(flags.requests)) {
    trace.resize(static_cast<size_t>(flags.requests));
  }
  SpreadArrivals(1, &trace);
  absl::PrintF("%d requests; mean delay of a prompt, loss of a token, found on", trace.size());
  for (const StoreSimDevice& device : options.devices) absl::PrintF(" %s", device.name);
  absl::PrintF("\n");
  const std::vector<StoreSimFormat> formats = options.formats;
  const auto is_asked_for = [&](const char* policy) {
    return flags.policies.empty() || absl::c_linear_search(flags.policies, policy);
  };
  for (const char* policy : {"lru", "score", "belady", "bound"}) {
    if (!is_asked_for(policy)) continue;
    options.policy = policy;
    for (const StoreSimFormat& format : formats) {
      options.formats = {format};
      const bool bound = options.policy == "bound";
      StoreSimResult result = bound ? BoundStore(trace, options) : SimulateStore(trace, options);
      // For Print: every use that the choice has is of the one format.
      if (bound) result.mean_kl = format.kl * absl::c_accumulate(result.hit_shares, 0.0);
      Print(absl::StrCat(policy, " ", format.name), result);
    }
  }
  options.formats = formats;
  for (const char* policy : {"utility", "greedy"}) {
    if (!is_asked_for(policy)) continue;
    options.policy = policy;
    for (const std::string& text : flags.kl_seconds) {
      std::string name;
      ALUDEL_ASSIGN_OR_RETURN(const std::vector<double> worth, Numbers(absl::StrCat("nat:", text), 1, &name));
      options.kl_seconds = worth[0];
      Print(absl::StrCat(policy, ", a nat ", text, " s"), SimulateStore(trace, options));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status StoreSimCommand(int argc, char** argv) {
  Flags values;
  FlagSet flags(kUsage);
  flags.AddArguments("TRACE", 1, &values.traces, "requests");
  flags.AddList("format", "TEXT", &values.formats, "a format that entries may have");
  flags.AddList("device", "TEXT", &values.devices, "where entries may be");
  flags.AddList("kl-seconds", "N", &values.kl_seconds, "what a nat of loss on one token is worth");
  flags.AddList("policy", "NAME", &values.policies,
                "lru, score, belady, bound, utility or greedy; none: all of them");
  flags.Add("prefill-tokens", "N", &values.prefill_tokens, "computed in a second");
  flags.Add("half-life", "N", &values.half_life, "seconds, of the count of an entry's uses");
  flags.Add("requests", "N", &values.requests, "of the trace, from its start; 0: all");
  ALUDEL_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.help_asked()) {
    std::fputs(flags.Help().c_str(), stdout);
    return absl::OkStatus();
  }
  if (values.kl_seconds.empty()) values.kl_seconds = {"0"};
  return Run(values);
}

}  // namespace aludel
