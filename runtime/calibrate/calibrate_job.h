#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/device.h"
#include "runtime/calibrate/scd/calibrate.h"
#include "runtime/codec/artifact/weight_file.h"

namespace aludel {

// aludel-calibrate without its command line: from model directories and prompts to an artifact directory.
struct CalibrateJob {
  std::string producer;                // model, as ModelPath::Parse takes it
  std::vector<std::string> consumers;  // likewise; the encoder is fitted with the first
  std::string data;                    // question file
  std::string out;                     // artifact directory, replaced as a whole when everything is done
  bool add = false;                    // keep the encoders in `out` and fit decoders for `consumers` only
  int64_t prompts = 0;                 // 0: all
  double held_out = 0.1;               // fraction of prompts that choose and measure but do not fit
  DType compute = DType::kF32;
  MatrixStorage storage = MatrixStorage::kBf16;
  int max_control = 0;  // controls with 0 .. this many recomputed layers
  ScdOptions scd;
};

// Writes the formats "scd" and "reuse-only". Prints its plan and findings to stdout, progress to stderr. An
// interrupted job leaves `out` as it was.
absl::Status RunCalibrateJob(const CalibrateJob& job, Device* device);

}  // namespace aludel
