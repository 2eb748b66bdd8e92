#pragma once

#include <cstdint>
#include <vector>

#include "runtime/codec/aludel/weights.h"
#include "runtime/codec/codec.h"
#include "runtime/model/model_config.h"

namespace aludel {

// Floating-point operations of computing tokens [begin, end) of one sequence through `layers` layers: the
// matrix products and attention; norms, rotations and activations are left out on both sides of every share.
double LayerFlops(const ModelConfig& config, int layers, int64_t begin, int64_t end);

// What the consumer computes before its first token over what local prefill would cost: recomputed layers,
// recomputed tokens (the last prompt token among them) and reconstruction, averaged over prompts of
// these lengths.
double MeanComputeShare(const ModelConfig& config, const DecoderFactory& codec,
                        const std::vector<double>& prompt_lengths);

// What a share of the consumer's local prefill pays for in an aludel format, encoding and decoding
// together; at least 16. The rank of every group, for which half of the share is meant, then the width of the
// decoders' hidden layers, which gets the rest.
int64_t AffordableRank(double share, const ModelConfig& config, const std::vector<AludelGroup>& groups,
                       bool has_side);
int64_t AffordableWidth(double share, const ModelConfig& config, const AludelShape& shape);
// 4 % of the operations, about 5 % of the time; or what a hidden layer of a fifth of its outputs costs where
// that is more: narrower ones lose more than the codes bring. Models with many heads for few layers and a
// narrow residual need more.
double SensibleShare(const ModelConfig& config, const AludelShape& shape);

}  // namespace aludel
