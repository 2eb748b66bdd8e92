#include "runtime/calibrate/aludel/low_rank.h"

#include <cmath>
#include <random>

#include "runtime/calibrate/fit/dense.h"

namespace aludel {
namespace {

// Standard normal numbers by the method of Box and Muller: the same with every standard library.
class Normal {
 public:
  explicit Normal(uint64_t seed) : random_(seed) {}

  float operator()() {
    const double radius = std::sqrt(-2.0 * std::log(Uniform()));
    return static_cast<float>(radius * std::cos(2.0 * M_PI * Uniform()));
  }

 private:
  double Uniform() { return (static_cast<double>(random_() >> 11) + 0.5) * 0x1p-53; }

  std::mt19937_64 random_;
};

}  // namespace

LowRank StartLowRank(int64_t rank, int64_t inputs, int64_t outputs, uint64_t seed) {
  LowRank correction{HostMatrix::Zeros(rank, inputs), HostMatrix::Zeros(outputs, rank),
                     std::vector<float>(outputs)};
  Normal normal(seed);
  const float scale = 1.0f / std::sqrt(static_cast<float>(inputs));
  for (float& value : correction.down.values) value = scale * normal();
  return correction;
}

WeightList WeightsOf(LowRank* correction) {
  return {&correction->down.values, &correction->up.values, &correction->bias};
}

void LowRankPass::AddForward(const LowRank& correction, const float* u, int64_t rows, float* y) {
  u_ = u;
  rows_ = rows;
  const int64_t rank = correction.down.rows;
  const int64_t inputs = correction.down.cols;
  const int64_t outputs = correction.up.rows;
  inner_.resize(rows * rank);
  Sgemm(false, true, rows, rank, inputs, u, inputs, correction.down.values.data(), inputs, 0.0f,
        inner_.data(), rank);
  Sgemm(false, true, rows, outputs, rank, inner_.data(), rank, correction.up.values.data(), rank, 1.0f, y,
        outputs);
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t j = 0; j < outputs; ++j) y[t * outputs + j] += correction.bias[j];
  }
}

void LowRankPass::Backward(const LowRank& correction, const float* slope, LowRank* gradient) {
  const int64_t rank = correction.down.rows;
  const int64_t inputs = correction.down.cols;
  const int64_t outputs = correction.up.rows;
  for (int64_t t = 0; t < rows_; ++t) {
    for (int64_t j = 0; j < outputs; ++j) gradient->bias[j] += slope[t * outputs + j];
  }
  Sgemm(true, false, outputs, rank, rows_, slope, outputs, inner_.data(), rank, 1.0f,
        gradient->up.values.data(), rank);
  inner_slope_.resize(rows_ * rank);
  Sgemm(false, false, rows_, rank, outputs, slope, outputs, correction.up.values.data(), rank, 0.0f,
        inner_slope_.data(), rank);
  Sgemm(true, false, rank, inputs, rows_, inner_slope_.data(), rank, u_, inputs, 1.0f,
        gradient->down.values.data(), inputs);
}

void Merge(const LowRank& correction, DecoderNet* net) {
  const int64_t rank = correction.down.rows;
  Sgemm(false, false, net->linear.rows, net->linear.cols, rank, correction.up.values.data(), rank,
        correction.down.values.data(), net->linear.cols, 1.0f, net->linear.values.data(), net->linear.cols);
  for (size_t j = 0; j < net->bias.size(); ++j) net->bias[j] += correction.bias[j];
}

}  // namespace aludel
