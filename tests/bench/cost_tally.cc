#include "tests/bench/cost_tally.h"

#include <algorithm>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace aludel {
namespace {

// Of one kind that are printed and written.
constexpr int kShownOfOneKind = 3;

std::string Line(const RequestCost& cost) {
  return absl::StrFormat("%-44s %8d B %9.4f s %8.3f us/B %8.2f MB %7.0f B/B  %s", cost.kind, cost.bytes,
                         cost.seconds, 1e6 * cost.SecondsPerByte(),
                         static_cast<double>(cost.peak_bytes) / (1 << 20), cost.MemoryPerByte(), cost.detail);
}

}  // namespace

bool CostTally::IsRemarkable(const RequestCost& cost) const {
  if (!cost.broken.empty()) return true;
  for (const Ranking& ranking : rankings_) {
    const auto at = ranking.worst.find(cost.kind);
    if (at == ranking.worst.end() || ranking.measure(cost) > ranking.measure(at->second)) return true;
  }
  return false;
}

void CostTally::Add(const RequestCost& cost, absl::string_view text) {
  times_.push_back(static_cast<float>(cost.SecondsPerByte()));
  memory_.push_back(static_cast<float>(cost.MemoryPerByte()));
  for (Ranking& ranking : rankings_) {
    const double measured = ranking.measure(cost);
    const auto [at, fresh] = ranking.worst.try_emplace(cost.kind, cost);
    if (!fresh && measured > ranking.measure(at->second)) at->second = cost;
    if (measured <= ranking.most) continue;
    ranking.most = measured;
    Save(absl::StrCat(name_, "_worst_", ranking.file), cost, text);
  }
  if (cost.broken.empty()) return;
  ++broken_;
  if (broken_kinds_[cost.kind]++ >= kShownOfOneKind) return;
  std::printf("BROKEN  %s: %s\n", Line(cost).c_str(), cost.broken.c_str());
  std::fflush(stdout);
  Save(absl::StrCat(name_, "_broken_", broken_), cost, text);
}

void CostTally::Save(const std::string& file, const RequestCost& cost, absl::string_view text) const {
  if (directory_.empty()) return;
  const auto write = [&](const std::string& path, absl::string_view bytes) {
    std::unique_ptr<FILE, int (*)(FILE*)> out(std::fopen(path.c_str(), "wb"), &std::fclose);
    if (out != nullptr) std::fwrite(bytes.data(), 1, bytes.size(), out.get());
  };
  const std::string path = absl::StrCat(directory_, "/", file);
  write(absl::StrCat(path, ".txt"), absl::StrCat(Line(cost), "\n", cost.broken, "\n"));
  write(absl::StrCat(path, ".request"), text);
}

double CostTally::MedianOf(bool memory) const {
  std::vector<float> values = memory ? memory_ : times_;
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void CostTally::Print(int worst) const {
  const double median = MedianOf(/*memory=*/false);
  const double median_memory = MedianOf(/*memory=*/true);
  std::printf("%s: %zu requests; medians %.3f us and %.1f bytes of memory a byte; %d broke a bound\n",
              name_.c_str(), times_.size(), 1e6 * median, median_memory, broken_);
  for (const Ranking& ranking : rankings_) {
    std::printf("the most %s (* over %d times a median a byte):\n", ranking.title, kFlaggedRatio);
    std::vector<const RequestCost*> costs;
    for (const auto& [kind, cost] : ranking.worst) costs.push_back(&cost);
    std::sort(costs.begin(), costs.end(), [&](const RequestCost* a, const RequestCost* b) {
      return ranking.measure(*a) > ranking.measure(*b);
    });
    if (costs.size() > static_cast<size_t>(worst)) costs.resize(static_cast<size_t>(worst));
    for (const RequestCost* cost : costs) {
      const bool flagged = cost->SecondsPerByte() > kFlaggedRatio * median ||
                           cost->MemoryPerByte() > kFlaggedRatio * median_memory;
      std::printf("%s%s\n", flagged ? "* " : "  ", Line(*cost).c_str());
    }
  }
}

}  // namespace aludel
