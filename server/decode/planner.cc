#include "server/decode/planner.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace aludel {
namespace {

bool Contains(absl::Span<const std::string> all, const std::string& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

Plan Local(const char* reason) { return Plan{.reason = reason}; }

// Indices of the targets to consider, best first.
std::vector<size_t> Order(absl::Span<const PlanTarget> targets, const std::vector<std::string>& preferred) {
  std::vector<size_t> order;
  for (const std::string& name : preferred) {
    for (size_t i = 0; i < targets.size(); ++i) {
      if (targets[i].name == name) order.push_back(i);
    }
  }
  // None asked for, or none of them known here: our own order.
  if (order.empty()) {
    order.resize(targets.size());
    std::iota(order.begin(), order.end(), size_t{0});
  }
  return order;
}

}  // namespace

absl::StatusOr<Plan> MakePlan(const PlannerOptions& options, absl::Span<const std::string> formats,
                              absl::Span<const PlanTarget> targets, const PlanRequest& request) {
  const bool forced = !request.format.empty();
  if (forced && !Contains(formats, request.format)) {
    return absl::InvalidArgumentError(
        absl::StrCat("format: found \"", request.format, "\", want one of ", absl::StrJoin(formats, ", ")));
  }
  const Fidelity fidelity = request.fidelity.value_or(forced ? Fidelity::kCoded : options.fidelity);
  if (fidelity == Fidelity::kExact) {
    if (!forced) return Local("fidelity");
    return absl::InvalidArgumentError(
        absl::StrCat("format: found \"", request.format, "\" with fidelity exact, want no format"));
  }
  const int64_t handed_over = request.prompt_tokens - options.native_tail_tokens;
  if (handed_over < 1 || (!forced && request.prompt_tokens < options.min_remote_tokens)) {
    return Local("short_prompt");
  }
  const std::string& wanted = forced ? request.format : options.format;
  bool any_ready = false;
  for (const size_t i : Order(targets, request.targets)) {
    if (!targets[i].ready) continue;
    any_ready = true;
    if (targets[i].formats.empty()) continue;
    if (!wanted.empty() && !Contains(targets[i].formats, wanted)) continue;
    return Plan{.remote = true,
                .target = i,
                .format = wanted.empty() ? targets[i].formats.front() : wanted,
                .handed_over_tokens = handed_over,
                .reason = forced ? "forced" : "coded"};
  }
  return Local(any_ready ? "no_format" : "no_target");
}

}  // namespace aludel
