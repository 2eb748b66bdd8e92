#include "runtime/calibrate/aludel/tune_decoder.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int64_t kMostRise = 100;  // steps

// [tokens, columns]
void ReadCache(const StateFile& own, const TuningPrompt& prompt, int64_t tokens, int64_t columns,
               std::vector<float>* cache) {
  cache->resize(tokens * columns);
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t row = t < prompt.head ? prompt.head_row + t : prompt.first_row + t - prompt.head;
    own.Read(row, 0, columns, cache->data() + t * columns);
  }
}

void ToLogProbabilities(size_t vocab, std::vector<float>* logits) {
  for (auto row = logits->begin(); row != logits->end(); row += static_cast<int64_t>(vocab)) {
    const auto end = row + static_cast<int64_t>(vocab);
    const double top = *std::max_element(row, end);
    double sum = 0;
    for (auto at = row; at != end; ++at) sum += std::exp(*at - top);
    const double log_sum = top + std::log(sum);
    for (auto at = row; at != end; ++at) *at = static_cast<float>(*at - log_sum);
  }
}

// The same with every standard library, unlike std::shuffle.
void Shuffle(std::mt19937_64& random, std::vector<size_t>* order) {
  for (size_t i = order->size(); i > 1; --i) std::swap((*order)[i - 1], (*order)[random() % i]);
}

int64_t Batches(int64_t prompts, int64_t batch) { return (prompts + batch - 1) / batch; }

}  // namespace

absl::StatusOr<std::vector<TuningPrompt>> AnswerPrompts(CacheGradient& consumer, const StateFile& own,
                                                        absl::Span<const std::vector<int32_t>> prompts,
                                                        int max_answer_tokens,
                                                        const CalibrationProgress& progress) {
  const ModelConfig& config = consumer.config();
  std::vector<TuningPrompt> answered;
  std::vector<float> cache;
  int64_t row = 0, head_row = own.rows();
  for (size_t p = 0; p < prompts.size(); ++p) {
    if (!progress("answer the prompts", static_cast<int64_t>(p), static_cast<int64_t>(prompts.size()))) {
      return absl::CancelledError("calibration was interrupted");
    }
    const int64_t head = own.HeadTokens(prompts[p].size());
    TuningPrompt prompt{head, head_row, row, prompts[p], {}};
    row += static_cast<int64_t>(prompts[p].size()) - head;
    head_row += head;
    const auto cached = static_cast<int64_t>(prompts[p].size()) - 1;
    const int64_t most = std::min<int64_t>(max_answer_tokens, config.max_positions - cached);
    if (cached <= head || most < 1) continue;
    ReadCache(own, prompt, cached, consumer.columns(), &cache);
    const auto last = absl::MakeConstSpan(prompts[p]).last(1);
    ALUDEL_ASSIGN_OR_RETURN(
        auto answers, consumer.Answer({cache, cached, last}, most, [](size_t, absl::Span<const float>) {}));
    prompt.answer = std::move(answers.front());
    answered.push_back(std::move(prompt));
  }
  progress("answer the prompts", static_cast<int64_t>(prompts.size()), static_cast<int64_t>(prompts.size()));
  return answered;
}

DecoderTuner::DecoderTuner(std::vector<TunedGroup> groups, const DecoderTuning& tuning, int64_t prompts)
    : groups_(std::move(groups)),
      tuning_(tuning),
      steps_(Batches(prompts, tuning.batch)),
      random_(tuning.seed),
      passes_(groups_.size()),
      u_(groups_.size()) {
  for (TunedGroup& group : groups_) {
    gradients_.push_back(ZerosLike(group.net));
    adams_.emplace_back(WeightsOf(&group.net));
  }
}

absl::StatusOr<double> DecoderTuner::Pass(CacheGradient& consumer, const TuningText& text,
                                          const CalibrationProgress& progress) {
  columns_ = consumer.columns();
  std::vector<size_t> order(text.prompts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  Shuffle(random_, &order);
  draws_ += std::max<int64_t>(0, static_cast<int64_t>(order.size()) - 1);
  double kl = 0, tokens = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (!progress("tune the decoder", step_, steps_)) {
      return absl::CancelledError("calibration was interrupted");
    }
    const TuningPrompt& prompt = text.prompts[order[i]];
    std::vector<int32_t> tail = {prompt.ids.back()};
    tail.insert(tail.end(), prompt.answer.begin(), prompt.answer.end() - 1);
    ALUDEL_ASSIGN_OR_RETURN(const double sum, Add(consumer, text, prompt, prompt.cached(), tail, 1.0));
    kl += sum;
    tokens += static_cast<double>(tail.size());
    ALUDEL_RETURN_IF_ERROR(AddStretch(consumer, text, prompt).status());
    if ((i + 1) % static_cast<size_t>(tuning_.batch) != 0 && i + 1 < order.size()) continue;
    Step();
    if (tuning_.time_is_up && tuning_.time_is_up()) break;
  }
  kl /= std::max(1.0, tokens);
  progress(absl::StrFormat("tune the decoder, KL %.4f", kl), step_, steps_);
  return kl;
}

