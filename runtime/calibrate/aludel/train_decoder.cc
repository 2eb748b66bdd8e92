#include "runtime/calibrate/aludel/train_decoder.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "kernels/check.h"
#include "runtime/calibrate/fit/dense.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int64_t kChunk = 1024;

void Widen(const std::vector<Bf16>& from, int64_t row, int64_t cols, float* out) {
  const Bf16* source = from.data() + row * cols;
  for (int64_t j = 0; j < cols; ++j) out[j] = ToFloat(source[j]);
}

// Standard deviations from a generator and a method that are the same with every standard library.
float Gaussian(std::mt19937_64& random) {
  double sum = -6.0;
  for (int i = 0; i < 12; ++i) sum += static_cast<double>(random() >> 11) * 0x1p-53;
  return static_cast<float>(sum);
}

DecoderNet StartMlp(int64_t inputs, int64_t outputs, const DecoderTraining& options) {
  DecoderNet net;
  net.bias.resize(outputs);
  net.hidden = HostMatrix::Zeros(options.width, inputs);
  net.hidden_bias.resize(options.width);
  net.out = HostMatrix::Zeros(outputs, options.width);
  std::mt19937_64 random(options.seed);
  const float in_scale = 1.0f / std::sqrt(static_cast<float>(inputs));
  const float out_scale = 0.5f / std::sqrt(static_cast<float>(options.width));
  for (float& value : net.hidden.values) value = Gaussian(random) * in_scale;
  for (float& value : net.out.values) value = Gaussian(random) * out_scale;
  return net;
}

// Draws rows in proportion to their weights.
class RowDraw {
 public:
  explicit RowDraw(const DecoderData& data) : rows_(data.rows) {
    double sum = 0;
    for (const float weight : data.weight) ends_.push_back(sum += weight);
  }
  int64_t operator()(std::mt19937_64& random) const {
    if (ends_.empty()) return static_cast<int64_t>(random() % static_cast<uint64_t>(rows_));
    const double at = static_cast<double>(random() >> 11) * 0x1p-53 * ends_.back();
    const auto row = std::upper_bound(ends_.begin(), ends_.end(), at) - ends_.begin();
    return std::min<int64_t>(row, rows_ - 1);
  }

 private:
  int64_t rows_;
  std::vector<double> ends_;
};

double RelativeError(const DecoderNet& net, const DecoderData& data) {
  double error = 0;
  double energy = 0;
  std::vector<float> u(kChunk * data.inputs);
  std::vector<float> y(data.outputs);
  for (int64_t begin = 0; begin < data.rows; begin += kChunk) {
    const int64_t count = std::min(kChunk, data.rows - begin);
    for (int64_t t = 0; t < count; ++t) Widen(data.u, begin + t, data.inputs, u.data() + t * data.inputs);
    const std::vector<float> predicted = RunDecoder(net, u.data(), count);
    for (int64_t t = 0; t < count; ++t) {
      Widen(data.y, begin + t, data.outputs, y.data());
      for (int64_t j = 0; j < data.outputs; ++j) {
        const double difference = predicted[t * data.outputs + j] - y[j];
        error += difference * difference;
        energy += static_cast<double>(y[j]) * y[j];
      }
    }
  }
  return energy > 0 ? error / energy : error;
}

struct LinearMoments {
  Moments xx, xy;  // of the inputs, with a constant behind them, and the targets
};

LinearMoments MeasureMoments(const DecoderData& data) {
  const int64_t inputs = data.inputs + 1;
  LinearMoments moments{Moments::Zeros(inputs, inputs), Moments::Zeros(inputs, data.outputs)};
  std::vector<float> x(kChunk * inputs), y(kChunk * data.outputs);
  for (int64_t begin = 0; begin < data.rows; begin += kChunk) {
    const int64_t count = std::min(kChunk, data.rows - begin);
    for (int64_t t = 0; t < count; ++t) {
      Widen(data.u, begin + t, data.inputs, x.data() + t * inputs);
      x[t * inputs + data.inputs] = 1.0f;
      Widen(data.y, begin + t, data.outputs, y.data() + t * data.outputs);
      if (data.weight.empty()) continue;
      const float root = std::sqrt(data.weight[begin + t]);
      for (int64_t j = 0; j < inputs; ++j) x[t * inputs + j] *= root;
      for (int64_t j = 0; j < data.outputs; ++j) y[t * data.outputs + j] *= root;
    }
    AddGram(x.data(), count, &moments.xx);
    AddProduct(x.data(), y.data(), count, &moments.xy);
  }
  return moments;
}

