#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/calibrate/aludel/state_file.h"
#include "runtime/calibrate/fit/linear_fit.h"
#include "runtime/codec/aludel/weights.h"

namespace aludel {

// The coordinates in which errors of a group's [K V] count alike: y' = ((y - mean) / scale) R. `scale` is one number
// per layer and kind, so that no layer counts for its units; R R^T is a sensitivity matrix (E[g g^T], g the gradient
// of the consumer's output in its cache), so that errors count as much as the output feels them. Without R every
// layer and kind counts the same.
struct TargetMetric {
  std::vector<float> mean;   // [outputs]
  std::vector<float> scale;  // [outputs]
  HostMatrix root;           // R [outputs, outputs], empty for the identity
  HostMatrix inverse;        // R^-T

  int64_t outputs() const { return static_cast<int64_t>(mean.size()); }
  // y [rows, outputs] -> y', in place.
  void Apply(float* y, int64_t rows) const;
  // Folds parts of the inverse map y = mean + scale R^-T y' (columns) into a matrix that gives y': w = R^-T w, ...
  void Turn(HostMatrix* w) const;
  // ... then w = scale w, row by row.
  void Unscale(HostMatrix* w) const;
};

// Which rows fits of moments read: all of them, or every n-th where that is enough.
struct RowStride {
  int64_t rows = 0;
  int64_t stride = 1;

  static RowStride Of(const StateFile& states, int64_t limit) {
    const int64_t stride = std::max<int64_t>(1, (states.rows() + limit - 1) / limit);
    return {(states.rows() + stride - 1) / stride, stride};
  }
};

// Mean and scale of the group's [K V].
TargetMetric MeasureMetric(const StateFile& states, const AludelGroup& group, int64_t max_rows);

// The group's [K V] of rows first, first + stride, ... in its metric, [count, outputs].
std::vector<float> ReadTargets(const StateFile& states, const TargetMetric& metric, const AludelGroup& group,
                               int64_t first, int64_t count, int64_t stride);

// Adds R for `sensitivity` [outputs, outputs] in the units of the cache, blended with the identity:
// (1 - blend) W + blend I at W's mean diagonal 1. A sample of gradients knows its leading directions only.
absl::Status AddSensitivity(const Moments& sensitivity, double blend, TargetMetric* metric);

}  // namespace aludel
