#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "runtime/tool/flag_set.h"
#include "server/bench/route/sim_replica.h"

namespace aludel {

// Flags of tools that simulate servers: what their steps take. Must outlive the FlagSet's Parse.
struct SimCostFlags {
  SimCosts costs;
  int64_t max_sequences = costs.max_sequences;

  void Declare(FlagSet* flags);
  absl::StatusOr<SimCosts> Checked() const;
};

}  // namespace aludel
