#pragma once

#include <cstdint>

#include "runtime/engine/sequence.h"

namespace aludel {

// Makes the token masks of constrained sequences, before each step and for at most some milliseconds, so that
// a schema that makes masks expensive delays only the answers that follow it. A sequence whose mask is not
// there yet is paused before the step that would choose its next token. Owned by the engine thread.
class EngineMasks {
 public:
  // What one call may take, shared out to the constraints that have work, and what each gets at least.
  static constexpr int64_t kSteps = 1 << 18;  // 3 ms
  static constexpr int64_t kLeastSteps = 1 << 13;

  // Sets `lacks_mask` of all sequences. Those that wait for frames get theirs meanwhile.
  void Prepare(const SequenceMap& sequences);

  // The last Prepare left work.
  bool pending() const { return pending_; }

 private:
  bool pending_ = false;
};

}  // namespace aludel
