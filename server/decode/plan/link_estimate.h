#pragma once

#include <algorithm>
#include <array>

namespace aludel {

// What a link carries, learned from payloads that came over it. A pause of a process or of a machine looks like a slow link,
// and would make payloads of other sizes seem hopeless: so what is small says nothing, one observation is not enough, and
// of the latest few the fastest counts, because nothing is fast by accident. Not thread-safe.
class LinkEstimate {
 public:
  // `bytes` came in `seconds`. `waited`: they were what was waited for, and not their producer.
  void Observe(double bytes, double seconds, bool waited) {
    if (!(seconds > 0) || bytes < kTellingBytes) return;
    const double rate = bytes / seconds;
    if (!waited) {
      for (int i = 0; i < count_; ++i) rates_[i] = std::max(rates_[i], rate);  // it carries at least that
    } else {
      rates_[next_] = rate;
      next_ = (next_ + 1) % kLatest;
      count_ = std::min(count_ + 1, kLatest);
    }
  }

  // 0: faster than anything that was sent.
  double bytes_per_second() const {
    return count_ < kEnough ? 0 : *std::max_element(rates_.begin(), rates_.begin() + count_);
  }

  static constexpr double kTellingBytes = 32 << 10;

 private:
  static constexpr int kLatest = 3;
  static constexpr int kEnough = 2;

  std::array<double, kLatest> rates_ = {};  // while fewer were seen, the first count_
  int count_ = 0;
  int next_ = 0;
};

}  // namespace aludel
