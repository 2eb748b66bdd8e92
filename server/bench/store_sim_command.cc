#include <cstdio>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "runtime/status_macros.h"
#include "runtime/tool/flag_set.h"
#include "server/bench/commands.h"
#include "server/bench/request_trace.h"
#include "server/bench/store/store_bound.h"
#include "server/bench/store/store_simulation.h"
#include "server/store/chunk_key.h"

namespace aludel {
namespace {

constexpr char kUsage[] =
    R"(aludel-bench store-sim plays a trace to a simulated prefix store with a memory and a disk: what a prompt waits for
its cache, what the formats lose, and how much of the prompts each device had. Each format alone under LRU and under
Belady's rule (which knows the future, and is no bound where there are several devices), and all of them as requests
that each ask for one: under the placement that a server has ("server"), and under its `placement: "lru"`
("server-lru"). Beside them what no store of these devices can do better ("bound", see store_bound.h), of each format
alone and of the requests as they ask. What is asked for in a format loses the same, found or computed.

  aludel-bench store-sim trace.jsonl --format p0:251:0.063:0 --format p0@1:24:0.182:0:0.5 --device memory:1e8:2e10
      --device disk:5e8:1e9

--format NAME:BYTES_A_TOKEN:NATS_A_TOKEN:DECODE_SECONDS_A_TOKEN, best first, and perhaps :SHARE of the requests (1);
those of a server are one embedded code and its cuts. --device NAME:BYTES:BYTES_A_SECOND, fastest first.)";

// Formats of a server's: their frames are made, if only of zeros.
constexpr double kMostServerBytes = 4096;

struct Flags {
  std::vector<std::string> traces;
  std::vector<std::string> formats;
  std::vector<std::string> devices;
  std::vector<std::string> policies;
  double prefill_tokens = 10000;
  int64_t requests = 0;
  int64_t chunk_tokens = kTraceBlock;
  int64_t min_requests = 1;
  int64_t seed = 1;
};

constexpr absl::string_view kAlone[] = {"lru", "belady", "bound"};
constexpr absl::string_view kAsAsked[] = {"bound", "server-lru", "server"};

// "NAME:NUMBER:..." with so many numbers, or `optional` more.
absl::StatusOr<std::vector<double>> Numbers(const std::string& text, size_t count, size_t optional,
                                            std::string* name) {
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
  if (numbers.size() < count || numbers.size() > count + optional) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\": want a name and ", count, " numbers, found ", numbers.size()));
  }
  *name = parts[0];
  return numbers;
}

absl::StatusOr<StoreSimOptions> ToOptions(const Flags& flags) {
  StoreSimOptions options{.prefill_tokens_per_second = flags.prefill_tokens,
                          .chunk_tokens = flags.chunk_tokens,
                          .min_requests = static_cast<uint32_t>(flags.min_requests),
                          .seed = static_cast<uint64_t>(flags.seed)};
  for (const std::string& text : flags.formats) {
    StoreSimFormat format;
    ALUDEL_ASSIGN_OR_RETURN(const std::vector<double> numbers, Numbers(text, 3, 1, &format.name));
    format.bytes_per_token = numbers[0];
    format.kl = numbers[1];
    format.decode_seconds = numbers[2];
    if (numbers.size() > 3) format.share = numbers[3];
    options.formats.push_back(format);
  }
  for (const std::string& text : flags.devices) {
    StoreSimDevice device;
    ALUDEL_ASSIGN_OR_RETURN(const std::vector<double> numbers, Numbers(text, 2, 0, &device.name));
    device.bytes = numbers[0];
    device.bytes_per_second = numbers[1];
    if (device.bytes_per_second == 0)
      return absl::InvalidArgumentError(absl::StrCat(text, ": reads nothing"));
    options.devices.push_back(device);
  }
  if (options.formats.empty() || options.devices.empty() || flags.traces.empty()) {
    return absl::InvalidArgumentError("a trace, a --format and a --device are needed (see --help)");
  }
  if (!(flags.prefill_tokens > 0))
    return absl::InvalidArgumentError("--prefill-tokens: want a number above 0");
  if (flags.min_requests < 1) return absl::InvalidArgumentError("--min-requests: want 1 or more");
  for (const std::string& policy : flags.policies) {
    if (absl::c_linear_search(kAlone, policy) || absl::c_linear_search(kAsAsked, policy)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--policy: \"", policy, "\" is none; want lru, belady, bound, server or server-lru"));
  }
  if (flags.chunk_tokens < kTraceBlock || flags.chunk_tokens % kTraceBlock != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--chunk-tokens: found ", flags.chunk_tokens, ", want a multiple of ", kTraceBlock));
  }
  if (!absl::c_any_of(options.formats, [](const StoreSimFormat& format) { return format.share > 0; })) {
    return absl::InvalidArgumentError("--format: no request asks for any: want a SHARE above 0");
  }
  return options;
}

