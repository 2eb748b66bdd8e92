#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/scd/weights.h"

namespace aludel {

// The producer's half of a semantic cache distillation format (Ma et al., "Semantic Cache Distillation", ICML
// 2026): every layer of every chunk becomes one frame of bf16 codes, by one or two thin matrix products.
// `weights` fit `model`: the caller has checked. Payload in FORMAT.md.
absl::StatusOr<std::unique_ptr<EncoderFactory>> MakeScdEncoders(std::string format, std::string artifact_hash,
                                                                const ScdEncoderWeights& weights,
                                                                const Transformer& model);

}  // namespace aludel
