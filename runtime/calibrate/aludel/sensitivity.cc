#include "runtime/calibrate/aludel/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>

#include "absl/strings/str_format.h"
#include "runtime/calibrate/fit/capture.h"
#include "runtime/calibrate/fit/dense.h"
#include "runtime/codec/handoff.h"
#include "runtime/evaluate/oracle.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// The consumer's own cache and answer of one prompt after another.
class Consumer {
 public:
  static absl::StatusOr<std::unique_ptr<Consumer>> Create(Transformer& model, int64_t longest,
                                                          int max_answer_tokens) {
    constexpr int kBlockTokens = 16;
    auto consumer = std::unique_ptr<Consumer>(new Consumer(model, max_answer_tokens));
    const int64_t blocks = (longest + max_answer_tokens + kBlockTokens - 1) / kBlockTokens;
    ALUDEL_ASSIGN_OR_RETURN(
        consumer->pool_,
        BlockPool::Create(model.device(), model.MakeKvLayout(blocks, kBlockTokens, DType::kBf16)));
    ALUDEL_RETURN_IF_ERROR(consumer->table_.Grow(*consumer->pool_, blocks * kBlockTokens));
    // Only watches: its own pages stay unused.
    ALUDEL_ASSIGN_OR_RETURN(consumer->capture_,
                            PromptCapture::Create(model, CaptureHalf::kWhole, 1, &consumer->layers_));
    return consumer;
  }

  // Fills cache() with all tokens of `prompt` but the last, and tail() with the last and the greedy answer.
  absl::Status Run(const std::vector<int32_t>& prompt) {
    const auto tokens = static_cast<int64_t>(prompt.size()) - 1;
    ALUDEL_RETURN_IF_ERROR(
        RunTokens(model_, *pool_, table_.ids(), prompt, 0, tokens, capture_.get(), nullptr));
    const int64_t kv_dim = model_.config().kv_dim();
    const int64_t layers = model_.config().layers;
    cache_.resize(static_cast<size_t>(tokens * layers * 2 * kv_dim));
    float* to = cache_.data();
    for (int64_t t = 0; t < tokens; ++t) {
      for (const CapturedLayer& layer : layers_) {
        to = std::copy_n(layer.k.data() + t * kv_dim, kv_dim, to);
        to = std::copy_n(layer.v.data() + t * kv_dim, kv_dim, to);
      }
    }
    const int64_t room = model_.config().max_positions - tokens;
    ALUDEL_ASSIGN_OR_RETURN(const Answer answer,
                            AnswerGreedily(model_, *pool_, table_.ids(), prompt,
                                           static_cast<int>(std::min<int64_t>(max_answer_tokens_, room))));
    tail_ = {prompt.back()};
    tail_.insert(tail_.end(), answer.tokens.begin(), answer.tokens.end() - 1);
    input_ = {cache_, tokens, tail_};
    return absl::OkStatus();
  }

  const CachedTail& input() const { return input_; }

 private:
  Consumer(Transformer& model, int max_answer_tokens)
      : model_(model), max_answer_tokens_(max_answer_tokens), layers_(model.config().layers) {}

  Transformer& model_;
  int max_answer_tokens_;
  std::unique_ptr<BlockPool> pool_;
  BlockTable table_;
  std::vector<CapturedLayer> layers_;
  std::unique_ptr<PromptCapture> capture_;
  std::vector<float> cache_;
  std::vector<int32_t> tail_;
  CachedTail input_;
};

absl::Status Check(const ModelConfig& consumer, const CacheGradient& gradients,
                   absl::Span<const std::vector<int32_t>> prompts, absl::Span<const CacheColumns> ranges,
                   const SensitivityOptions& options) {
  const ModelConfig& config = gradients.config();
  if (config.layers != consumer.layers || config.kv_dim() != consumer.kv_dim() ||
      config.hidden != consumer.hidden || config.vocab != consumer.vocab) {
    return absl::InvalidArgumentError("the weights for gradients are of another model than the consumer");
  }
  if (prompts.empty()) return absl::InvalidArgumentError("sensitivity needs calibration prompts");
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].size() < 2 || static_cast<int64_t>(prompts[i].size()) > consumer.max_positions) {
      return absl::InvalidArgumentError(absl::StrFormat("calibration prompt %d has %d tokens, want 2 to %d",
                                                        i, prompts[i].size(), consumer.max_positions));
    }
  }
  for (const CacheColumns& range : ranges) {
    if (range.first < 0 || range.count < 1 || range.first + range.count > gradients.columns()) {
      return absl::InvalidArgumentError(absl::StrFormat("%d columns from %d, the cache has %d", range.count,
                                                        range.first, gradients.columns()));
    }
  }
  if (options.max_answer_tokens < 1 || options.samples < 1 || !(options.max_norm > 0)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d answer tokens, %d samples, norm %g: want all positive", options.max_answer_tokens,
                        options.samples, options.max_norm));
  }
  return absl::OkStatus();
}

