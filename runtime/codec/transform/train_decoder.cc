#include "runtime/codec/transform/train_decoder.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "runtime/codec/scd/dense.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int64_t kChunk = 1024;

// Every weight vector of an MLP in one order, to walk several nets side by side.
std::vector<std::vector<float>*> Parameters(DecoderNet* net) {
  return {&net->hidden.values, &net->hidden_bias, &net->out.values, &net->bias};
}

DecoderNet ZerosLike(const DecoderNet& net) {
  return {HostMatrix::Zeros(net.linear.rows, net.linear.cols), std::vector<float>(net.bias.size()),
          HostMatrix::Zeros(net.hidden.rows, net.hidden.cols), std::vector<float>(net.hidden_bias.size()),
          HostMatrix::Zeros(net.out.rows, net.out.cols)};
}

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

// The hidden layer before and after its activation.
struct Hidden {
  std::vector<float> before, after;
};

Hidden RunHidden(const DecoderNet& net, const float* u, int64_t rows) {
  Hidden hidden;
  Repeat(net.hidden_bias, rows, &hidden.before);
  Multiply(u, rows, net.hidden, &hidden.before);
  hidden.after.resize(hidden.before.size());
  for (size_t i = 0; i < hidden.before.size(); ++i) {
    hidden.after[i] = hidden.before[i] / (1.0f + std::exp(-hidden.before[i]));
  }
  return hidden;
}

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

class Adam {
 public:
  explicit Adam(const DecoderNet& net) : mean_(ZerosLike(net)), square_(ZerosLike(net)) {}

  void Step(double rate, DecoderNet* gradient, DecoderNet* net) {
    ++steps_;
    const auto mean_scale = static_cast<float>(rate / (1.0 - std::pow(0.9, steps_)));
    const auto square_scale = static_cast<float>(1.0 / (1.0 - std::pow(0.98, steps_)));
    const auto g = Parameters(gradient), m = Parameters(&mean_), s = Parameters(&square_);
    const auto w = Parameters(net);
    for (size_t p = 0; p < w.size(); ++p) {
      Update(mean_scale, square_scale, *g[p], m[p]->data(), s[p]->data(), w[p]->data());
    }
  }

 private:
  static void Update(float rate, float square_scale, const std::vector<float>& g, float* m, float* s,
                     float* w) {
    for (size_t i = 0; i < g.size(); ++i) {
      m[i] = 0.9f * m[i] + 0.1f * g[i];
      s[i] = 0.98f * s[i] + 0.02f * g[i] * g[i];
      w[i] -= rate * m[i] / (std::sqrt(s[i] * square_scale) + 1e-8f);
    }
  }

  DecoderNet mean_, square_;
  int64_t steps_ = 0;
};

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

absl::StatusOr<DecoderNet> FitLinear(const DecoderData& data, double ridge) {
  const int64_t inputs = data.inputs + 1;  // and a constant
  Moments xx = Moments::Zeros(inputs, inputs);
  Moments xy = Moments::Zeros(inputs, data.outputs);
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
    AddGram(x.data(), count, &xx);
    AddProduct(x.data(), y.data(), count, &xy);
  }
  ALUDEL_ASSIGN_OR_RETURN(const HostMatrix fit, FitRidge(xx, xy, ridge));
  DecoderNet net;
  net.linear = HostMatrix::Zeros(data.outputs, data.inputs);
  for (int64_t i = 0; i < data.outputs; ++i) {
    std::copy_n(fit.row(i), data.inputs, net.linear.row(i));
    net.bias.push_back(fit.row(i)[data.inputs]);
  }
  return net;
}

}  // namespace

std::vector<float> RunDecoder(const DecoderNet& net, const float* u, int64_t rows) {
  std::vector<float> y;
  Repeat(net.bias, rows, &y);
  if (net.linear.rows > 0) Multiply(u, rows, net.linear, &y);
  if (net.hidden.rows > 0) Multiply(RunHidden(net, u, rows).after.data(), rows, net.out, &y);
  return y;
}

double DecoderLoss(const DecoderNet& net, const float* u, const float* y, int64_t rows,
                   DecoderNet* gradient) {
  const int64_t inputs = net.hidden.cols;
  const int64_t width = net.hidden.rows;
  const int64_t outputs = net.out.rows;
  Hidden hidden = RunHidden(net, u, rows);
  std::vector<float> error;
  Repeat(net.bias, rows, &error);
  Multiply(hidden.after.data(), rows, net.out, &error);
  double loss = 0;
  const float scale = 2.0f / static_cast<float>(rows * outputs);
  for (int64_t i = 0; i < rows * outputs; ++i) {
    error[i] -= y[i];
    loss += static_cast<double>(error[i]) * error[i];
    error[i] *= scale;  // d loss / d net(u)
  }
  *gradient = ZerosLike(net);
  AddRows(error.data(), rows, outputs, &gradient->bias);
  Sgemm(true, false, outputs, width, rows, error.data(), outputs, hidden.after.data(), width, 0.0f,
        gradient->out.values.data(), width);
  Sgemm(false, false, rows, width, outputs, error.data(), outputs, net.out.values.data(), width, 0.0f,
        hidden.after.data(), width);
  for (size_t i = 0; i < hidden.before.size(); ++i) {
    const float x = hidden.before[i];
    const float s = 1.0f / (1.0f + std::exp(-x));
    hidden.after[i] *= s + x * s * (1.0f - s);
  }
  AddRows(hidden.after.data(), rows, width, &gradient->hidden_bias);
  Sgemm(true, false, width, inputs, rows, hidden.after.data(), width, u, inputs, 0.0f,
        gradient->hidden.values.data(), inputs);
  return loss / static_cast<double>(rows * outputs);
}

absl::StatusOr<DecoderFit> TrainDecoder(const DecoderData& train, const DecoderData& held_out,
                                        const DecoderTraining& options,
                                        const std::function<bool(int64_t, int64_t)>& progress) {
  DecoderFit fit;
  if (options.width == 0) {
    ALUDEL_ASSIGN_OR_RETURN(fit.net, FitLinear(train, options.ridge));
    fit.train_error = RelativeError(fit.net, train);
    fit.held_out_error = RelativeError(fit.net, held_out);
    return fit;
  }
  fit.net = StartMlp(train.inputs, train.outputs, options);
  Adam adam(fit.net);
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
    const double loss = DecoderLoss(fit.net, u.data(), y.data(), batch, &gradient);
    fit.train_error = step == 0 ? loss : 0.99 * fit.train_error + 0.01 * loss;
    const double warm = std::min(1.0, static_cast<double>(step + 1) / 100.0);
    const double done = static_cast<double>(step) / static_cast<double>(options.steps);
    adam.Step(options.learning_rate * warm * 0.5 * (1.0 + std::cos(M_PI * done)), &gradient, &fit.net);
  }
  progress(options.steps, options.steps);
  fit.held_out_error = RelativeError(fit.net, held_out);
  return fit;
}

}  // namespace aludel
