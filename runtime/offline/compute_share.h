#pragma once

#include <cstdint>
#include <vector>

#include "runtime/codec/codec.h"
#include "runtime/model/model_config.h"

namespace aludel {

// Floating-point operations of computing tokens [begin, end) of one sequence through `layers` layers: the
// matrix products and attention; norms, rotations and activations are left out on both sides of every share.
double LayerFlops(const ModelConfig& config, int layers, int64_t begin, int64_t end);

// What the consumer computes before its first token over what its own prefill would cost: native layers,
// native tokens (the last prompt token among them) and reconstruction, averaged over prompts of these
// lengths.
double MeanComputeShare(const ModelConfig& config, const KvCodec& codec,
                        const std::vector<double>& prompt_lengths);

}  // namespace aludel
