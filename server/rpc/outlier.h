#pragma once

#include <algorithm>

namespace aludel {

// Whether a server that answers probes is left out all the same, because requests fail there: after kFailures in a row for
// kFirstSeconds, and twice as long each time that the next request fails too, up to kMostSeconds. Gateways leave out decode
// servers so, and those prefill servers. Times are seconds of one clock. Pure. Not thread-safe.
class Outlier {
 public:
  static constexpr int kFailures = 3;
  static constexpr double kFirstSeconds = 5;
  static constexpr double kMostSeconds = 80;

  void Succeeded() { *this = Outlier(); }
  // True where it is left out from now on.
  bool Failed(double now) {
    if (now < until_) return false;  // a request from before
    if (++failures_ < kFailures) return false;
    seconds_ = seconds_ == 0 ? kFirstSeconds : std::min(2 * seconds_, kMostSeconds);
    until_ = now + seconds_;
    return true;
  }
  bool ejected(double now) const { return now < until_; }

  // Whether so many of the servers that are ready may be left out: where most fail, it is not for what they are.
  template <typename Count>
  static bool MayEject(Count ejected, Count ready) {
    return ejected > 0 && 2 * ejected <= ready;
  }

 private:
  int failures_ = 0;
  double seconds_ = 0;  // of the last time
  double until_ = 0;
};

}  // namespace aludel
