#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/calibrate/aludel/metric.h"
#include "runtime/calibrate/aludel/state_file.h"
#include "runtime/codec/aludel/weights.h"

namespace aludel {

// A consumer's side information, and its cache that this shall tell about.
struct SideTarget {
  const StateFile* states = nullptr;
  const std::vector<TargetMetric>* metrics = nullptr;  // [groups]
};

// S of weights.h [rank, hidden]: of H of layer `recomputed_layers` the directions that say most about K and V of all groups, in
// their metrics: reduced-rank regression (Izenman 1975), its moments summed over the consumers. At most `max_rows` of each
// one's states count. What each row gives has a mean square of 1 over them, and all values are bf16's.
absl::StatusOr<HostMatrix> FitSideDirections(absl::Span<const SideTarget> targets, int recomputed_layers,
                                             absl::Span<const AludelGroup> groups, int64_t rank, double ridge,
                                             int64_t max_rows);

// H of layer `layer` in rows first, first + stride, ..., or its `directions` where there are any, to `out`, rows of `columns`.
void ReadSide(const StateFile& states, int layer, const HostMatrix& directions, int64_t first, int64_t count,
              int64_t stride, float* out, int64_t columns);

}  // namespace aludel
