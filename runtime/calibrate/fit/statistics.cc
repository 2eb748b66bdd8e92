#include "runtime/calibrate/fit/statistics.h"

#include <algorithm>
#include <memory>
#include <random>

#include "runtime/calibrate/fit/capture.h"
#include "runtime/calibrate/fit/dense.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// Which tokens of a set of prompts are sampled: each with the same probability, the same for every layer.
class TokenSampler {
 public:
  TokenSampler(const std::vector<std::vector<int32_t>>& prompts, int64_t limit, uint64_t seed)
      : limit_(limit), random_(seed) {
    for (const auto& prompt : prompts) left_ += static_cast<int64_t>(prompt.size());
    limit_ = std::min(limit_, left_);
  }
  // Selection sampling (Knuth, algorithm S): exactly the limit, in order.
  std::vector<int64_t> Choose(int64_t tokens) {
    std::vector<int64_t> chosen;
    for (int64_t t = 0; t < tokens; ++t, --left_) {
      if (static_cast<int64_t>(random_() % static_cast<uint64_t>(left_)) >= limit_) continue;
      chosen.push_back(t);
      --limit_;
    }
    return chosen;
  }

 private:
  int64_t limit_;
  std::mt19937_64 random_;
  int64_t left_ = 0;
};

void AppendSample(const std::vector<float>& joint, int64_t hidden, const std::vector<int64_t>& tokens,
                  StateSample* sample) {
  for (const int64_t token : tokens) {
    const float* row = joint.data() + token * 2 * hidden;
    for (int64_t j = 0; j < hidden; ++j) sample->producer.push_back(ToBf16(row[j]));
    for (int64_t j = 0; j < hidden; ++j) sample->consumer.push_back(ToBf16(row[hidden + j]));
  }
  sample->tokens += static_cast<int64_t>(tokens.size());
}

int64_t LongestPrompt(const CalibrationPrompts& prompts) {
  size_t longest = 1;
  for (const auto& prompt : prompts.train) longest = std::max(longest, prompt.size());
  for (const auto& prompt : prompts.held_out) longest = std::max(longest, prompt.size());
  return static_cast<int64_t>(longest);
}

}  // namespace

absl::StatusOr<std::vector<LayerStatistics>> CollectStatistics(Transformer& producer, Transformer& consumer,
                                                               const CalibrationPrompts& prompts,
                                                               const StatisticsOptions& options,
                                                               const CalibrationProgress& progress) {
  const ModelConfig& config = producer.config();
  std::vector<LayerStatistics> layers(config.layers);
  for (LayerStatistics& layer : layers) {
    layer.k = Moments::Zeros(2 * config.kv_dim(), 2 * config.kv_dim());
    layer.v = Moments::Zeros(2 * config.kv_dim(), 2 * config.kv_dim());
    layer.h = Moments::Zeros(2 * config.hidden, 2 * config.hidden);
  }
  std::vector<CapturedLayer> rows(config.layers);
  const int64_t longest = LongestPrompt(prompts);
  ALUDEL_ASSIGN_OR_RETURN(const auto left,
                          PromptCapture::Create(producer, CaptureHalf::kLeft, longest, &rows));
  ALUDEL_ASSIGN_OR_RETURN(const auto right,
                          PromptCapture::Create(consumer, CaptureHalf::kRight, longest, &rows));

  const auto total = static_cast<int64_t>(prompts.train.size() + prompts.held_out.size());
  int64_t done = 0;
  const auto visit = [&](const std::vector<int32_t>& prompt) -> absl::Status {
    if (!progress("prefill both models", done++, total)) {
      return absl::CancelledError("calibration was interrupted");
    }
    for (CapturedLayer& layer : rows) layer = {};
    ALUDEL_RETURN_IF_ERROR(left->Run(prompt));
    return right->Run(prompt);
  };
  TokenSampler train_sampler(prompts.train, options.sample_tokens, options.seed);
  for (const auto& prompt : prompts.train) {
    ALUDEL_RETURN_IF_ERROR(visit(prompt));
    const auto tokens = static_cast<int64_t>(prompt.size());
    const std::vector<int64_t> chosen = train_sampler.Choose(tokens);
    for (int l = 0; l < config.layers; ++l) {
      AddGram(rows[l].k.data(), tokens, &layers[l].k);
      AddGram(rows[l].v.data(), tokens, &layers[l].v);
      AddGram(rows[l].h.data(), tokens, &layers[l].h);
      AppendSample(rows[l].h, config.hidden, chosen, &layers[l].train);
    }
  }
  TokenSampler held_out_sampler(prompts.held_out, options.held_out_sample_tokens, options.seed);
  for (const auto& prompt : prompts.held_out) {
    ALUDEL_RETURN_IF_ERROR(visit(prompt));
    const std::vector<int64_t> chosen = held_out_sampler.Choose(static_cast<int64_t>(prompt.size()));
    for (int l = 0; l < config.layers; ++l) {
      AppendSample(rows[l].h, config.hidden, chosen, &layers[l].held_out);
    }
  }
  progress("prefill both models", total, total);
  return layers;
}

size_t StatisticsBytes(const ModelConfig& config, const StatisticsOptions& options) {
  const size_t kv = 2 * static_cast<size_t>(config.kv_dim());
  const size_t hidden = 2 * static_cast<size_t>(config.hidden);
  const size_t samples = static_cast<size_t>(options.sample_tokens + options.held_out_sample_tokens);
  return config.layers * ((2 * kv * kv + hidden * hidden) * sizeof(double) + samples * hidden * sizeof(Bf16));
}

}  // namespace aludel
