#include "runtime/calibrate/scd/fit_control.h"

#include <algorithm>

#include "runtime/calibrate/fit/capture.h"
#include "runtime/calibrate/fit/dense.h"
#include "runtime/calibrate/fit/linear_fit.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// Moments of one control: x = [h, 1] of its side layer, y = [K V] of every deeper layer.
struct ControlMoments {
  Moments xx;
  std::vector<Moments> xy;  // [layers], empty up to the side layer
};

ControlMoments ZeroMoments(const ModelConfig& config, int recomputed_layers) {
  const int64_t inputs = config.hidden + 1;
  ControlMoments moments{Moments::Zeros(inputs, inputs), std::vector<Moments>(config.layers)};
  for (int layer = recomputed_layers + 1; layer < config.layers; ++layer) {
    moments.xy[layer] = Moments::Zeros(inputs, 2 * config.kv_dim());
  }
  return moments;
}

// Columns of `a` and of `b` side by side.
std::vector<float> SideBySide(const std::vector<float>& a, int64_t a_cols, const std::vector<float>& b,
                              int64_t b_cols, int64_t rows) {
  std::vector<float> joint(static_cast<size_t>(rows * (a_cols + b_cols)));
  for (int64_t t = 0; t < rows; ++t) {
    float* row = joint.data() + t * (a_cols + b_cols);
    std::copy_n(a.data() + t * a_cols, a_cols, row);
    std::copy_n(b.data() + t * b_cols, b_cols, row + a_cols);
  }
  return joint;
}

absl::StatusOr<ControlWeights> Solve(const ControlMoments& moments, int recomputed_layers,
                                     const ModelConfig& config, double ridge) {
  ControlWeights weights;
  weights.recomputed_layers = recomputed_layers;
  weights.layers.resize(config.layers);
  for (int layer = recomputed_layers + 1; layer < config.layers; ++layer) {
    ALUDEL_ASSIGN_OR_RETURN(const HostMatrix fit, FitRidge(moments.xx, moments.xy[layer], ridge));
    ControlLayer& out = weights.layers[layer];
    out.kv = HostMatrix::Zeros(fit.rows, config.hidden);
    for (int64_t i = 0; i < fit.rows; ++i) {
      std::copy_n(fit.row(i), config.hidden, out.kv.row(i));
      out.bias.push_back(fit.row(i)[config.hidden]);
    }
  }
  return weights;
}

}  // namespace

absl::StatusOr<std::vector<ControlWeights>> FitControls(Transformer& consumer,
                                                        const std::vector<std::vector<int32_t>>& prompts,
                                                        int max_recomputed_layers, double ridge,
                                                        const CalibrationProgress& progress) {
  const ModelConfig& config = consumer.config();
  std::vector<ControlMoments> moments;
  for (int p = 0; p <= max_recomputed_layers; ++p) moments.push_back(ZeroMoments(config, p));
  size_t longest = 1;
  for (const auto& prompt : prompts) longest = std::max(longest, prompt.size());
  std::vector<CapturedLayer> layers(config.layers);
  ALUDEL_ASSIGN_OR_RETURN(const auto capture, PromptCapture::Create(consumer, CaptureHalf::kWhole,
                                                                    static_cast<int64_t>(longest), &layers));
  const auto total = static_cast<int64_t>(prompts.size());
  int64_t done = 0;
  for (const auto& prompt : prompts) {
    if (!progress("fit zero-byte controls", done++, total)) {
      return absl::CancelledError("calibration was interrupted");
    }
    for (CapturedLayer& layer : layers) layer = {};
    ALUDEL_RETURN_IF_ERROR(capture->Run(prompt));
    const auto rows = static_cast<int64_t>(prompt.size());
    const std::vector<float> ones(prompt.size(), 1.0f);
    std::vector<std::vector<float>> x;
    for (int p = 0; p <= max_recomputed_layers; ++p) {
      x.push_back(SideBySide(layers[p].h, config.hidden, ones, 1, rows));
      AddGram(x[p].data(), rows, &moments[p].xx);
    }
    for (int layer = 1; layer < config.layers; ++layer) {
      const int64_t kv_dim = config.kv_dim();
      const std::vector<float> y = SideBySide(layers[layer].k, kv_dim, layers[layer].v, kv_dim, rows);
      for (int p = 0; p <= std::min(max_recomputed_layers, layer - 1); ++p) {
        AddProduct(x[p].data(), y.data(), rows, &moments[p].xy[layer]);
      }
    }
  }
  progress("fit zero-byte controls", total, total);

  std::vector<ControlWeights> controls;
  for (int p = 0; p <= max_recomputed_layers; ++p) {
    ALUDEL_ASSIGN_OR_RETURN(ControlWeights weights, Solve(moments[p], p, config, ridge));
    controls.push_back(std::move(weights));
  }
  return controls;
}

}  // namespace aludel
