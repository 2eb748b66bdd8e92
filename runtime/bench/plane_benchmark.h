#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "runtime/calibrate/calibrate_job.h"

namespace aludel {

// How a token's K, or V, of one layer becomes a plane of a picture: each head a block of rows, heads in a grid.
struct HeadTiling {
  int head_rows = 1;     // of a block; it is head_dim / head_rows wide
  int grid_columns = 1;  // heads beside each other
};

struct TilingTimes {
  HeadTiling tiling;
  double bits_per_value = 0;  // of slices, without scales
  double encode_seconds = 0;  // a token
  double decode_seconds = 0;  // a token
};

struct PlaneBenchmark {
  int64_t tokens = 0;
  int64_t values_per_token = 0;
  double entropy_bits = 0;  // a value, with one ideal table for each layer's K and V
  double scale_bytes = 0;   // a token
  std::vector<TilingTimes> tilings;
};

// The cache of a model (job.producer, prompts of job.data as job.consumers' template writes them) as int8 codes with a scale for each
// token, layer and kind, in KVFetcher's layout (arXiv 2602.09725): a token is a picture, three neighboring layers are its
// planes (4:4:4), K and V are sequences of their own, and heads are tiled, here in every way that block sides of powers of
// two allow. Lossless HEVC; Internal where it does not give back what it got. One thread. `progress` as in BenchmarkCoders.
absl::StatusOr<PlaneBenchmark> BenchmarkPlanes(
    const CalibrateJob& job, Device* device,
    const std::function<bool(int64_t done, int64_t total)>& progress);

}  // namespace aludel
