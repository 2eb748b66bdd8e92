#include "runtime/calibrate/scd/train_aligner.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "kernels/check.h"
#include "runtime/calibrate/fit/dense.h"

namespace aludel {
namespace {

AlignerWeights ZerosLike(const AlignerWeights& w) {
  return {HostMatrix::Zeros(w.skip.rows, w.skip.cols), std::vector<float>(w.bias.size()),
          HostMatrix::Zeros(w.gate_up.rows, w.gate_up.cols), std::vector<float>(w.gate_up_bias.size()),
          HostMatrix::Zeros(w.down.rows, w.down.cols)};
}

// Every weight vector of an aligner in one order, to walk several aligners side by side.
std::vector<std::vector<float>*> Parameters(AlignerWeights* w) {
  return {&w->skip.values, &w->bias, &w->gate_up.values, &w->gate_up_bias, &w->down.values};
}

void AddRows(const float* rows, int64_t count, int64_t cols, std::vector<float>* sums) {
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t j = 0; j < cols; ++j) (*sums)[j] += rows[t * cols + j];
  }
}

// One batch: inputs gathered, and everything that the backward pass needs again.
struct Batch {
  int64_t count = 0;
  std::vector<float> z, gate_up, activated, error;
};

// error = g(z) - h.
void Forward(const AlignerWeights& w, const AlignerData& data, const int64_t* order, int64_t begin,
             int64_t count, Batch* batch) {
  const int64_t rank = w.skip.cols;
  const int64_t hidden = w.skip.rows;
  const int64_t width = w.down.cols;
  batch->count = count;
  batch->z.resize(count * rank);
  batch->gate_up.resize(count * 2 * width);
  batch->activated.resize(count * width);
  batch->error.resize(count * hidden);
  for (int64_t t = 0; t < count; ++t) {
    const int64_t row = order == nullptr ? begin + t : order[begin + t];
    std::copy_n(data.z.data() + row * rank, rank, batch->z.data() + t * rank);
    std::copy(w.gate_up_bias.begin(), w.gate_up_bias.end(), batch->gate_up.data() + t * 2 * width);
    const float* h = data.h.data() + row * hidden;
    float* error = batch->error.data() + t * hidden;
    for (int64_t j = 0; j < hidden; ++j) error[j] = w.bias[j] - h[j];
  }
  Sgemm(false, true, count, 2 * width, rank, batch->z.data(), rank, w.gate_up.values.data(), rank, 1.0f,
        batch->gate_up.data(), 2 * width);
  for (int64_t t = 0; t < count; ++t) {
    const float* gate = batch->gate_up.data() + t * 2 * width;
    float* out = batch->activated.data() + t * width;
    for (int64_t j = 0; j < width; ++j) out[j] = gate[j] / (1.0f + std::exp(-gate[j])) * gate[width + j];
  }
  Sgemm(false, true, count, hidden, rank, batch->z.data(), rank, w.skip.values.data(), rank, 1.0f,
        batch->error.data(), hidden);
  Sgemm(false, true, count, hidden, width, batch->activated.data(), width, w.down.values.data(), width, 1.0f,
        batch->error.data(), hidden);
}

double SumOfSquares(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return sum;
}

// Error per component over the mean square of the target.
double RelativeError(const AlignerWeights& weights, const AlignerData& data) {
  constexpr int64_t kChunk = 1024;
  double error = 0;
  Batch batch;
  for (int64_t begin = 0; begin < data.tokens; begin += kChunk) {
    Forward(weights, data, nullptr, begin, std::min(kChunk, data.tokens - begin), &batch);
    error += SumOfSquares(batch.error);
  }
  const double energy = SumOfSquares(data.h);
  return energy > 0 ? error / energy : error;
}

// Mean and inverse deviation per latent: codes are eigen-coordinates whose scales differ by orders of
// magnitude, and Adam's steps need them alike. Training sees (z - mean) * scale; Unwhiten folds it back.
struct Whitening {
  std::vector<float> mean, scale;

