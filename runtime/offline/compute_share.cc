#include "runtime/offline/compute_share.h"

#include "runtime/codec/hand_over.h"

namespace aludel {

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

double MeanComputeShare(const ModelConfig& config, const KvCodec& codec,
                        const std::vector<double>& prompt_lengths) {
  const double head = 2.0 * config.hidden * config.vocab;
  double sum = 0;
  for (const double length : prompt_lengths) {
    const auto tokens = static_cast<int64_t>(length);
    const double prefill = LayerFlops(config, config.layers, 0, tokens) + head;
    const TokenRange range = HandedOver(codec, tokens);
    const double whole = LayerFlops(config, config.layers, 0, range.begin) +
                         LayerFlops(config, config.layers, range.end, tokens) + head;
    const double native = LayerFlops(config, codec.native_layers(), range.begin, range.end);
    const double decode = codec.decode_flops_per_token() * static_cast<double>(range.tokens());
    sum += (whole + native + decode) / prefill;
  }
  return prompt_lengths.empty() ? 0 : sum / static_cast<double>(prompt_lengths.size());
}

}  // namespace aludel
