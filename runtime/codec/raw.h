#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/codec/codec.h"

namespace aludel {

// The format "raw": every layer's K (before RoPE) and V as bf16, nothing modeled. The baseline of every
// table, and exact where both sides run the same model over a bf16 cache, because keys are rounded to bf16
// before they are rotated on both sides. Payload in FORMAT.md.
std::unique_ptr<EncoderFactory> MakeRawEncoders(const Transformer& model);
std::unique_ptr<DecoderFactory> MakeRawDecoders(const Transformer& model);

}  // namespace aludel
