#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "runtime/calibrate/calibrate_job.h"

namespace aludel {

struct PackingBenchmarkOptions {
  CalibrateJob model;  // producer, consumers (whose template renders prompts), data, prompts, compute
  std::string codec;   // artifact directory
  std::string format;  // an aludel format of it
  int repeats = 5;
};

// What all frames took under one packing; medians over the repeats.
struct PackingTimes {
  std::string packing;
  double bytes_per_token = 0;  // of payloads, without headers
  double encode_seconds = 0;   // a token
  double decode_seconds = 0;   // a token
};

struct PackingBenchmark {
  int64_t tokens = 0;
  int64_t frames = 0;
  double symbols_per_token = 0;
  // Bytes a token with one ideal table a latent, of these very symbols, and bits below symbols as they are: no
  // order-0 code takes fewer.
  double entropy_bytes = 0;
  std::vector<PackingTimes> packings;  // fixed, deflate, rans and, in builds that have it, video
};

// The codes that a format's encoder makes of prompts, under every packing: each must give them back. Scales of rans are the
// artifact's, or where it has none fitted to these very codes. One thread; `progress` as in BenchmarkCoders.
absl::StatusOr<PackingBenchmark> BenchmarkPackings(
    const PackingBenchmarkOptions& options, Device* device,
    const std::function<bool(int64_t done, int64_t total)>& progress);

// Of a link: below it `coded` delivers sooner than `plain` where one frame is coded, sent and decoded after the
// other, in bits a second. 0: never; infinity: always.
double WinsBelow(const PackingTimes& coded, const PackingTimes& plain);

}  // namespace aludel
