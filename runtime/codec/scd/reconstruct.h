#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/scd/weights.h"

namespace aludel {

// The consumer's half: turns codes into its own K and V, either directly (Reuse) or through its own attention input and
// projections (Patch), and writes them into its pages. `weights` fit `model`: the caller has checked.
absl::StatusOr<std::unique_ptr<DecoderFactory>> MakeScdDecoders(std::string format, std::string artifact_hash,
                                                                const ScdDecoderWeights& weights,
                                                                const Transformer& model);

}  // namespace aludel
