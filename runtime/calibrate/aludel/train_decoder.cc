#include "runtime/calibrate/aludel/train_decoder.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <utility>

#include "kernels/check.h"
#include "runtime/calibrate/aludel/checkpoint.h"
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

// With the ridge that loses least on held-out rows, as long as their error falls with it and then rises: each costs a
// factorization, so it goes up from the middle as far as the error falls, and down where it did not fall.
absl::StatusOr<DecoderFit> TrainLinear(const DecoderData& train, const DecoderData& held_out,
                                       const std::vector<double>& ridges) {
  ALUDEL_CHECK(!ridges.empty());
  const LinearMoments moments = MeasureMoments(train);
  absl::StatusOr<DecoderFit> best = absl::InternalError("no ridge gives a fit that is finite");
  // True where it is the best so far, or where there is none yet: a larger one may do.
  const auto improves = [&](double ridge) {
    absl::StatusOr<DecoderNet> net = FitLinear(moments, ridge);
    if (!net.ok()) {
      if (!best.ok()) best = net.status();
      return !best.ok();
    }
    const double error = RelativeError(*net, held_out);
    if (!std::isfinite(error) || (best.ok() && error >= best->held_out_error)) return !best.ok();
    best = DecoderFit{*std::move(net), 0, error, ridge};
    return true;
  };
  const size_t middle = ridges.size() / 2;
  improves(ridges[middle]);
  size_t next = middle + 1;
  while (next < ridges.size() && improves(ridges[next])) ++next;
  if (!best.ok() || best->ridge == ridges[middle]) {
    for (size_t i = middle; i > 0 && improves(ridges[i - 1]); --i) continue;
  }
  if (best.ok()) best->train_error = RelativeError(best->net, train);
  return best;
}

// An MLP on its way.
class MlpTraining {
 public:
  MlpTraining(const DecoderData& train, const DecoderData& held_out, const DecoderTraining& options)
      : train_(train),
        held_out_(held_out),
        options_(options),
        steps_(options.steps),
        net_(StartMlp(train.inputs, train.outputs, options)),
        best_(options.patience > 0 ? net_ : DecoderNet()),
        adam_(WeightsOf(&net_)),
        random_(options.seed ^ 0x9e3779b97f4a7c15u),
        draw_(train),
        batch_(std::min(options.batch, train.rows)) {}

