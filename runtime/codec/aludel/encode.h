#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/codec/aludel/weights.h"
#include "runtime/codec/codec.h"

namespace aludel {

// The producer's half of an aludel format (weights.h). A frame is shipped when the last layer of its group
// is done; until then each layer only adds its share to the group's latents, so that nothing of the cache is
// kept. `artifact_hash` names the encoder; `model` must outlive the factory. Shapes have been checked. `base_planes`: the spec's.
absl::StatusOr<std::unique_ptr<EncoderFactory>> MakeAludelEncoders(
    std::string format, std::string artifact_hash, AludelShape shape, const AludelEncoderWeights& weights,
    const Transformer& model, int base_planes = 0);

}  // namespace aludel
