#include "runtime/calibrate/aludel/metric.h"

#include <algorithm>
#include <cmath>

#include "runtime/calibrate/fit/dense.h"
#include "runtime/status_macros.h"

namespace aludel {

void TargetMetric::Apply(float* y, int64_t rows) const {
  const int64_t n = outputs();
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t j = 0; j < n; ++j) y[t * n + j] = (y[t * n + j] - mean[j]) / scale[j];
  }
  if (root.rows == 0) return;
  std::vector<float> turned(rows * n);
  Sgemm(false, false, rows, n, n, y, n, root.values.data(), n, 0.0f, turned.data(), n);
  std::copy(turned.begin(), turned.end(), y);
}

void TargetMetric::Turn(HostMatrix* w) const {
  if (inverse.rows == 0) return;
  HostMatrix out = *w;
  Sgemm(false, false, w->rows, w->cols, w->rows, inverse.values.data(), w->rows, w->values.data(), w->cols,
        0.0f, out.values.data(), w->cols);
  *w = std::move(out);
}

void TargetMetric::Unscale(HostMatrix* w) const {
  for (int64_t i = 0; i < w->rows; ++i) {
    for (int64_t j = 0; j < w->cols; ++j) w->row(i)[j] *= scale[i];
  }
}

TargetMetric MeasureMetric(const StateFile& states, const AludelGroup& group, int64_t max_rows) {
  const StateLayout& layout = states.layout();
  const RowStride rows = RowStride::Of(states, max_rows);
  const int64_t n = group.layers * 2 * layout.kv_dim;
  std::vector<double> sum(n), square(n);
  std::vector<float> row(n);
  for (int64_t i = 0; i < rows.rows; ++i) {
    states.Read(i * rows.stride, layout.kv(group.first_layer), n, row.data());
    for (int64_t j = 0; j < n; ++j) {
      sum[j] += row[j];
      square[j] += static_cast<double>(row[j]) * row[j];
    }
  }
  TargetMetric metric;
  const auto count = static_cast<double>(rows.rows);
  for (int64_t kind = 0; kind < n; kind += layout.kv_dim) {
    double variance = 0;
    for (int64_t j = kind; j < kind + layout.kv_dim; ++j) {
      metric.mean.push_back(static_cast<float>(sum[j] / count));
      variance += square[j] / count - sum[j] / count * (sum[j] / count);
    }
    const double scale = std::sqrt(std::max(variance / static_cast<double>(layout.kv_dim), 1e-12));
    metric.scale.insert(metric.scale.end(), layout.kv_dim, static_cast<float>(scale));
  }
  return metric;
}

std::vector<float> ReadTargets(const StateFile& states, const TargetMetric& metric, const AludelGroup& group,
                               int64_t first, int64_t count, int64_t stride) {
  const int64_t column = states.layout().kv(group.first_layer), outputs = metric.outputs();
  std::vector<float> y(count * outputs);
  for (int64_t t = 0; t < count; ++t)
    states.Read(first + t * stride, column, outputs, y.data() + t * outputs);
  metric.Apply(y.data(), count);
  return y;
}

absl::Status AddSensitivity(const Moments& sensitivity, double blend, TargetMetric* metric) {
  const int64_t n = metric->outputs();
  Moments blended = Moments::Zeros(n, n);
  double trace = 0;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      blended.at(i, j) = sensitivity.at(i, j) * metric->scale[i] * metric->scale[j];
    }
    trace += blended.at(i, i);
  }
  const double unit = static_cast<double>(n) / std::max(trace, 1e-300);
  for (double& value : blended.values) value *= (1 - blend) * unit;
  for (int64_t i = 0; i < n; ++i) blended.at(i, i) += blend;
  ALUDEL_ASSIGN_OR_RETURN(MatrixRoot root, CholeskyRoot(blended));
  metric->root = std::move(root.root);
  metric->inverse = std::move(root.inverse);
  return absl::OkStatus();
}

}  // namespace aludel
