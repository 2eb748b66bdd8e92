#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

namespace aludel::cuda {

// Plans of cuBLASLt's products by everything that chooses them, `Key`. The algorithm is chosen once: of a large product it is the
// fastest of those that cuBLASLt offers, kept for the life of the cache; of small ones, and of large shapes behind the first
// kMostKept, it is cuBLASLt's first, which is forgotten when the cache is full. Plans are plain values, copied out under the lock, so
// that one may be forgotten while it is used. Thread-safe; other threads wait while algorithms are timed.
template <typename Key, typename Plan>
class PlanCache {
 public:
  explicit PlanCache(bool time_algorithms) : time_algorithms_(time_algorithms) {}

  // Of a product of `flops`. What has not been met is one of `make(most)`, at most so many plans with cuBLASLt's first before the
  // others, and `fastest` says which of several. Nothing where there is none; that is remembered too.
  std::optional<Plan> Find(const Key& key, double flops, absl::FunctionRef<std::vector<Plan>(int)> make,
                           absl::FunctionRef<size_t(absl::Span<const Plan>)> fastest) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = plans_.find(key);
    if (found != plans_.end()) return found->second.plan;
    if (plans_.size() >= kMaxPlans) std::erase_if(plans_, [](const auto& one) { return !one.second.kept; });
    const bool kept = flops >= kLargeFlops && kept_ < kMostKept;
    kept_ += kept ? 1 : 0;
    const std::vector<Plan> plans = make(kept && time_algorithms_ ? kMostAlgorithms : 1);
    std::optional<Plan> plan;
    if (!plans.empty()) plan = plans[plans.size() > 1 ? fastest(plans) : 0];
    plans_.emplace(key, Choice{plan, kept});
    return plan;
  }

 private:
  struct Choice {
    std::optional<Plan> plan;
    bool kept;  // for good
  };
  // Shapes come from step sizes, which the transformer rounds.
  static constexpr size_t kMaxPlans = 1024;
  static constexpr size_t kMostKept = 768;
  static constexpr int kMostAlgorithms = 8;  // that are timed
  // Smaller products take microseconds, whatever the algorithm.
  static constexpr double kLargeFlops = 1 << 30;

  const bool time_algorithms_;
  std::mutex mutex_;             // held while algorithms are timed
  std::map<Key, Choice> plans_;  // guarded by mutex_
  size_t kept_ = 0;              // of them for good, guarded by mutex_
};

}  // namespace aludel::cuda
