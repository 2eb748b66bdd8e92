#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "kernels/cuda/gemm/lt_plan.h"
#include "kernels/row_class.h"

namespace aludel::cuda {

// Plans of cuBLASLt's products by everything that chooses them: `Key`, a tuple that begins with the rows. Of a large product the
// algorithm is the fastest of those that cuBLASLt offers, timed when the first product of its class of rows (row_class.h) is met;
// the others of the class take the same one where they can, for the life of the cache. Of small products, and of large ones behind
// the first kMostClasses, it is cuBLASLt's first. Plans are plain values, copied out under the lock, so that one may be forgotten while
// it is used. Thread-safe; other threads wait while algorithms are timed.
template <typename Key>
class PlanCache {
 public:
  // `handle` must outlive it.
  PlanCache(cublasLtHandle_t handle, bool time_algorithms)
      : handle_(handle), time_algorithms_(time_algorithms) {}

  // Of a product of `flops`, which describe() makes a plan of, but for the algorithm; `fastest` says which of several plans is.
  // Nothing where cuBLASLt has no algorithm; that is remembered, too.
  std::optional<LtPlan> Find(const Key& key, double flops, const LtAlignment& alignment,
                             absl::FunctionRef<std::optional<LtPlan>()> describe,
                             absl::FunctionRef<size_t(absl::Span<const LtPlan>)> fastest) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = plans_.find(key);
    if (found != plans_.end()) return found->second;
    if (plans_.size() >= kMostPlans) plans_.clear();
    std::optional<LtPlan> plan = describe();
    if (plan.has_value()) {
      plan = flops >= kLargeFlops && time_algorithms_ ? Large(key, *plan, alignment, fastest)
                                                      : First(*plan, alignment);
    }
    plans_.emplace(key, plan);
    return plan;
  }

 private:
  // Prompts bring many numbers of rows.
  static constexpr size_t kMostPlans = 1024;
  static constexpr size_t kMostClasses = 768;
  static constexpr int kMostAlgorithms = 8;  // that are timed
  // Smaller products take microseconds, whatever the algorithm.
  static constexpr double kLargeFlops = 1 << 30;

  std::optional<LtPlan> First(const LtPlan& plan, const LtAlignment& alignment) const {
    const std::vector<LtPlan> plans = OfferedPlans(handle_, plan, alignment, 1);
    if (plans.empty()) return std::nullopt;
    return plans[0];
  }

  // With mutex_ held.
  std::optional<LtPlan> Large(Key key, LtPlan plan, const LtAlignment& alignment,
                              absl::FunctionRef<size_t(absl::Span<const LtPlan>)> fastest) {
    std::get<0>(key) = RowClass(std::get<0>(key));
    const auto known = algorithms_.find(key);
    if (known != algorithms_.end()) {
      plan.algorithm = known->second;
      return CanRun(handle_, plan) ? plan : First(plan, alignment);
    }
    if (algorithms_.size() >= kMostClasses) return First(plan, alignment);
    const std::vector<LtPlan> plans = OfferedPlans(handle_, plan, alignment, kMostAlgorithms);
    if (plans.empty()) return std::nullopt;
    const LtPlan& chosen = plans[plans.size() > 1 ? fastest(plans) : 0];
    algorithms_.emplace(key, chosen.algorithm);
    return chosen;
  }

  const cublasLtHandle_t handle_;
  const bool time_algorithms_;
  std::mutex mutex_;                                // held while algorithms are timed
  std::map<Key, std::optional<LtPlan>> plans_;      // guarded by mutex_
  std::map<Key, cublasLtMatmulAlgo_t> algorithms_;  // of classes, guarded by mutex_
};

}  // namespace aludel::cuda
