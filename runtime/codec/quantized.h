#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/codec/codec.h"

namespace aludel {

// The formats "int8" and "int4": every layer's K (before RoPE) and V, one scale per token, layer and kind
// (TokenQuantizer). Needs no artifact and models nothing: the baselines that every learned format has to
// beat. Quantizes and dequantizes on the model's device. Payloads in FORMAT.md.
//
// `bits` is 8 or 4.
std::unique_ptr<EncoderFactory> MakeQuantizedEncoders(int bits, const Transformer& model);
std::unique_ptr<DecoderFactory> MakeQuantizedDecoders(int bits, const Transformer& model);

}  // namespace aludel
