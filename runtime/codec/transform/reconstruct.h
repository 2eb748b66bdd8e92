#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/transform/weights.h"

namespace aludel {

// The consumer's half of a transform format (weights.h): Begin runs the native layers over every token and
// keeps their side information, Apply decodes one group of layers. `artifact_hash` names the encoder whose
// latents it reads; `model` must outlive the codec. Shapes have been checked.
absl::StatusOr<std::unique_ptr<KvCodec>> MakeTransformDecoderCodec(std::string format,
                                                                   std::string artifact_hash,
                                                                   TransformShape shape,
                                                                   const TransformDecoderWeights& weights,
                                                                   const Transformer& model);

}  // namespace aludel