  absl::StatusOr<DecoderFit> Run(const std::function<bool(int64_t, int64_t)>& progress) {
    Restore();
    const int64_t first = step_;
    const auto begin = Clock::now();
    auto saved = begin;
    const auto seconds = [](Clock::time_point since) {
      return std::chrono::duration<double>(Clock::now() - since).count();
    };
    while (step_ < steps_ && !Over()) {
      if (step_ % kLook == 0) {
        if (!progress(step_, steps_)) {
          if (!options_.checkpoint.empty() && step_ > first) ALUDEL_RETURN_IF_ERROR(Save());
          return absl::CancelledError("calibration was interrupted");
        }
        if (step_ > first) Shorten(seconds(begin), step_ - first);
        if (step_ > first && !options_.checkpoint.empty() && seconds(saved) >= options_.save_seconds) {
          ALUDEL_RETURN_IF_ERROR(Save());
          saved = Clock::now();
        }
      }
      Step();
      if (options_.patience > 0 && (step_ % Between() == 0 || step_ == steps_)) Judge();
    }
    // The whole of it, so that what comes later may be interrupted, too.
    if (!options_.checkpoint.empty() && step_ > first) ALUDEL_RETURN_IF_ERROR(Save());
    progress(steps_, steps_);
    if (options_.patience > 0 && !judged_) {
      return absl::InternalError(
          "training of the decoder diverged: its error on held-out tokens was never a number; try another "
          "--seed, or --linear");
    }
    DecoderFit fit;
    fit.steps = step_;
    fit.cut = !Over() && steps_ < options_.steps;
    fit.net = options_.patience > 0 ? std::move(best_) : std::move(net_);
    // Of the result: a mean over the steps would tell of a short training's beginning.
    fit.train_error = RelativeError(fit.net, train_);
    fit.held_out_error = RelativeError(fit.net, held_out_);
    return fit;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t kLook = 16;   // steps between two looks at the clock
  static constexpr double kSettled = 1;  // seconds after which these tell how long others take

  bool Over() const { return options_.patience > 0 && worse_ >= options_.patience; }
  int64_t Between() const { return std::max<int64_t>(1, options_.steps / options_.judgements); }

  void Step() {
    u_.resize(batch_ * train_.inputs);
    y_.resize(batch_ * train_.outputs);
    for (int64_t t = 0; t < batch_; ++t) {
      const int64_t row = draw_(random_);
      Widen(train_.u, row, train_.inputs, u_.data() + t * train_.inputs);
      Widen(train_.y, row, train_.outputs, y_.data() + t * train_.outputs);
    }
    DecoderLoss(net_, u_.data(), y_.data(), batch_, &gradient_);
    adam_.Step(CosineRate(options_.learning_rate, step_, steps_), WeightsOf(&gradient_), WeightsOf(&net_));
    ++step_;
  }

  void Judge() {
    const double error = RelativeError(net_, held_out_);
    if (!std::isfinite(error) || (judged_ && error >= best_error_)) {
      ++worse_;
      return;
    }
    judged_ = true;
    best_error_ = error;
    best_ = net_;
    worse_ = 0;
  }

  // `taken` steps of this run took `seconds`. Of the first few nothing is concluded: pages and caches are cold.
  void Shorten(double seconds, int64_t taken) {
    if (options_.seconds <= 0 || seconds < std::min(kSettled, options_.seconds / 4)) return;
    const double each = seconds / static_cast<double>(taken);
    const double left = std::max(0.0, options_.seconds - seconds);
    const int64_t reached = step_ + std::max<int64_t>(1, static_cast<int64_t>(left / each));
    // What a stall took away comes back as later steps take less.
    steps_ = std::min(options_.steps, std::max(kFewestTrainingSteps, reached));
  }

  WeightList Weights() {
    WeightList all = WeightsOf(&net_);
    WeightList others = adam_.Moments();
    if (options_.patience > 0) {
      const WeightList best = WeightsOf(&best_);
      others.insert(others.end(), best.begin(), best.end());
    }
    all.insert(all.end(), others.begin(), others.end());
    return all;
  }

  absl::Status Save() {
    const double course[] = {static_cast<double>(step_), static_cast<double>(steps_),
                             static_cast<double>(worse_), judged_ ? 1.0 : 0.0, best_error_};
    return SaveCheckpoint(options_.checkpoint, course, Weights());
  }

  void Restore() {
    double course[5] = {};
    if (!LoadCheckpoint(options_.checkpoint, absl::MakeSpan(course), Weights())) return;
    step_ = static_cast<int64_t>(course[0]);
    steps_ = static_cast<int64_t>(course[1]);
    worse_ = static_cast<int64_t>(course[2]);
    judged_ = course[3] > 0;
    best_error_ = course[4];
    adam_.Resume(step_);
    random_.discard(static_cast<unsigned long long>(step_ * batch_));  // one for each row
  }

  const DecoderData& train_;
  const DecoderData& held_out_;
  const DecoderTraining& options_;
  int64_t step_ = 0;
  int64_t steps_;
  int64_t worse_ = 0;  // judgements since the best one
  bool judged_ = false;
  double best_error_ = 0;
  DecoderNet net_, best_, gradient_;
  Adam adam_;
  std::mt19937_64 random_;
  const RowDraw draw_;
  const int64_t batch_;
  std::vector<float> u_, y_;
};

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
  return MlpTraining(train, held_out, options).Run(progress);
}

}  // namespace aludel
