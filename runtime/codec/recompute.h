#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/codec/codec.h"

namespace aludel {

// The formats "recompute-FIRST-LAST" (DroidSpeak): of a contiguous critical group, layers FIRST to LAST, the
// producer ships the residual stream that enters it, and the consumer runs those layers with its own weights
// on it; all other layers travel as in "raw". Which group is critical differs between pairs: evaluation finds
// it by comparing groups. Plain "recompute" takes the first quarter of the layers, by the measurement of the
// demo pair: base -> chat, 100 questions, F1 .66 for layers 0-1 and .40 to .46 for every later pair of
// layers. (Opened as "recompute", its spec names the group.) Needs no artifact; producer and consumer
// must agree in hidden size. Payloads in FORMAT.md.
//
// The decoder runs the group's chunks in order and keeps chunks that came early: at most the handoff's
// tokens, bf16.

bool IsRecomputeName(absl::string_view format);
// InvalidArgument where the name gives no group, FailedPrecondition where the model has no such layers.
absl::StatusOr<std::unique_ptr<EncoderFactory>> MakeRecomputeEncoders(absl::string_view format,
                                                                      const Transformer& model);
absl::StatusOr<std::unique_ptr<DecoderFactory>> MakeRecomputeDecoders(absl::string_view format,
                                                                      const Transformer& model);

}  // namespace aludel
