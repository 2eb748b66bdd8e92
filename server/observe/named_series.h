#pragma once

#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/observe/metrics.h"

namespace aludel {

// Series by names that come and go. Those of a name that is none any more are told once more, with their last counts, and
// then dropped; likewise what a request that outlived its name still wrote. Thread-safe.
class NamedSeries {
 public:
  // Every value of `label` is such a name. `metrics` must outlive it.
  NamedSeries(Metrics* metrics, std::string label) : metrics_(metrics), label_(std::move(label)) {}

  // There are these now. To be called once a Render.
  void Set(const std::set<std::string>& names) {
    absl::MutexLock lock(&mutex_);
    std::set<std::string> going;
    for (const std::string& value : metrics_->Values(label_)) {
      if (names.contains(value)) continue;
      if (going_.contains(value)) {
        metrics_->Drop(label_, value);
      } else {
        going.insert(value);
      }
    }
    going_ = std::move(going);
  }

 private:
  Metrics* const metrics_;
  const std::string label_;
  absl::Mutex mutex_;
  std::set<std::string> going_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
