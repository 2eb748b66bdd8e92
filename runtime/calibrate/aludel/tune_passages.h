#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/calibrate/aludel/gradient/cache_gradient.h"
#include "runtime/calibrate/aludel/low_rank.h"
#include "runtime/calibrate/aludel/passage.h"
#include "runtime/calibrate/aludel/passage_answers.h"
#include "runtime/calibrate/aludel/tune_decoder.h"

namespace aludel {

// Tuning of linear decoders to answers by corrections of low rank (LowRank). All questions about a passage go through
// the consumer in one pass, and only their answers and what it recomputes in front of them do. What is kept is the step at
// which the KL on passages that are not learnt from was lowest; the decoder as it came is one of them.

// One passage, in the states of both sides. What is pointed to must live as long.
struct TuningPassage {
  const StateFile* own = nullptr;                           // the consumer's
  const std::vector<TuningText::Inputs>* inputs = nullptr;  // [groups]
  const Passage* passage = nullptr;
  const PassageAnswers* answers = nullptr;
  int64_t first_row = 0;
};

struct PassageTuning {
  int64_t rank = 32;
  int64_t epochs = 2;           // times that every passage is seen
  int64_t batch = 2;            // passages a step
  double learning_rate = 1e-3;  // of Adam, down to 0 along a cosine
  int64_t head = 0;             // tokens at a passage's head that the consumer computes itself
  int64_t judgements = 8;       // of the held-out passages on the way, beside the first
  int64_t patience = 4;         // judgements without a better one that end it early
  // Of this run; then the best step so far is kept. 0: as long as it takes. An interrupted run has them anew.
  double minutes = 0;
  uint64_t seed = 1;
  // Asked after every step: true ends it there, as `minutes` do. None: never.
  std::function<bool()> time_is_up;
};

// Where a run stands, after each judgement.
struct TuningState {
  int64_t step = 0;
  int64_t steps = 0;
  double train_kl = 0;  // since the last one; 0 before the first step
  double held_out_kl = 0;
  double first_kl = 0;  // of the decoder as it came
  double best_kl = 0;
  int64_t best_step = 0;
  double seconds_left = 0;  // at most, from what passages took so far; 0 before the first step
};

class PassageTuner {
 public:
  // `groups` are linear. With a `checkpoint`, a path that nothing else goes by, a run that was interrupted goes on from
  // its last judgement and ends with the same bytes. `seen` hears of every judgement.
  PassageTuner(std::vector<TunedGroup> groups, const PassageTuning& tuning, std::string checkpoint,
               std::function<void(const TuningState&)> seen);

  // Tunes on `train` and judges on `held_out`. Cancelled where progress returns false.
  absl::StatusOr<TuningState> Run(CacheGradient& consumer, const std::vector<TuningPassage>& train,
                                  const std::vector<TuningPassage>& held_out,
                                  const CalibrationProgress& progress);

  // The groups with the best corrections merged.
  std::vector<TunedGroup> TakeGroups() &&;

  // For checks: adds the gradient of the mean KL over a passage's answers to `gradients` [groups], and returns it.
  absl::StatusOr<double> AddGradient(CacheGradient& consumer, const TuningPassage& passage, float weight,
                                     std::vector<LowRank>* gradients);
  std::vector<LowRank>& corrections() { return corrections_; }

 private:
  struct Kl {
    double sum = 0;
    double tokens = 0;
  };

  // The passage's cache as the consumer would decode it, in cache_.
  void Decode(const TuningPassage& passage, int64_t columns);
  absl::StatusOr<double> Judge(CacheGradient& consumer, const std::vector<TuningPassage>& held_out,
                               const CalibrationProgress& progress);
  absl::Status Step(CacheGradient& consumer, const std::vector<TuningPassage>& train, Kl* seen);
  void Note(double held_out_kl);
  // Everything that a run's course depends on.
  WeightList Weights();
  absl::Status Save();
  bool Restore();

  std::vector<TunedGroup> groups_;
  const PassageTuning tuning_;
  const std::string checkpoint_;
  const std::function<void(const TuningState&)> report_;
  TuningState state_;
  int64_t worse_ = 0;                        // judgements since the best one
  std::vector<LowRank> corrections_, best_;  // [groups], as all that follows
  std::vector<Adam> adams_;
  std::vector<LowRankPass> passes_;
  std::vector<std::vector<float>> u_;
  std::vector<float> cache_, slope_;  // of the passage at hand
};

}  // namespace aludel