absl::StatusOr<DecoderNet> FitLinear(const LinearMoments& moments, double ridge) {
  ALUDEL_ASSIGN_OR_RETURN(const HostMatrix fit, FitRidge(moments.xx, moments.xy, ridge));
  const int64_t inputs = fit.cols - 1;
  DecoderNet net;
  net.linear = HostMatrix::Zeros(fit.rows, inputs);
  for (int64_t i = 0; i < fit.rows; ++i) {
    std::copy_n(fit.row(i), inputs, net.linear.row(i));
    net.bias.push_back(fit.row(i)[inputs]);
  }
  return net;
}

// With the ridge that loses least on held-out rows.
absl::StatusOr<DecoderFit> TrainLinear(const DecoderData& train, const DecoderData& held_out,
                                       const std::vector<double>& ridges) {
  ALUDEL_CHECK(!ridges.empty());
  const LinearMoments moments = MeasureMoments(train);
  DecoderFit best;
  for (const double ridge : ridges) {
    ALUDEL_ASSIGN_OR_RETURN(DecoderNet net, FitLinear(moments, ridge));
    const double error = RelativeError(net, held_out);
    if (best.ridge > 0 && error >= best.held_out_error) continue;
    best = {std::move(net), 0, error, ridge};
  }
  best.train_error = RelativeError(best.net, train);
  return best;
}

}  // namespace

double DecoderLoss(const DecoderNet& net, const float* u, const float* y, int64_t rows,
                   DecoderNet* gradient) {
  DecoderPass pass;
  std::vector<float> error = pass.Forward(net, u, rows);
  double loss = 0;
  const auto count = static_cast<int64_t>(error.size());
  const float scale = 2.0f / static_cast<float>(count);
  for (int64_t i = 0; i < count; ++i) {
    error[i] -= y[i];
    loss += static_cast<double>(error[i]) * error[i];
    error[i] *= scale;  // d loss / d net(u)
  }
  *gradient = ZerosLike(net);
  pass.Backward(net, error, gradient);
  return loss / static_cast<double>(count);
}

absl::StatusOr<DecoderFit> TrainDecoder(const DecoderData& train, const DecoderData& held_out,
                                        const DecoderTraining& options,
                                        const std::function<bool(int64_t, int64_t)>& progress) {
  if (options.width == 0) return TrainLinear(train, held_out, options.ridges);
  DecoderFit fit;
  fit.net = StartMlp(train.inputs, train.outputs, options);
  Adam adam(WeightsOf(&fit.net));
  DecoderNet gradient;
  std::mt19937_64 random(options.seed ^ 0x9e3779b97f4a7c15u);
  const RowDraw draw(train);
  const int64_t batch = std::min(options.batch, train.rows);
  std::vector<float> u(batch * train.inputs), y(batch * train.outputs);
  for (int64_t step = 0; step < options.steps; ++step) {
    if (step % 16 == 0 && !progress(step, options.steps)) {
      return absl::CancelledError("calibration was interrupted");
    }
    for (int64_t t = 0; t < batch; ++t) {
      const int64_t row = draw(random);
      Widen(train.u, row, train.inputs, u.data() + t * train.inputs);
      Widen(train.y, row, train.outputs, y.data() + t * train.outputs);
    }
    DecoderLoss(fit.net, u.data(), y.data(), batch, &gradient);
    adam.Step(CosineRate(options.learning_rate, step, options.steps), WeightsOf(&gradient),
              WeightsOf(&fit.net));
  }
  progress(options.steps, options.steps);
  // Of the result: a mean over the steps would tell of a short training's beginning.
  fit.train_error = RelativeError(fit.net, train);
  fit.held_out_error = RelativeError(fit.net, held_out);
  return fit;
}

}  // namespace aludel
