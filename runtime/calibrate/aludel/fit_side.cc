#include "runtime/calibrate/aludel/fit_side.h"

#include <algorithm>
#include <cmath>

#include "kernels/check.h"
#include "runtime/calibrate/fit/dense.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int64_t kRows = 4096;  // at once

}  // namespace

void ReadSide(const StateFile& states, int layer, const HostMatrix& directions, int64_t first, int64_t count,
              int64_t stride, float* out, int64_t columns) {
  const int64_t hidden = states.layout().hidden, at = states.layout().h(layer);
  const bool all = directions.rows == 0;
  std::vector<float> h(all ? 0 : count * hidden);
  for (int64_t t = 0; t < count; ++t) {
    states.Read(first + t * stride, at, hidden, all ? out + t * columns : h.data() + t * hidden);
  }
  if (all) return;
  Sgemm(false, true, count, directions.rows, hidden, h.data(), hidden, directions.values.data(), hidden,
        /*beta=*/0, out, columns);
}

absl::StatusOr<HostMatrix> FitSideDirections(absl::Span<const SideTarget> targets, int recomputed_layers,
                                             absl::Span<const AludelGroup> groups, int64_t rank, double ridge,
                                             int64_t max_rows) {
  ALUDEL_CHECK(!targets.empty() && recomputed_layers >= 0);
  const int64_t hidden = targets.front().states->layout().hidden;
  Moments xx = Moments::Zeros(hidden, hidden);
  Moments told = Moments::Zeros(hidden, hidden);
  for (const SideTarget& target : targets) {
    const RowStride rows = RowStride::Of(*target.states, max_rows);
    std::vector<Moments> xy;
    for (const TargetMetric& metric : *target.metrics) xy.push_back(Moments::Zeros(hidden, metric.outputs()));
    for (int64_t begin = 0; begin < rows.rows; begin += kRows) {
      const int64_t count = std::min(kRows, rows.rows - begin);
      std::vector<float> h(count * hidden);
      ReadSide(*target.states, recomputed_layers, {}, begin * rows.stride, count, rows.stride, h.data(),
               hidden);
      AddGram(h.data(), count, &xx);
      for (size_t g = 0; g < groups.size(); ++g) {
        const std::vector<float> y = ReadTargets(*target.states, (*target.metrics)[g], groups[g],
                                                 begin * rows.stride, count, rows.stride);
        AddProduct(h.data(), y.data(), count, &xy[g]);
      }
    }
    for (const Moments& group : xy) AddOuterGram(group, &told);
  }
  ALUDEL_ASSIGN_OR_RETURN(HostMatrix directions, PredictiveDirections(xx, told, rank, ridge));
  // Of xx sums, not means: rows that give 1 in all.
  int64_t all = 0;
  for (const SideTarget& target : targets) all += RowStride::Of(*target.states, max_rows).rows;
  const float scale = std::sqrt(static_cast<float>(all));
  for (float& value : directions.values) value = RoundToBf16(value * scale);
  return directions;
}

}  // namespace aludel
