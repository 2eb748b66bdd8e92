#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/engine/engine.h"
#include "server/config/decode_options.h"
#include "server/observe/metrics.h"
#include "server/process/timer.h"

namespace aludel {

// Likeliest tokens of which a shadow check compares the probabilities.
inline constexpr int kShadowLogprobs = 20;

// An answer over a handed-over cache, as its engine gave it.
struct ShadowAnswer {
  std::string format;
  std::string cache_salt;
  std::vector<int32_t> prompt;
  std::vector<int32_t> tokens;
  std::vector<std::vector<TokenLogprob>> logprobs;  // of each token: its own, then the likeliest
  absl::Time ended;                                 // MonotonicNow()

  // Up to a bound: a long answer is checked by its beginning.
  void Keep(const TokenEvent& event);
};

// KL(p || q) in nats over the partition that both lists can tell apart: the tokens that stand in both, and
// the rest as one. No larger than the KL of the whole distributions. Lists are those of TokenEvent::logprobs.
double PartitionKl(absl::Span<const TokenLogprob> p, absl::Span<const TokenLogprob> q);

// What shadow checks export, by model and format.
class ShadowMetrics {
 public:
  explicit ShadowMetrics(Metrics* metrics);
  void CountCheck(const std::string& model, const std::string& format, const std::string& outcome) const;
  void ObserveTokens(const std::string& model, const std::string& format, int64_t agreeing,
                     int64_t differing) const;
  // Of one token.
  void ObserveKl(const std::string& model, const std::string& format, double nats) const;

 private:
  const CounterFamily checks_;
  const CounterFamily tokens_;
  const HistogramFamily kl_;
};

// Computes a share of the answers again in idle time: local prefill of the prompt, then the same tokens,
// forced; exports how often its likeliest token differs, and the KL of its distributions to those that were
// sampled from. One at a time, begun when the engine has nothing else to do and cancelled when something
// comes. Answers beyond the queue, too old, or interrupted are counted and forgotten. Thread-safe.
class ShadowChecker {
 public:
  // All must outlive the checker; `engine` until Stop.
  ShadowChecker(const ShadowOptions& options, std::string model, Engine* engine, Timer* timer,
                Metrics* metrics);
  ~ShadowChecker();
  // Begins no check any more and leaves the engine alone. Idempotent.
  void Stop();

  // Whether the next answer shall be kept, at random.
  bool Choose() const;
  void Offer(ShadowAnswer answer);

 private:
  class Check;
  void Look();

  const ShadowOptions options_;
  const std::string model_;
  Engine* const engine_;
  Timer* const timer_;
  const ShadowMetrics metrics_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<ShadowAnswer> queue_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Check> running_ ABSL_GUARDED_BY(mutex_);
  SequenceId sequence_ ABSL_GUARDED_BY(mutex_) = 0;  // of running_
  Timer::Id next_look_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: nothing to look for
};

}  // namespace aludel
