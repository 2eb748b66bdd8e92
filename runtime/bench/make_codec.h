#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace aludel {

// Artifacts with random weights for a producer and a consumer of any size, for benchmarks: what encoding,
// shipping and reconstruction cost depends on shapes alone. Answers over such codes are nonsense.

struct MakeCodecOptions {
  std::string producer, consumer;  // models, as ModelPath::Parse takes them
  std::string out;                 // artifact directory, new or an artifact of this producer
  std::string preset = "aludel";   // or "scd", whose shape is the published one: the next four are not its
  int recomputed_layers = 2;
  double bytes_per_token = 0;   // upper bound, headers aside; 0: 1/16 of raw
  int group_layers = 0;         // see AludelOptions
  double compute_share = 0.04;  // the same: bounds the rank, sets the width
  uint64_t seed = 1;
};

// What came out of it: groups, rank and width of preset aludel.
struct MadeCodec {
  std::string format;
  int groups = 0;
  int group_layers = 0;
  int64_t rank = 0;   // of each group, in latents of four bits
  int64_t width = 0;  // of each group's hidden layer
  double bytes_per_token = 0;
};

// Writes the format aludel-pN of preset aludel, fixed bit widths, or the format scd, its Patch layers
// evenly spread, where calibration would put it.
absl::StatusOr<MadeCodec> MakeCodec(const MakeCodecOptions& options);

}  // namespace aludel