  explicit Whitening(const AlignerData& data, int64_t rank) : mean(rank), scale(rank) {
    std::vector<double> sum(rank), square(rank);
    for (int64_t t = 0; t < data.tokens; ++t) {
      for (int64_t j = 0; j < rank; ++j) {
        const double value = data.z[t * rank + j];
        sum[j] += value;
        square[j] += value * value;
      }
    }
    const auto n = static_cast<double>(std::max<int64_t>(1, data.tokens));
    for (int64_t j = 0; j < rank; ++j) {
      const double variance = square[j] / n - sum[j] / n * (sum[j] / n);
      mean[j] = static_cast<float>(sum[j] / n);
      scale[j] = static_cast<float>(1.0 / std::sqrt(std::max(variance, 1e-12)));
    }
  }

  AlignerData Apply(const AlignerData& data) const {
    AlignerData white = data;
    const auto rank = static_cast<int64_t>(mean.size());
    for (int64_t t = 0; t < data.tokens; ++t) {
      for (int64_t j = 0; j < rank; ++j) {
        float& value = white.z[t * rank + j];
        value = (value - mean[j]) * scale[j];
      }
    }
    return white;
  }

  // W (z - mean) * scale + b = (W scale) z + (b - (W scale) mean).
  void Unwhiten(HostMatrix* matrix, std::vector<float>* bias) const {
    for (int64_t i = 0; i < matrix->rows; ++i) {
      double shift = 0;
      for (int64_t j = 0; j < matrix->cols; ++j) {
        float& value = matrix->row(i)[j];
        value *= scale[j];
        shift += static_cast<double>(value) * mean[j];
      }
      (*bias)[i] -= static_cast<float>(shift);
    }
  }
  // The inverse, for a matrix without bias.
  void Whiten(HostMatrix* matrix, std::vector<float>* bias) const {
    for (int64_t i = 0; i < matrix->rows; ++i) {
      double shift = 0;
      for (int64_t j = 0; j < matrix->cols; ++j) {
        float& value = matrix->row(i)[j];
        shift += static_cast<double>(value) * mean[j];
        value /= scale[j];
      }
      (*bias)[i] += static_cast<float>(shift);
    }
  }
};

AlignerWeights Start(const HostMatrix& linear, const Whitening& whitening, const AlignerTraining& options) {
  AlignerWeights w;
  w.skip = linear;
  w.bias.resize(linear.rows);
  whitening.Whiten(&w.skip, &w.bias);
  w.gate_up = HostMatrix::Zeros(2 * options.width, linear.cols);
  w.gate_up_bias.resize(2 * options.width);
  w.down = HostMatrix::Zeros(linear.rows, options.width);
  // std distributions differ between standard libraries; sums of uniforms from a fixed generator do not.
  std::mt19937_64 random(options.seed);
  const double deviation = 1.0 / std::sqrt(static_cast<double>(linear.cols));
  for (float& value : w.gate_up.values) {
    double sum = -6.0;
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(random() >> 11) * 0x1p-53;
    value = static_cast<float>(sum * deviation);
  }
  return w;
}

// Adam with the published constants.
class Adam {
 public:
  explicit Adam(const AlignerWeights& weights) : mean_(ZerosLike(weights)), square_(ZerosLike(weights)) {}

  void Step(double rate, AlignerWeights* gradient, AlignerWeights* weights) {
    ++steps_;
    const double mean_scale = 1.0 / (1.0 - std::pow(0.9, steps_));
    const double square_scale = 1.0 / (1.0 - std::pow(0.999, steps_));
    const auto g = Parameters(gradient), m = Parameters(&mean_), s = Parameters(&square_);
    const auto w = Parameters(weights);
    for (size_t p = 0; p < w.size(); ++p) {
      Update(static_cast<float>(rate * mean_scale), static_cast<float>(square_scale), *g[p], m[p]->data(),
             s[p]->data(), w[p]->data());
    }
  }

 private:
  static void Update(float rate, float square_scale, const std::vector<float>& g, float* m, float* s,
                     float* w) {
    for (size_t i = 0; i < g.size(); ++i) {
      m[i] = 0.9f * m[i] + 0.1f * g[i];
      s[i] = 0.999f * s[i] + 0.001f * g[i] * g[i];
      w[i] -= rate * m[i] / (std::sqrt(s[i] * square_scale) + 1e-8f);
    }
  }

  AlignerWeights mean_, square_;
  int64_t steps_ = 0;
};

// Fisher-Yates with a generator whose output the standard fixes.
void Shuffle(std::mt19937_64& random, std::vector<int64_t>* order) {
  for (size_t i = order->size(); i > 1; --i) std::swap((*order)[i - 1], (*order)[random() % i]);
}

}  // namespace

