#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace aludel {

// For deadlines and pacing, which must not jump when the wall clock is set. The epoch means nothing: compare
// only with other values of this function.
inline absl::Time MonotonicNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace aludel
