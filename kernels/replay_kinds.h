#pragma once

#include <cstdint>

namespace aludel {

// A Device that remembers the work given to Replay is one of these, too. What it remembers takes memory, and time before it
// serves, for each kind of work: a caller whose work comes in many sizes rounds them up to few.
class ReplayKinds {
 public:
  virtual ~ReplayKinds() = default;

  // The most positions (ReplayKey) that what is remembered for `positions` serves; at least as many.
  virtual int64_t ReplayedPositions(int64_t positions) const = 0;
};

}  // namespace aludel
