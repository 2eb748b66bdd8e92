#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/outbox.h"

namespace aludel {

// The format "raw": every layer's K (before RoPE) and V as bf16, nothing modeled. The baseline of every
// table, and exact where both sides run the same model over a bf16 cache, because keys are rounded to bf16
// before they are rotated on both sides. Payload in FORMAT.md.
std::unique_ptr<EncoderFactory> MakeRawEncoders(const Transformer& model);
std::unique_ptr<DecoderFactory> MakeRawDecoders(const Transformer& model);

// What its encoder does with a layer, for encoders whose other frames take the same way: a sink takes frames in the
// order of their reservations, so that one outbox is all that a handoff may have. `last` and `coding` as in FrameOutbox::Add.
absl::Status EncodeRaw(const LayerSlice& slice, const Transformer& model, bool last, FrameOutbox& outbox,
                       FrameSink& sink, std::optional<FrameOutbox::Coding> coding = std::nullopt);

}  // namespace aludel
