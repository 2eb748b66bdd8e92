#pragma once

#include <memory>

#include "runtime/codec/codec.h"

namespace aludel {

// The format "lossless": what "raw" sends, bit by bit, in fewer bytes (after SplitZip). Coded and decoded on the host,
// on the thread of its model. Payload in FORMAT.md.
std::unique_ptr<EncoderFactory> MakeLosslessEncoders(const Transformer& model);
std::unique_ptr<DecoderFactory> MakeLosslessDecoders(const Transformer& model);

}  // namespace aludel
