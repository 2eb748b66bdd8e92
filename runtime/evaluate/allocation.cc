#include "runtime/evaluate/allocation.h"
#include "runtime/evaluate/in_process_handoff.h"

#include <algorithm>

namespace aludel {
namespace {

// What part of a payload is K; -1 where the payload is no pair of K and V.
double KeyShare(const FrameHeader& header, const ArtifactFormat* format, const ModelConfig& config) {
  switch (header.kind) {
    case FrameKind::kRaw:
    case FrameKind::kInt8:
    case FrameKind::kInt4:
      return 0.5;
    case FrameKind::kRecompute: {
      const uint64_t raw_bytes = uint64_t{header.coverage.tokens} * 2 * config.kv_dim() * sizeof(Bf16);
      return header.payload_bytes == raw_bytes ? 0.5 : -1;
    }
    case FrameKind::kScd: {
      if (format == nullptr || header.coverage.first_layer >= format->layers.size()) return -1;
      const auto& layer = format->layers[header.coverage.first_layer];
      const double ranks = layer.rank_k + layer.rank_v;
      return ranks > 0 ? layer.rank_k / ranks : -1;
    }
    default:  // coded together, or, as lossless is, to sizes that the header does not tell apart
      return -1;
  }
}

std::string WholeName(FrameKind kind) {
  if (kind == FrameKind::kScd) return "H";
  if (kind == FrameKind::kRecompute) return "x";
  return "code";
}

}  // namespace

void AddShare(const Share& share, std::vector<Share>* shares) {
  for (Share& known : *shares) {
    if (known.first_layer != share.first_layer || known.layers != share.layers || known.part != share.part) {
      continue;
    }
    known.bytes += share.bytes;
    return;
  }
  shares->push_back(share);
}

std::vector<Share> SplitBytes(absl::Span<const WireFrame> frames, const ArtifactFormat* format,
                              const ModelConfig& config) {
  std::vector<Share> shares;
  for (const WireFrame& frame : frames) {
    const auto header = DecodeFrameHeader(frame.header);
    if (!header.ok()) continue;  // our own bytes; the decoder judges them
    const int first = header->coverage.first_layer, layers = header->coverage.layers;
    const double payload = static_cast<double>(frame.payload.size());
    const double key = KeyShare(*header, format, config);
    if (key < 0) {
      AddShare({first, layers, WholeName(header->kind), payload}, &shares);
    } else {
      AddShare({first, layers, "K", key * payload}, &shares);
      AddShare({first, layers, "V", (1 - key) * payload}, &shares);
    }
    AddShare({first, layers, "header", static_cast<double>(frame.header.size())}, &shares);
  }
  return shares;
}

}  // namespace aludel
