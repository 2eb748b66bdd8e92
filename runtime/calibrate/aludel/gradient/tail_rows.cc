#include <cmath>

#include "runtime/calibrate/aludel/gradient/tail_pass.h"

namespace aludel {

void Rotations::Grow(int64_t positions) {
  const auto half = static_cast<int64_t>(rope_.inverse_frequency.size());
  for (auto position = static_cast<int64_t>(cosine_.size()) / half; position < positions; ++position) {
    for (const float frequency : rope_.inverse_frequency) {
      const double angle = static_cast<double>(position) * static_cast<double>(frequency);
      cosine_.push_back(static_cast<float>(std::cos(angle)) * rope_.attention_factor);
      sine_.push_back(static_cast<float>(std::sin(angle)) * rope_.attention_factor);
    }
  }
}

void Rotations::Apply(int64_t position, int heads, float* row) const {
  const auto half = static_cast<int64_t>(rope_.inverse_frequency.size());
  const float* cosine = cosine_.data() + position * half;
  const float* sine = sine_.data() + position * half;
  for (int head = 0; head < heads; ++head) {
    float* low = row + head * 2 * half;
    float* high = low + half;
    for (int64_t i = 0; i < half; ++i) {
      const float a = low[i];
      const float b = high[i];
      low[i] = a * cosine[i] - b * sine[i];
      high[i] = b * cosine[i] + a * sine[i];
    }
  }
}

void Rotations::ApplyTransposed(int64_t position, int heads, float* row) const {
  const auto half = static_cast<int64_t>(rope_.inverse_frequency.size());
  const float* cosine = cosine_.data() + position * half;
  const float* sine = sine_.data() + position * half;
  for (int head = 0; head < heads; ++head) {
    float* low = row + head * 2 * half;
    float* high = low + half;
    for (int64_t i = 0; i < half; ++i) {
      const float a = low[i];
      const float b = high[i];
      low[i] = a * cosine[i] + b * sine[i];
      high[i] = b * cosine[i] - a * sine[i];
    }
  }
}

namespace {

double InverseRms(const float* x, int64_t size, double eps) {
  double sum = 0;
  for (int64_t i = 0; i < size; ++i) sum += static_cast<double>(x[i]) * x[i];
  return 1.0 / std::sqrt(sum / static_cast<double>(size) + eps);
}

}  // namespace

void NormRow(const float* x, const float* weight, int64_t size, double eps, float* out) {
  const auto inverse = static_cast<float>(InverseRms(x, size, eps));
  for (int64_t i = 0; i < size; ++i) out[i] = x[i] * inverse * weight[i];
}

// With r = 1 / rms(x): d out_i / d x_j = r w_i (delta_ij - r^2 x_i x_j / size).
void AddNormRowGradient(const float* x, const float* weight, int64_t size, double eps, const float* dy,
                        float* dx) {
  const double inverse = InverseRms(x, size, eps);
  double along = 0;
  for (int64_t i = 0; i < size; ++i) along += static_cast<double>(dy[i]) * weight[i] * x[i];
  const auto r = static_cast<float>(inverse);
  const auto back = static_cast<float>(along * inverse * inverse * inverse / static_cast<double>(size));
  for (int64_t i = 0; i < size; ++i) dx[i] += r * weight[i] * dy[i] - back * x[i];
}

}  // namespace aludel
