#include "runtime/calibrate/aludel/decoder_net.h"

#include <algorithm>
#include <cmath>

#include "runtime/calibrate/fit/dense.h"

namespace aludel {
namespace {

constexpr double kMeanDecay = 0.9;
constexpr double kSquareDecay = 0.98;

void Repeat(const std::vector<float>& row, int64_t rows, std::vector<float>* out) {
  out->resize(rows * row.size());
  for (int64_t t = 0; t < rows; ++t) std::copy(row.begin(), row.end(), out->data() + t * row.size());
}

void AddRows(const float* rows, int64_t count, int64_t cols, std::vector<float>* sums) {
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t j = 0; j < cols; ++j) (*sums)[j] += rows[t * cols + j];
  }
}

// out += x w^T.
void Multiply(const float* x, int64_t rows, const HostMatrix& w, std::vector<float>* out) {
  Sgemm(false, true, rows, w.rows, w.cols, x, w.cols, w.values.data(), w.cols, 1.0f, out->data(), w.rows);
}

// sum += x^T y, for x [rows, sum.rows] and y [rows, sum.cols].
void AddOuter(const float* x, const float* y, int64_t rows, HostMatrix* sum) {
  Sgemm(true, false, sum->rows, sum->cols, rows, x, sum->rows, y, sum->cols, 1.0f, sum->values.data(),
        sum->cols);
}

void UpdateWeights(float rate, float square_scale, const std::vector<float>& g, float* m, float* s,
                   float* w) {
  constexpr auto kMean = static_cast<float>(kMeanDecay);
  constexpr auto kSquare = static_cast<float>(kSquareDecay);
  for (size_t i = 0; i < g.size(); ++i) {
    m[i] = kMean * m[i] + (1.0f - kMean) * g[i];
    s[i] = kSquare * s[i] + (1.0f - kSquare) * g[i] * g[i];
    w[i] -= rate * m[i] / (std::sqrt(s[i] * square_scale) + 1e-8f);
  }
}

}  // namespace

DecoderNet ZerosLike(const DecoderNet& net) {
  return {HostMatrix::Zeros(net.linear.rows, net.linear.cols), std::vector<float>(net.bias.size()),
          HostMatrix::Zeros(net.hidden.rows, net.hidden.cols), std::vector<float>(net.hidden_bias.size()),
          HostMatrix::Zeros(net.out.rows, net.out.cols)};
}

std::vector<float> RunDecoder(const DecoderNet& net, const float* u, int64_t rows) {
  return DecoderPass().Forward(net, u, rows);
}

std::vector<float> DecoderPass::Forward(const DecoderNet& net, const float* u, int64_t rows) {
  u_ = u;
  rows_ = rows;
  std::vector<float> y;
  Repeat(net.bias, rows, &y);
  if (net.linear.rows > 0) Multiply(u, rows, net.linear, &y);
  if (net.hidden.rows == 0) return y;
  Repeat(net.hidden_bias, rows, &before_);
  Multiply(u, rows, net.hidden, &before_);
  after_.resize(before_.size());
  for (size_t i = 0; i < before_.size(); ++i) after_[i] = before_[i] / (1.0f + std::exp(-before_[i]));
  Multiply(after_.data(), rows, net.out, &y);
  return y;
}

void DecoderPass::Backward(const DecoderNet& net, const std::vector<float>& slope, DecoderNet* gradient) {
  const int64_t width = net.hidden.rows;
  const auto outputs = static_cast<int64_t>(net.bias.size());
  AddRows(slope.data(), rows_, outputs, &gradient->bias);
  if (net.linear.rows > 0) AddOuter(slope.data(), u_, rows_, &gradient->linear);
  if (width == 0) return;
  AddOuter(slope.data(), after_.data(), rows_, &gradient->out);
  Sgemm(false, false, rows_, width, outputs, slope.data(), outputs, net.out.values.data(), width, 0.0f,
        after_.data(), width);
  for (size_t i = 0; i < before_.size(); ++i) {
    const float x = before_[i];
    const float s = 1.0f / (1.0f + std::exp(-x));
    after_[i] *= s + x * s * (1.0f - s);
  }
  AddRows(after_.data(), rows_, width, &gradient->hidden_bias);
  AddOuter(after_.data(), u_, rows_, &gradient->hidden);
}

WeightList WeightsOf(DecoderNet* net) {
  return {&net->linear.values, &net->hidden.values, &net->hidden_bias, &net->out.values, &net->bias};
}

Adam::Adam(const WeightList& weights) {
  for (const std::vector<float>* values : weights) mean_.emplace_back(values->size());
  square_ = mean_;
}

void Adam::Step(double rate, const WeightList& gradient, const WeightList& weights) {
  ++steps_;
  const auto mean_scale = static_cast<float>(rate / (1.0 - std::pow(kMeanDecay, steps_)));
  const auto square_scale = static_cast<float>(1.0 / (1.0 - std::pow(kSquareDecay, steps_)));
  for (size_t p = 0; p < weights.size(); ++p) {
    UpdateWeights(mean_scale, square_scale, *gradient[p], mean_[p].data(), square_[p].data(),
                  weights[p]->data());
  }
}

WeightList Adam::Moments() {
  WeightList all;
  for (std::vector<float>& values : mean_) all.push_back(&values);
  for (std::vector<float>& values : square_) all.push_back(&values);
  return all;
}

double CosineRate(double highest, int64_t step, int64_t steps, int64_t rise) {
  const double warm = std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(rise));
  const double done = static_cast<double>(step) / static_cast<double>(steps);
  return highest * warm * 0.5 * (1.0 + std::cos(M_PI * done));
}

}  // namespace aludel
