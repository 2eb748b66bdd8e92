#include "runtime/calibrate/aludel/tune_passages.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "kernels/check.h"
#include "runtime/calibrate/aludel/checkpoint.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMostRise = 100;  // steps

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

// Which passage is the `place`th, counted over all epochs: each epoch has an order of its own.
size_t PassageAt(int64_t place, size_t passages, uint64_t seed) {
  const auto count = static_cast<int64_t>(passages);
  std::vector<size_t> order(passages);
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937_64 random(seed + static_cast<uint64_t>(place / count) * 0x9e3779b97f4a7c15u);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order[place % count];
}

// Of one token: the target's tokens say all but rounding of KL(target || softmax(logits)).
double KlTo(const std::vector<std::pair<int32_t, float>>& target, absl::Span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  const double log_sum = top + std::log(sum);
  double kl = 0;
  for (const auto& [id, log_target] : target) {
    kl += std::exp(static_cast<double>(log_target)) * (log_target - (logits[id] - log_sum));
  }
  return kl;
}

}  // namespace

PassageTuner::PassageTuner(std::vector<TunedGroup> groups, const PassageTuning& tuning,
                           std::string checkpoint, std::function<void(const TuningState&)> seen)
    : groups_(std::move(groups)),
      tuning_(tuning),
      checkpoint_(std::move(checkpoint)),
      report_(std::move(seen)),
      passes_(groups_.size()),
      u_(groups_.size()) {
  for (const TunedGroup& group : groups_) {
    ALUDEL_CHECK(group.net.linear.rows > 0 && group.net.hidden.rows == 0);
    corrections_.push_back(StartLowRank(tuning.rank, group.net.linear.cols, group.net.linear.rows,
                                        tuning.seed + corrections_.size()));
    adams_.emplace_back(WeightsOf(&corrections_.back()));
  }
  best_ = corrections_;
}

void PassageTuner::Decode(const TuningPassage& passage, int64_t columns) {
  const int64_t tokens = passage.passage->tokens();
  const int64_t coded = tokens - tuning_.head;
  cache_ = ReadPassage(*passage.own, passage.first_row, tokens, columns);
  for (size_t g = 0; g < groups_.size(); ++g) {
    const TunedGroup& group = groups_[g];
    u_[g].resize(coded * group.net.inputs());
    (*passage.inputs)[g](passage.first_row + tuning_.head, coded, u_[g].data());
    std::vector<float> y = RunDecoder(group.net, u_[g].data(), coded);
    passes_[g].AddForward(corrections_[g], u_[g].data(), coded, y.data());
    const auto outputs = static_cast<int64_t>(group.mean.size());
    for (int64_t t = 0; t < coded; ++t) {
      float* row = cache_.data() + (tuning_.head + t) * columns + group.first_column;
      const float* decoded = y.data() + t * outputs;
      for (int64_t j = 0; j < outputs; ++j) row[j] = group.mean[j] + group.scale[j] * decoded[j];
    }
  }
}

absl::StatusOr<double> PassageTuner::AddGradient(CacheGradient& consumer, const TuningPassage& passage,
                                                 float weight, std::vector<LowRank>* gradients) {
  const int64_t columns = consumer.columns();
  const int64_t coded = passage.passage->tokens() - tuning_.head;
  const std::vector<int32_t> tail = passage.answers->Tail();
  const std::vector<TailBranch> branches = passage.answers->Branches(*passage.passage);
  Decode(passage, columns);
  ALUDEL_ASSIGN_OR_RETURN(
      const double kl,
      consumer.Kl({cache_, passage.passage->tokens(), tail, branches, passage.passage->trunk()},
                  passage.answers->LogProbabilities(static_cast<size_t>(consumer.config().vocab)), &slope_));
  // Kl() is the mean over all that is fed.
  const double per_target =
      static_cast<double>(tail.size()) / static_cast<double>(passage.answers->answered());
  const float factor = weight * static_cast<float>(per_target);
  for (size_t g = 0; g < groups_.size(); ++g) {
    const TunedGroup& group = groups_[g];
    const auto outputs = static_cast<int64_t>(group.mean.size());
    std::vector<float> slope(coded * outputs);
    for (int64_t t = 0; t < coded; ++t) {
      const float* row = slope_.data() + (tuning_.head + t) * columns + group.first_column;
      for (int64_t j = 0; j < outputs; ++j) slope[t * outputs + j] = factor * group.scale[j] * row[j];
    }
    passes_[g].Backward(corrections_[g], slope.data(), &(*gradients)[g]);
  }
  return kl * per_target;
}

absl::StatusOr<double> PassageTuner::Judge(CacheGradient& consumer,
                                           const std::vector<TuningPassage>& held_out,
                                           const CalibrationProgress& progress) {
  const auto vocab = static_cast<size_t>(consumer.config().vocab);
  Kl all;
  std::vector<float> logits;
  for (const TuningPassage& passage : held_out) {
    if (!progress("", 0, 0)) return absl::CancelledError("calibration was interrupted");
    Decode(passage, consumer.columns());
    const std::vector<int32_t> tail = passage.answers->Tail();
    const std::vector<TailBranch> branches = passage.answers->Branches(*passage.passage);
    ALUDEL_RETURN_IF_ERROR(consumer.Logits(
        {cache_, passage.passage->tokens(), tail, branches, passage.passage->trunk()}, &logits));
    for (size_t t = 0; t < tail.size(); ++t) {
      all.sum += KlTo(passage.answers->targets[t], absl::MakeConstSpan(logits).subspan(t * vocab, vocab));
    }
    all.tokens += static_cast<double>(passage.answers->answered());
  }
  return all.sum / std::max(1.0, all.tokens);
}

