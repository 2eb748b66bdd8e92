#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/codec/aludel/weights.h"
#include "runtime/codec/codec.h"

namespace aludel {

// The consumer's half of an aludel format (weights.h): Begin runs the recomputed layers over every token and
// keeps their side information, Apply decodes one group of layers. `artifact_hash` names the encoder whose
// latents it reads; `model` must outlive the factory. Shapes have been checked. With `base_planes`, fewer than any group
// has, a decoder keeps the bytes of a frame's first part until the second has come (PlaneUpgrades). Where `shape.range` is
// known, whole frames whose codes are far beyond it are OutOfRange (code_range.h): the prompt is unlike what the codec was
// fitted to. Nothing is written for them.
absl::StatusOr<std::unique_ptr<DecoderFactory>> MakeAludelDecoders(
    std::string format, std::string artifact_hash, AludelShape shape, const AludelDecoderWeights& weights,
    const Transformer& model, int base_planes = 0);

}  // namespace aludel