WeightList DecoderTuner::Weights() {
  WeightList all;
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (const WeightList& list : {WeightsOf(&groups_[g].net), adams_[g].Moments()}) {
      all.insert(all.end(), list.begin(), list.end());
    }
  }
  return all;
}

void DecoderTuner::Resume(const Course& course) {
  step_ = course.step;
  draws_ = course.draws;
  random_.discard(static_cast<unsigned long long>(draws_));
  for (Adam& adam : adams_) adam.Resume(step_);
}

absl::StatusOr<double> DecoderTuner::AddStretch(CacheGradient& consumer, const TuningText& text,
                                                const TuningPrompt& prompt) {
  const int64_t earliest = std::max(prompt.head + 1, prompt.cached() / 4);  // something was handed over
  const int64_t places = prompt.cached() - tuning_.stretch - earliest;
  if (tuning_.stretch_weight <= 0 || places < 1) return 0;
  const int64_t cached = earliest + static_cast<int64_t>(random_() % static_cast<uint64_t>(places));
  ++draws_;
  const auto tail = absl::MakeConstSpan(prompt.ids).subspan(cached, tuning_.stretch);
  return Add(consumer, text, prompt, cached, tail, tuning_.stretch_weight);
}

absl::StatusOr<double> DecoderTuner::Add(CacheGradient& consumer, const TuningText& text,
                                         const TuningPrompt& prompt, int64_t cached,
                                         absl::Span<const int32_t> tail, double weight) {
  ReadCache(*text.own, prompt, cached, columns_, &cache_);
  ALUDEL_RETURN_IF_ERROR(consumer.Logits({cache_, cached, tail}, &target_));
  ToLogProbabilities(static_cast<size_t>(consumer.config().vocab), &target_);
  Decode(text, prompt, cached);
  ALUDEL_ASSIGN_OR_RETURN(const double kl, consumer.Kl({cache_, cached, tail}, target_, &slope_));
  const auto tokens = static_cast<double>(tail.size());
  Backward(prompt.head, cached, static_cast<float>(weight * tokens));
  return kl * tokens;
}

void DecoderTuner::Decode(const TuningText& text, const TuningPrompt& prompt, int64_t cached) {
  const int64_t coded = cached - prompt.head;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const TunedGroup& group = groups_[g];
    u_[g].resize(coded * group.net.inputs());
    text.inputs[g](prompt.first_row, coded, u_[g].data());
    const std::vector<float> y = passes_[g].Forward(group.net, u_[g].data(), coded);
    const auto outputs = static_cast<int64_t>(group.mean.size());
    for (int64_t t = 0; t < coded; ++t) {
      float* row = cache_.data() + (prompt.head + t) * columns_ + group.first_column;
      const float* decoded = y.data() + t * outputs;
      for (int64_t j = 0; j < outputs; ++j) row[j] = group.mean[j] + group.scale[j] * decoded[j];
    }
  }
}

void DecoderTuner::Backward(int64_t head, int64_t cached, float factor) {
  const int64_t coded = cached - head;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const TunedGroup& group = groups_[g];
    const auto outputs = static_cast<int64_t>(group.mean.size());
    std::vector<float> slope(coded * outputs);
    for (int64_t t = 0; t < coded; ++t) {
      const float* row = slope_.data() + (head + t) * columns_ + group.first_column;
      for (int64_t j = 0; j < outputs; ++j) slope[t * outputs + j] = factor * group.scale[j] * row[j];
    }
    passes_[g].Backward(group.net, slope, &gradients_[g]);
  }
}

double DecoderTuner::Rate(const DecoderNet& net) const {
  if (tuning_.learning_rate > 0) return tuning_.learning_rate;
  return net.hidden.rows > 0 ? kNetworkRate : kLinearRate;
}

void DecoderTuner::Step() {
  // Few prompts make few steps, most of which the whole rise would take.
  const double course =
      CosineRate(1.0, std::min(step_, steps_ - 1), steps_, std::clamp<int64_t>(steps_ / 10, 1, kMostRise));
  for (size_t g = 0; g < groups_.size(); ++g) {
    adams_[g].Step(course * Rate(groups_[g].net), WeightsOf(&gradients_[g]), WeightsOf(&groups_[g].net));
    gradients_[g] = ZerosLike(groups_[g].net);
  }
  ++step_;
}

}  // namespace aludel
