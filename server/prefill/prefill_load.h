#pragma once

#include <atomic>
#include <cstdint>

namespace aludel {

// A prefill server's load, as it reports it to decode servers. Thread-safe.
class PrefillLoad {
 public:
  // Adds to, or takes from, the prompt tokens that wait to be computed.
  void Change(int64_t tokens) { waiting_tokens_.fetch_add(tokens); }
  // A computation took this long (its share of shared steps); the rate follows the last few.
  void Computed(int64_t tokens, double seconds) {
    if (tokens <= 0 || seconds <= 0) return;
    const double rate = static_cast<double>(tokens) / seconds;
    const double before = tokens_per_second_.load();
    tokens_per_second_ = before == 0 ? rate : before + kWeight * (rate - before);
  }

  int64_t waiting_tokens() const { return waiting_tokens_; }
  double tokens_per_second() const { return tokens_per_second_; }  // 0: nothing was computed yet

 private:
  static constexpr double kWeight = 0.2;
  std::atomic<int64_t> waiting_tokens_{0};  // of runs that have begun, not yet computed
  std::atomic<double> tokens_per_second_{0};
};

}  // namespace aludel
