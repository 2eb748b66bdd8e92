#include "runtime/codec/aludel/spec.h"

#include <algorithm>
#include <utility>

#include "runtime/codec/aludel/latent_packing.h"

namespace aludel {

CodecSpec AludelSpec(std::string format, std::string artifact_hash, const AludelShape& shape,
                     const std::vector<LatentGrid>& grids, int layers) {
  CodecSpec spec{.name = std::move(format),
                 .artifact_hash = std::move(artifact_hash),
                 .kind = FrameKind::kAludel,
                 .shipped_layers = std::vector<bool>(layers, false),
                 .recomputed_layers = std::max(0, shape.recomputed_layers),
                 .recomputed_head_tokens = shape.head_tokens,
                 .recomputed_tail_tokens = shape.tail_tokens};
  for (const AludelGroup& group : shape.groups) {
    std::fill_n(spec.shipped_layers.begin() + group.first_layer, group.layers, true);
  }
  spec.max_frame_bytes = [grids, packing = shape.packing](int64_t tokens) {
    size_t bytes = 0;
    for (const LatentGrid& grid : grids) bytes = std::max(bytes, MaxPackedBytes(grid, packing, tokens));
    return bytes;
  };
  return spec;
}

}  // namespace aludel
