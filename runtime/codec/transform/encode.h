#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/transform/weights.h"

namespace aludel {

// The producer's half of a transform format (weights.h). A frame is shipped when the last layer of its group
// is done; until then each layer only adds its share to the group's latents, so that nothing of the cache is
// kept. `artifact_hash` names the encoder; `model` must outlive the codec. Shapes have been checked.
absl::StatusOr<std::unique_ptr<KvCodec>> MakeTransformEncoderCodec(std::string format,
                                                                   std::string artifact_hash,
                                                                   TransformShape shape,
                                                                   const TransformEncoderWeights& weights,
                                                                   const Transformer& model);

}  // namespace aludel
