#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "runtime/codec/aludel/latent_coder.h"
#include "runtime/codec/aludel/weights.h"
#include "runtime/evaluate/in_process_handoff.h"

namespace aludel {

// The range (code_range.h) of codes in whole frames of one encoder: what AludelShape::range becomes where they are of prompts that
// no fit has seen. Not thread-safe.
class CodeRangeMeter {
 public:
  // Both must outlive it.
  CodeRangeMeter(const AludelShape& shape, const AludelEncoderWeights& encoder);

  // DataLoss where it is none of the encoder's.
  absl::Status Add(const WireFrame& frame);
  // Digits are those of groups of which kLeastDigitParts parts and more were added, and 0 of others.
  CodeRange range() const;

 private:
  const AludelShape& shape_;
  const AludelEncoderWeights& encoder_;
  std::vector<std::unique_ptr<LatentCoder>> coders_;  // [groups], null where the packing has none
  CodeRange range_;                                   // its digits are of all groups
  std::vector<int64_t> digit_parts_;                  // [groups]
};

}  // namespace aludel
