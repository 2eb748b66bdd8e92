#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "runtime/calibrate/aludel_job.h"
#include "runtime/tool/flag_set.h"

namespace aludel {

// Flags of aludel-calibrate --preset aludel that need a look before they are options; the others are read into the job.
struct AludelFlags {
  double bytes_per_token = 0;
  double max_kl = 0;
  std::string recomputed_layers = "auto";
  std::string packing = "rans";
  int64_t planes = AludelOptions().planes;
  bool repack = false;
  std::string encoder_for = "consumers";
  std::string allocation = "waterfill";
  int64_t group_layers = 0;
  int64_t tuning_batch = 0;
  bool share = false;
};

// Flags write into `job` and `raw`, which outlive them.
void AddAludelFlags(FlagSet* flags, AludelJob* job, AludelFlags* raw);

// InvalidArgument, naming the flags, where they make no sense or exclude each other.
absl::Status ReadAludelFlags(const AludelFlags& raw, int64_t seed, AludelJob* job);

}  // namespace aludel