absl::Status PassageTuner::Step(CacheGradient& consumer, const std::vector<TuningPassage>& train, Kl* seen) {
  std::vector<LowRank> gradients;
  for (const LowRank& correction : corrections_) {
    gradients.push_back({HostMatrix::Zeros(correction.down.rows, correction.down.cols),
                         HostMatrix::Zeros(correction.up.rows, correction.up.cols),
                         std::vector<float>(correction.bias.size())});
  }
  for (int64_t i = 0; i < tuning_.batch; ++i) {
    const TuningPassage& passage =
        train[PassageAt(state_.step * tuning_.batch + i, train.size(), tuning_.seed)];
    ALUDEL_ASSIGN_OR_RETURN(
        const double kl,
        AddGradient(consumer, passage, 1.0f / static_cast<float>(tuning_.batch), &gradients));
    const auto tokens = static_cast<double>(passage.answers->answered());
    seen->sum += kl * tokens;
    seen->tokens += tokens;
  }
  const double rate = CosineRate(tuning_.learning_rate, state_.step, state_.steps,
                                 std::clamp<int64_t>(state_.steps / 10, 1, kMostRise));
  for (size_t g = 0; g < groups_.size(); ++g) {
    adams_[g].Step(rate, WeightsOf(&gradients[g]), WeightsOf(&corrections_[g]));
  }
  ++state_.step;
  return absl::OkStatus();
}

void PassageTuner::Note(double held_out_kl) {
  state_.held_out_kl = held_out_kl;
  if (state_.step == 0) state_.first_kl = held_out_kl;
  if (state_.step == 0 || held_out_kl < state_.best_kl) {
    state_.best_kl = held_out_kl;
    state_.best_step = state_.step;
    best_ = corrections_;
    worse_ = 0;
  } else {
    ++worse_;
  }
}

absl::StatusOr<TuningState> PassageTuner::Run(CacheGradient& consumer,
                                              const std::vector<TuningPassage>& train,
                                              const std::vector<TuningPassage>& held_out,
                                              const CalibrationProgress& progress) {
  const auto passages = static_cast<int64_t>(train.size());
  state_.steps = std::max<int64_t>(1, passages * tuning_.epochs / tuning_.batch);
  const int64_t between = std::max<int64_t>(1, state_.steps / tuning_.judgements);
  const auto begin = Clock::now();
  bool over = false;  // its time
  double judge_seconds = 0, step_seconds = 0;
  int64_t steps_timed = 0;
  Kl seen;
  const auto judge = [&]() -> absl::Status {
    const auto start = Clock::now();
    ALUDEL_ASSIGN_OR_RETURN(const double kl, Judge(consumer, held_out, progress));
    judge_seconds = Seconds(start);
    Note(kl);
    state_.train_kl = seen.sum / std::max(1.0, seen.tokens);
    seen = {};
    const int64_t left = state_.steps - state_.step;
    if (steps_timed > 0) {
      state_.seconds_left = static_cast<double>(left) * step_seconds / static_cast<double>(steps_timed) +
                            static_cast<double>(left / between) * judge_seconds;
    }
    report_(state_);
    return Save();
  };
  if (!Restore()) ALUDEL_RETURN_IF_ERROR(judge());
  while (state_.step < state_.steps && worse_ < tuning_.patience && !over) {
    if (!progress("tune the decoder", state_.step, state_.steps)) {
      return absl::CancelledError("calibration was interrupted");
    }
    const auto start = Clock::now();
    ALUDEL_RETURN_IF_ERROR(Step(consumer, train, &seen));
    step_seconds += Seconds(start);
    ++steps_timed;
    over = (tuning_.minutes > 0 && Seconds(begin) > 60 * tuning_.minutes) ||
           (tuning_.time_is_up && tuning_.time_is_up());
    if (state_.step % between == 0 || state_.step == state_.steps || over) {
      ALUDEL_RETURN_IF_ERROR(judge());
    }
  }
  progress("tune the decoder", state_.step, state_.step);  // it may have ended early
  return state_;
}

std::vector<TunedGroup> PassageTuner::TakeGroups() && {
  if (state_.best_step > 0) {
    for (size_t g = 0; g < groups_.size(); ++g) Merge(best_[g], &groups_[g].net);
  }
  return std::move(groups_);
}

WeightList PassageTuner::Weights() {
  WeightList all;
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (const WeightList& list : {WeightsOf(&corrections_[g]), WeightsOf(&best_[g]), adams_[g].Moments()}) {
      all.insert(all.end(), list.begin(), list.end());
    }
  }
  return all;
}

absl::Status PassageTuner::Save() {
  if (checkpoint_.empty()) return absl::OkStatus();
  const double course[] = {static_cast<double>(state_.step), static_cast<double>(worse_), state_.first_kl,
                           state_.best_kl, static_cast<double>(state_.best_step)};
  return SaveCheckpoint(checkpoint_, course, Weights());
}

bool PassageTuner::Restore() {
  double course[5] = {};
  if (!LoadCheckpoint(checkpoint_, absl::MakeSpan(course), Weights())) return false;
  state_.step = static_cast<int64_t>(course[0]);
  worse_ = static_cast<int64_t>(course[1]);
  state_.first_kl = course[2];
  state_.best_kl = course[3];
  state_.best_step = static_cast<int64_t>(course[4]);
  for (Adam& adam : adams_) adam.Resume(state_.step);
  return true;
}

}  // namespace aludel