// What a server can have.
absl::Status CheckServer(const StoreSimOptions& options) {
  if (options.devices.size() > 2) {
    return absl::InvalidArgumentError("--device: a server has a memory and a disk; ask for other policies");
  }
  if (options.formats.size() > size_t{kMaxPlanes}) {
    return absl::InvalidArgumentError(
        absl::StrCat("--format: a code and its cuts are ", kMaxPlanes, " formats at most"));
  }
  double before = kMostServerBytes;
  for (const StoreSimFormat& format : options.formats) {
    if (format.bytes_per_token > before) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--format ", format.name, ": of ", format.bytes_per_token,
          " bytes a token, a server's has at most ", before, ": cuts follow their code, the largest first"));
    }
    before = format.bytes_per_token;
  }
  return absl::OkStatus();
}

void Print(const std::string& name, const StoreSimResult& result) {
  absl::PrintF("%-18s %8.3f s %10.5f nats", name, result.mean_delay, result.mean_kl);
  for (const double share : result.hit_shares) absl::PrintF(" %7.1f %%", 100 * share);
  if (result.whole_hits + result.partial_hits > 0) {
    absl::PrintF(" | %5.1f %5.1f %%", 100 * result.whole_hits, 100 * result.partial_hits);
  }
  if (result.cuts > 0) absl::PrintF(" | %d cuts", result.cuts);
  if (result.written_bytes > 0) absl::PrintF(" | %.2f GB written", result.written_bytes / 1e9);
  absl::PrintF("\n");
  std::fflush(stdout);
}

absl::Status Run(const Flags& flags) {
  ALUDEL_ASSIGN_OR_RETURN(StoreSimOptions options, ToOptions(flags));
  const auto is_asked_for = [&](absl::string_view policy) {
    return flags.policies.empty() || absl::c_linear_search(flags.policies, policy);
  };
  if (is_asked_for("server") || is_asked_for("server-lru")) ALUDEL_RETURN_IF_ERROR(CheckServer(options));
  ALUDEL_ASSIGN_OR_RETURN(std::vector<TraceRequest> trace, LoadTrace(flags.traces[0]));
  if (flags.requests > 0 && trace.size() > static_cast<size_t>(flags.requests)) {
    trace.resize(static_cast<size_t>(flags.requests));
  }
  SpreadArrivals(1, &trace);
  absl::PrintF("%d requests; mean delay of a prompt, loss of a token, share of tokens found on",
               trace.size());
  for (const StoreSimDevice& device : options.devices) absl::PrintF(" %s", device.name);
  absl::PrintF(" | of prompts found whole, in part\n");
  const auto play = [&](absl::string_view policy, const std::vector<StoreSimFormat>& formats,
                        const std::string& name) {
    options.policy = std::string(policy);
    options.formats = formats;
    const bool bound = options.policy == "bound";
    Print(absl::StrCat(policy, " ", name),
          bound ? BoundStore(trace, options) : SimulateStore(trace, options));
  };
  const std::vector<StoreSimFormat> formats = options.formats;
  for (const absl::string_view policy : kAlone) {
    for (const StoreSimFormat& format : formats) {
      if (!is_asked_for(policy)) continue;
      StoreSimFormat alone = format;
      alone.share = 1;
      play(policy, {alone}, format.name);
    }
  }
  for (const absl::string_view policy : kAsAsked) {
    if (formats.size() == 1 && absl::c_linear_search(kAlone, policy)) continue;  // has been told
    if (is_asked_for(policy)) play(policy, formats, "as asked");
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
  flags.AddList("policy", "NAME", &values.policies,
                "lru, belady, bound, server or server-lru; none: all of them");
  flags.Add("prefill-tokens", "N", &values.prefill_tokens, "computed in a second");
  flags.Add("requests", "N", &values.requests, "of the trace, from its start; 0: all");
  flags.Add("chunk-tokens", "N", &values.chunk_tokens,
            "of a server's step, and so of a stored chunk at most");
  flags.Add("min-requests", "N", &values.min_requests, "for a chunk, before a server writes it to disk");
  flags.Add("seed", "N", &values.seed, "of which request asks for which format");
  ALUDEL_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.help_asked()) {
    std::fputs(flags.Help().c_str(), stdout);
    return absl::OkStatus();
  }
  return Run(values);
}

}  // namespace aludel
