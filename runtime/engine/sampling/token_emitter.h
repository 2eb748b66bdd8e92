#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/sampling/sampler.h"
#include "runtime/engine/sequence.h"

namespace aludel {

// Turns a row of logits, or the token that the device has drawn from it, into an event: chooses the token,
// makes its text, looks for stop strings. Owned by the engine thread.
class TokenEmitter {
 public:
  TokenEmitter(std::vector<int> eos_ids, size_t vocab) : eos_ids_(std::move(eos_ids)), scratch_(vocab) {}

  // Appends the next token to `sequence` and tells its listener, unless the token ends it without text.
  // Returns the finish reason where the sequence ends here; the caller finishes it. FailedPrecondition where
  // no token of the vocabulary spells what the constraint asks for, Internal where the logits are no numbers.
  // logits [vocab], not looked at where a token was `drawn` (see Sequence::DeviceDraw).
  absl::StatusOr<std::optional<FinishReason>> Emit(Sequence& sequence, absl::Span<const float> logits,
                                                   std::optional<int32_t> drawn);

 private:
  const std::vector<int> eos_ids_;
  SamplerScratch scratch_;
};

}  // namespace aludel
