#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/tensor.h"
#include "runtime/model/model_path.h"

namespace aludel {

struct LoadBenchmark {
  int64_t bytes = 0;            // of the weight files
  double disk_seconds = 0;      // to read them cold, several reads in flight
  double memory_seconds = 0;    // to get as much memory from the kernel, on one thread
  double load_seconds = 0;      // to load the model, cold again
  int64_t start_rss_bytes = 0;  // resident before loading
  int64_t peak_rss_bytes = 0;   // of this process, by the time the model was there
};

// Drops the files of a model from the page cache, reads them as fast as the disk gives them, drops
// them again and loads the model on `device` ("cpu"). In between it takes and gives back as much memory as
// the model needs: a virtual machine whose host has taken free memory back pays for every page once, and that
// is not the loader's doing. FailedPrecondition where pages stay in the cache: the numbers would mean
// nothing. `progress` hears of all passes: their names, bytes done of all.
absl::StatusOr<LoadBenchmark> BenchmarkLoad(
    const ModelPath& path, const std::string& device, DType compute,
    const std::function<void(const char* stage, int64_t done, int64_t total)>& progress);

}  // namespace aludel
