#pragma once

#include <algorithm>
#include <cstddef>

#include "absl/time/time.h"

namespace aludel {

// Emulates a link of a fixed rate: says when the last byte of a message would have left, one message after
// the other. A message is handed on at that moment, as it would arrive whole at the other end of such a link.
// Keeps no clock of its own; not thread-safe.
class Pacer {
 public:
  // 0: no limit.
  explicit Pacer(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  bool limited() const { return bytes_per_second_ > 0; }

  // When the message that is queued now has left. Unlimited: at once. Never sooner than for the message
  // before it.
  absl::Time Admit(absl::Time now, size_t bytes) {
    if (!limited()) return now;
    free_at_ = std::max(free_at_, now) + absl::Seconds(static_cast<double>(bytes) / bytes_per_second_);
    return free_at_;
  }

 private:
  const double bytes_per_second_;
  absl::Time free_at_ = absl::InfinitePast();
};

}  // namespace aludel
