#include "runtime/evaluate/compute_share.h"

#include <algorithm>

#include "runtime/codec/handoff.h"

namespace aludel {
namespace {

constexpr int64_t kTypicalTokens = 256;  // of a prompt
constexpr double kEncoderShare = 0.5;
constexpr int64_t kLeast = 16;

// Of the consumer's local prefill, per token.
double PrefillFlops(const ModelConfig& config) {
  return LayerFlops(config, config.layers, 0, kTypicalTokens) / kTypicalTokens;
}

// Columns of a group's encoder: the producer's [K V], and its side information.
double EncoderColumns(const ModelConfig& config, const AludelGroup& group, bool has_side) {
  return group.layers * 2.0 * config.kv_dim() + (has_side ? config.hidden : 0);
}

}  // namespace

double LayerFlops(const ModelConfig& config, int layers, int64_t begin, int64_t end) {
  const double hidden = config.hidden;
  const double weights =
      hidden * (config.q_dim() + 2.0 * config.kv_dim()) + hidden * config.q_dim() + 3.0 * hidden * config.ffn;
  const auto first = static_cast<double>(begin);
  const auto last = static_cast<double>(end);
  // Token t attends over t + 1 positions: a product with K and one with V.
  const double positions = (last * (last + 1) - first * (first + 1)) / 2;
  return layers * (2.0 * weights * (last - first) + 4.0 * config.q_dim() * positions);
}

double MeanComputeShare(const ModelConfig& config, const DecoderFactory& codec,
                        const std::vector<double>& prompt_lengths) {
  const double head = 2.0 * config.hidden * config.vocab;
  double sum = 0;
  for (const double length : prompt_lengths) {
    const auto tokens = static_cast<int64_t>(length);
    const double prefill = LayerFlops(config, config.layers, 0, tokens) + head;
    const TokenRange range = HandedOver(codec.spec(), tokens);
    const double whole = LayerFlops(config, config.layers, 0, range.begin) +
                         LayerFlops(config, config.layers, range.end, tokens) + head;
    const double recompute = LayerFlops(config, codec.spec().recomputed_layers, range.begin, range.end);
    const double decode = codec.flops_per_token() * static_cast<double>(range.tokens());
    sum += (whole + recompute + decode) / prefill;
  }
  return prompt_lengths.empty() ? 0 : sum / static_cast<double>(prompt_lengths.size());
}

int64_t AffordableRank(double share, const ModelConfig& config, const std::vector<AludelGroup>& groups,
                       bool has_side) {
  double per_latent = 0;
  for (const AludelGroup& group : groups) per_latent += 2 * EncoderColumns(config, group, has_side);
  return std::max(kLeast, static_cast<int64_t>(kEncoderShare * share * PrefillFlops(config) / per_latent));
}

int64_t AffordableWidth(double share, const ModelConfig& config, const AludelShape& shape) {
  double budget = share * PrefillFlops(config);
  for (const AludelGroup& group : shape.groups) {
    budget -= 2 * EncoderColumns(config, group, shape.has_side()) * static_cast<double>(group.rank);
  }
  if (shape.has_side()) budget -= 2.0 * config.hidden * 2.0 * config.kv_dim();  // K, V of the next layer
  double per_unit = 0;
  for (const AludelGroup& group : shape.groups) {
    const auto inputs = static_cast<double>(group.rank + (shape.has_side() ? config.hidden : 0));
    per_unit += 2.0 * (inputs + group.layers * 2.0 * config.kv_dim());
  }
  return std::max(kLeast, static_cast<int64_t>(budget / per_unit) / kLeast * kLeast);
}

double SensibleShare(const ModelConfig& config, const AludelShape& shape) {
  constexpr double kStep = 0.005;
  int64_t outputs = 0;
  for (const AludelGroup& group : shape.groups) {
    outputs = std::max<int64_t>(outputs, group.layers * 2 * config.kv_dim());
  }
  double share = 0.04;
  AludelShape full = shape;
  for (; share < 1; share += kStep) {
    const int64_t rank = AffordableRank(share, config, shape.groups, shape.has_side());
    for (AludelGroup& group : full.groups) group.rank = rank;
    if (AffordableWidth(share, config, full) >= outputs / 5) break;
  }
  return share;
}

}  // namespace aludel
