#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/calibrate/aludel/decoder_net.h"
#include "runtime/calibrate/aludel/gradient/cache_gradient.h"
#include "runtime/calibrate/aludel/state_file.h"
#include "runtime/calibrate/fit/statistics.h"

namespace aludel {

// The end of calibration: decoders that L2 loss has fitted are tuned to what a handoff is for. The loss is
// KL(consumer on its own cache || consumer on the decoded cache) over the answers that it gives by itself and
// over stretches of the prompts; its gradient goes through the consumer's layers into the decoders' weights.

// One prompt in the rows of the states (StateFile), and the answer to it.
struct TuningPrompt {
  int64_t head = 0;       // tokens that the consumer computes itself
  int64_t head_row = 0;   // row of the first of them
  int64_t first_row = 0;  // row of token `head`
  std::vector<int32_t> ids;
  std::vector<int32_t> answer;  // the consumer's greedy one, the end token included where it came to it

  // In the cache when the answer begins.
  int64_t cached() const { return static_cast<int64_t>(ids.size()) - 1; }
};

// The consumer's answers, on its own cache `own`, to prompts that lie there one behind the other. Prompts
// that leave no room for an answer are left out.
absl::StatusOr<std::vector<TuningPrompt>> AnswerPrompts(CacheGradient& consumer, const StateFile& own,
                                                        absl::Span<const std::vector<int32_t>> prompts,
                                                        int max_answer_tokens,
                                                        const CalibrationProgress& progress);

// The decoder of one group of layers on its way through tuning. Columns of its part of a cache row are
// mean + scale net(u).
struct TunedGroup {
  int64_t first_column = 0;        // in a cache row
  std::vector<float> mean, scale;  // [outputs]
  DecoderNet net;
};

// Prompts to tune on, and the states that they lie in.
struct TuningText {
  // Rows [begin, begin + count) of the net's inputs, [count, inputs].
  using Inputs = std::function<void(int64_t begin, int64_t count, float* u)>;

  const StateFile* own = nullptr;  // the consumer's
  std::vector<Inputs> inputs;      // [groups]
  absl::Span<const TuningPrompt> prompts;
};

inline constexpr double kNetworkRate = 3e-4;
// A linear decoder has thousands of inputs: a step moves what it says of a token by about as many rates.
inline constexpr double kLinearRate = 3e-5;

struct DecoderTuning {
  int64_t passes = -1;       // over the prompts of training; 0: none, -1: see TuningPasses
  int64_t batch = 16;        // prompts a step
  double learning_rate = 0;  // of Adam, down to 0 along a cosine; 0: kNetworkRate or kLinearRate
  // A stretch of every prompt counts beside its answer, so that few answers are not learnt by heart.
  int64_t stretch = 16;         // tokens
  double stretch_weight = 0.5;  // of one of its tokens, beside an answer's
  uint64_t seed = 1;
  // Asked after every step: true ends it there. None: never.
  std::function<bool()> time_is_up;
};

// Tunes the decoders of all groups of one consumer together. Layers outside of the groups have the consumer's
// own cache. Deterministic for a seed and a sequence of calls.
class DecoderTuner {
 public:
  // `prompts` in all passes together decide the course of the learning rate.
  DecoderTuner(std::vector<TunedGroup> groups, const DecoderTuning& tuning, int64_t prompts);

  // Takes every prompt once, in random order. `consumer` has the weights. Returns the mean KL per answer
  // token on the way, in nats. Progress returning false ends it with Cancelled.
  absl::StatusOr<double> Pass(CacheGradient& consumer, const TuningText& text,
                              const CalibrationProgress& progress);

  std::vector<TunedGroup> TakeGroups() && { return std::move(groups_); }

  // What a run is resumed from between two passes: all weights and moments, and how far it had come.
  struct Course {
    int64_t step = 0;
    int64_t draws = 0;  // of random numbers
  };
  WeightList Weights();
  Course course() const { return {step_, draws_}; }
  // For a tuner that was made alike and has drawn nothing, whose Weights() have been restored.
  void Resume(const Course& course);

 private:
  // Adds the gradient of `weight` times the KL over `tail`, which follows the first `cached` tokens of a
  // prompt, and returns that KL's sum.
  absl::StatusOr<double> Add(CacheGradient& consumer, const TuningText& text, const TuningPrompt& prompt,
                             int64_t cached, absl::Span<const int32_t> tail, double weight);
  absl::StatusOr<double> AddStretch(CacheGradient& consumer, const TuningText& text,
                                    const TuningPrompt& prompt);
  void Decode(const TuningText& text, const TuningPrompt& prompt, int64_t cached);
  // Slopes of tokens [head, cached).
  void Backward(int64_t head, int64_t cached, float factor);
  double Rate(const DecoderNet& net) const;
  void Step();

  int64_t columns_ = 0;  // of a cache row
  std::vector<TunedGroup> groups_;
  DecoderTuning tuning_;
  int64_t steps_;
  int64_t step_ = 0;
  std::mt19937_64 random_;
  int64_t draws_ = 0;
  std::vector<DecoderPass> passes_;  // [groups], as all that follows
  std::vector<std::vector<float>> u_;
  std::vector<DecoderNet> gradients_;
  std::vector<Adam> adams_;
  std::vector<float> cache_, target_, slope_;  // of the prompt at hand
};

}  // namespace aludel
