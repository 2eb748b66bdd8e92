#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/random/random.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/gateway/access/line_budget.h"
#include "server/observe/metrics.h"
#include "server/pool/work_pool.h"

namespace aludel {

// Prompts of the traffic as JSON lines {"model": ..., "ids": [...]}, which aludel-calibrate and aludel-eval read, up
// to a size. The file is opened for each line, so it may be moved away or removed at any time; one that is made here only
// its owner can read. A prompt that cannot be written is counted and logged (once a second at most): no request fails or waits for
// it. Thread-safe.
class TrafficCapture {
 public:
  struct Options {
    std::string file;       // "": nothing is captured
    int64_t max_bytes = 0;  // of the file, with what was in it before
    double share = 1;       // of the prompts
  };
  TrafficCapture(Options options, Metrics* metrics);
  // Lines that wait are left out.
  ~TrafficCapture() = default;

  // Whether the file can be written now; it is made where it is not there.
  absl::Status Check() const;

  // Takes a prompt, or does not. `model` is the name that its request gave.
  void Take(const std::string& model, const std::vector<int32_t>& ids);

 private:
  // Whether there was room.
  absl::StatusOr<bool> Append(absl::string_view line) const;
  void Count(const char* outcome) const { prompts_.Add({{"outcome", outcome}}); }

  const Options options_;
  const CounterFamily prompts_;
  LineBudget fault_lines_{1};
  absl::Mutex mutex_;
  absl::BitGen random_ ABSL_GUARDED_BY(mutex_);
  std::optional<WorkPool> writer_;  // none where nothing is captured; last: its tasks use the others
};

}  // namespace aludel