// True if it had to.
bool LimitNorm(double max_norm, std::vector<float>* gradient) {
  double square = 0;
  for (const float value : *gradient) square += static_cast<double>(value) * value;
  if (square <= max_norm * max_norm) return false;
  const auto scale = static_cast<float>(max_norm / std::sqrt(square));
  for (float& value : *gradient) value *= scale;
  return true;
}

// Collects rows of gradients and adds their products when there are enough of them: a Gram matrix costs as
// much for one row as for hundreds.
class GramBuffer {
 public:
  GramBuffer(absl::Span<const CacheColumns> ranges, int64_t columns, Sensitivity* result)
      : ranges_(ranges), columns_(columns), result_(result), rows_(ranges.size()) {}

  // `ids` are those of the cached tokens, of which the first `head` are left out. Rows with less than a millionth of the energy are left out.
  void Add(const std::vector<float>& gradient, absl::Span<const int32_t> ids, int64_t head) {
    const std::vector<double> energies = RowEnergies(gradient, static_cast<int64_t>(ids.size()));
    const double least = 1e-6 * std::accumulate(energies.begin(), energies.end(), 0.0);
    for (auto t = static_cast<size_t>(head); t < ids.size(); ++t) {
      IdEnergy& id = result_->by_id[ids[t]];
      id.energy += energies[t];
      ++id.count;
      if (energies[t] <= least) continue;
      const float* row = gradient.data() + t * columns_;
      for (size_t r = 0; r < ranges_.size(); ++r) {
        rows_[r].insert(rows_[r].end(), row + ranges_[r].first, row + ranges_[r].first + ranges_[r].count);
      }
      if (++count_ == kRows) Flush();
    }
    result_->tokens += std::max<int64_t>(0, static_cast<int64_t>(ids.size()) - head);
  }

  void Flush() {
    for (size_t r = 0; r < ranges_.size(); ++r) {
      if (count_ > 0) AddGram(rows_[r].data(), count_, &result_->ranges[r]);
      rows_[r].clear();
    }
    count_ = 0;
  }

 private:
  static constexpr int64_t kRows = 512;

  std::vector<double> RowEnergies(const std::vector<float>& gradient, int64_t tokens) const {
    std::vector<double> energies(tokens);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t j = 0; j < columns_; ++j) {
        const double value = gradient[t * columns_ + j];
        energies[t] += value * value;
      }
    }
    return energies;
  }

  absl::Span<const CacheColumns> ranges_;
  int64_t columns_;
  Sensitivity* result_;
  std::vector<std::vector<float>> rows_;  // per range [count, columns of the range]
  int64_t count_ = 0;
};

}  // namespace

absl::StatusOr<Sensitivity> MeasureSensitivity(Transformer& consumer, CacheGradient& gradients,
                                               absl::Span<const std::vector<int32_t>> prompts,
                                               absl::Span<const CacheColumns> ranges,
                                               const SensitivityOptions& options,
                                               const CalibrationProgress& progress) {
  ALUDEL_RETURN_IF_ERROR(Check(consumer.config(), gradients, prompts, ranges, options));
  Sensitivity result;
  for (const CacheColumns& range : ranges) result.ranges.push_back(Moments::Zeros(range.count, range.count));
  size_t longest = 0;
  for (const auto& prompt : prompts) longest = std::max(longest, prompt.size());
  ALUDEL_ASSIGN_OR_RETURN(
      const auto own, Consumer::Create(consumer, static_cast<int64_t>(longest), options.max_answer_tokens));
  std::mt19937_64 random(options.seed);
  std::vector<float> gradient;
  GramBuffer grams(ranges, gradients.columns(), &result);
  const auto total = static_cast<int64_t>(prompts.size());
  for (const auto& prompt : prompts) {
    if (!progress("measure sensitivity", result.prompts, total)) {
      return absl::CancelledError("calibration was interrupted");
    }
    ALUDEL_RETURN_IF_ERROR(own->Run(prompt));
    for (int sample = 0; sample < options.samples; ++sample) {
      ALUDEL_RETURN_IF_ERROR(gradients.SampledLogProbability(own->input(), random, &gradient).status());
      const auto head = std::min<int64_t>(options.head_tokens, static_cast<int64_t>(prompt.size()) - 1);
      std::fill_n(gradient.begin(), head * gradients.columns(), 0.0f);
      if (LimitNorm(options.max_norm, &gradient)) ++result.limited;
      grams.Add(gradient, absl::MakeConstSpan(prompt).first(prompt.size() - 1), options.head_tokens);
    }
    ++result.prompts;
  }
  grams.Flush();
  for (Moments& range : result.ranges) {
    for (double& value : range.values) value /= static_cast<double>(result.tokens);
  }
  progress("measure sensitivity", total, total);
  return result;
}

}  // namespace aludel
