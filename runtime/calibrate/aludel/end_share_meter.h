#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "runtime/codec/aludel/latent_coder.h"
#include "runtime/codec/aludel/weights.h"
#include "runtime/evaluate/in_process_handoff.h"

namespace aludel {

// The largest EndShare (code_range.h) of whole frames of one encoder: what AludelShape::end_share becomes where they are of
// prompts that no fit has seen. Not thread-safe.
class EndShareMeter {
 public:
  // Both must outlive it.
  EndShareMeter(const AludelShape& shape, const AludelEncoderWeights& encoder);

  // DataLoss where it is none of the encoder's.
  absl::Status Add(const StoredFrame& frame);
  double largest() const { return largest_; }

 private:
  const AludelShape& shape_;
  const AludelEncoderWeights& encoder_;
  std::vector<std::unique_ptr<LatentCoder>> coders_;  // [groups], null where the packing has none
  double largest_ = 0;
};

}  // namespace aludel
