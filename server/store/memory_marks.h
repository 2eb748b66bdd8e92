#pragma once

#include <cstddef>

namespace aludel {

// When the memory tier makes room by utility (MemoryOrder), and how much: from a high mark on, down to a low one, in rows of
// moves that are short, since others wait for the store's lock; more of them only where memory is over its limit. Plain
// arithmetic, which a server and a simulator run alike. Not thread-safe.
class MemoryMarks {
 public:
  // Of the limit. What is above them is not used for chunks that stay: it is for what comes while codes are cut without the
  // lock, and for the newest chunks where all others were used more.
  static constexpr double kHigh = 0.99;
  static constexpr double kLow = 0.98;
  // Of codes that are cut under the lock in one row, where memory would be over its limit until later.
  static constexpr size_t kCutsInRow = 1 << 20;

  explicit MemoryMarks(size_t limit) : limit_(static_cast<double>(limit)) {}

  double low() const { return kLow * limit_; }
  // Above it room is made.
  double now() const { return demoting_ ? low() : kHigh * limit_; }
  // Bytes that memory holds, and those of them that stay once what is under way is done.
  struct Use {
    size_t held = 0;
    double kept = 0;
  };
  bool IsFull(const Use& use) const { return static_cast<double>(use.held) > limit_; }
  // Whether a row of moves begins.
  bool Begin(const Use& use) {
    demoting_ = IsFull(use) || use.kept > now();
    return demoting_;
  }
  // Whether it goes on after so many.
  bool GoesOn(const Use& use, int moves) const {
    return IsFull(use) || (use.kept > low() && moves < kMovesInRow);
  }
  // Whether it came down to the low mark. Then the next row waits for the high one, or what comes next, used once so far,
  // would always be what goes.
  bool End(const Use& use) {
    demoting_ = use.kept > low();
    return !demoting_;
  }

 private:
  static constexpr int kMovesInRow = 16;

  double limit_;
  bool demoting_ = false;
};

}  // namespace aludel
