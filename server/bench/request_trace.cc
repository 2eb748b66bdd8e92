#include "server/bench/request_trace.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int64_t kMaxTokens = 10'000'000;

absl::StatusOr<TraceRequest> Read(const std::string& line) {
  const auto entry = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!entry.is_object() || !entry.contains("timestamp") || !entry["timestamp"].is_number()) {
    return absl::InvalidArgumentError("want a JSON object with a number \"timestamp\"");
  }
  const auto whole = [&entry](const char* name, int64_t otherwise) {
    const auto it = entry.find(name);
    return it != entry.end() && it->is_number_integer() ? it->get<int64_t>() : otherwise;
  };
  TraceRequest request{.arrival = entry["timestamp"].get<double>() / 1e3,
                       .input_tokens = std::clamp<int64_t>(whole("input_length", 0), 0, kMaxTokens),
                       .output_tokens = std::max<int64_t>(0, whole("max_tokens", whole("output_length", 0)))};
  if (const auto prompt = entry.find("prompt"); prompt != entry.end() && prompt->is_string()) {
    request.prompt = prompt->get<std::string>();
  }
  if (request.prompt.empty() && request.input_tokens == 0) {
    return absl::InvalidArgumentError("want \"prompt\" or \"input_length\"");
  }
  if (const auto ids = entry.find("hash_ids"); ids != entry.end() && ids->is_array()) {
    for (const auto& id : *ids) {
      if (!id.is_number_integer()) return absl::InvalidArgumentError("\"hash_ids\" wants integers");
      request.blocks.push_back(id.get<int64_t>());
    }
  }
  return request;
}

}  // namespace

absl::StatusOr<std::vector<TraceRequest>> LoadTrace(const std::string& path) {
  std::ifstream in(path);
  if (!in.is_open()) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  std::vector<TraceRequest> trace;
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    if (line.empty()) continue;
    absl::StatusOr<TraceRequest> request = Read(line);
    if (!request.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ":", number, ": ", request.status().message()));
    }
    request->line = number;
    trace.push_back(*std::move(request));
  }
  if (trace.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": holds no requests"));
  std::stable_sort(trace.begin(), trace.end(),
                   [](const TraceRequest& a, const TraceRequest& b) { return a.arrival < b.arrival; });
  const double first = trace.front().arrival;
  for (TraceRequest& request : trace) request.arrival -= first;
  return trace;
}

void SpreadArrivals(uint64_t seed, std::vector<TraceRequest>* trace) {
  std::map<double, double> next;  // by arrival
  for (const TraceRequest& request : *trace) next[request.arrival] = request.arrival;
  for (auto it = next.begin(); it != next.end(); ++it) {
    const auto after = std::next(it);
    if (after != next.end()) it->second = after->first;
  }
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> share(0, 1);
  for (TraceRequest& request : *trace) {
    request.arrival += share(random) * (next[request.arrival] - request.arrival);
  }
  std::stable_sort(trace->begin(), trace->end(),
                   [](const TraceRequest& a, const TraceRequest& b) { return a.arrival < b.arrival; });
}

}  // namespace aludel