double AlignerLoss(const AlignerWeights& weights, const AlignerData& data, const int64_t* order,
                   int64_t begin, int64_t count, AlignerWeights* gradient) {
  const int64_t rank = weights.skip.cols;
  const int64_t hidden = weights.skip.rows;
  const int64_t width = weights.down.cols;
  Batch batch;
  Forward(weights, data, order, begin, count, &batch);
  const double loss = SumOfSquares(batch.error) / static_cast<double>(count * hidden);
  const float scale = 2.0f / static_cast<float>(count * hidden);
  for (float& value : batch.error) value *= scale;  // d loss / d g(z)

  const float* error = batch.error.data();
  *gradient = ZerosLike(weights);
  AddRows(error, count, hidden, &gradient->bias);
  Sgemm(true, false, hidden, rank, count, error, hidden, batch.z.data(), rank, 0.0f,
        gradient->skip.values.data(), rank);
  Sgemm(true, false, hidden, width, count, error, hidden, batch.activated.data(), width, 0.0f,
        gradient->down.values.data(), width);
  // Back through down, then through silu(gate) * up: with s the sigmoid of gate,
  // d/d gate = up (s + gate s (1 - s)), d/d up = gate s.
  Sgemm(false, false, count, width, hidden, error, hidden, weights.down.values.data(), width, 0.0f,
        batch.activated.data(), width);
  for (int64_t t = 0; t < count; ++t) {
    float* gate = batch.gate_up.data() + t * 2 * width;
    const float* back = batch.activated.data() + t * width;
    for (int64_t j = 0; j < width; ++j) {
      const float g = gate[j];
      const float up = gate[width + j];
      const float s = 1.0f / (1.0f + std::exp(-g));
      gate[j] = back[j] * up * (s + g * s * (1.0f - s));
      gate[width + j] = back[j] * g * s;
    }
  }
  AddRows(batch.gate_up.data(), count, 2 * width, &gradient->gate_up_bias);
  Sgemm(true, false, 2 * width, rank, count, batch.gate_up.data(), 2 * width, batch.z.data(), rank, 0.0f,
        gradient->gate_up.values.data(), rank);
  return loss;
}

absl::StatusOr<AlignerResult> TrainAligner(const AlignerData& train, const AlignerData& held_out,
                                           const HostMatrix& linear, const AlignerTraining& options,
                                           const std::function<bool()>& keep_going) {
  if (train.tokens < 1 || held_out.tokens < 1) {
    return absl::InvalidArgumentError("an aligner needs calibration tokens to train on and to hold out");
  }
  const Whitening whitening(train, linear.cols);
  const AlignerData white_train = whitening.Apply(train);
  const AlignerData white_held_out = whitening.Apply(held_out);
  AlignerWeights weights = Start(linear, whitening, options);
  const AlignerWeights start = weights;
  AlignerResult result;
  result.linear_error = RelativeError(start, white_held_out);

  std::mt19937_64 random(options.seed ^ 0x9e3779b97f4a7c15u);
  std::vector<int64_t> order(static_cast<size_t>(train.tokens));
  std::iota(order.begin(), order.end(), 0);
  Adam adam(weights);
  AlignerWeights gradient;
  const int64_t batches = (train.tokens + options.batch - 1) / options.batch;
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    if (!keep_going()) return absl::CancelledError("calibration was interrupted");
    Shuffle(random, &order);
    for (int64_t b = 0; b < batches; ++b) {
      const int64_t begin = b * options.batch;
      AlignerLoss(weights, white_train, order.data(), begin, std::min(options.batch, train.tokens - begin),
                  &gradient);
      const double progress =
          static_cast<double>(epoch * batches + b) / static_cast<double>(options.epochs * batches);
      adam.Step(options.learning_rate * 0.5 * (1.0 + std::cos(M_PI * progress)), &gradient, &weights);
    }
  }
  result.trained_error = RelativeError(weights, white_held_out);
  if (!(result.trained_error < result.linear_error)) {
    weights = start;
    result.trained_error = result.linear_error;
  }
  whitening.Unwhiten(&weights.skip, &weights.bias);
  whitening.Unwhiten(&weights.gate_up, &weights.gate_up_bias);
  result.weights = std::move(weights);
  return result;
}

}  // namespace aludel
