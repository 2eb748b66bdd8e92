#include "runtime/codec/aludel/spec.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "runtime/codec/aludel/latent_packing.h"

namespace aludel {

CodecSpec AludelSpec(std::string format, std::string artifact_hash, const AludelShape& shape,
                     const std::vector<LatentGrid>& grids, int layers, int base_planes) {
  CodecSpec spec{.name = std::move(format),
                 .artifact_hash = std::move(artifact_hash),
                 .kind = FrameKind::kAludel,
                 .shipped_layers = std::vector<bool>(layers, false),
                 .recomputed_layers = std::max(0, shape.recomputed_layers),
                 .recomputed_head_tokens = shape.head_tokens,
                 .recomputed_tail_tokens = shape.tail_tokens,
                 .base_planes = base_planes};
  for (const AludelGroup& group : shape.groups) {
    std::fill_n(spec.shipped_layers.begin() + group.first_layer, group.layers, true);
  }
  std::vector<std::function<size_t(int64_t)>> bounds;
  for (const LatentGrid& grid : grids) bounds.push_back(PackedBound(grid, shape.packing));
  spec.max_frame_bytes = [bounds = std::move(bounds)](int64_t tokens) {
    size_t bytes = 0;
    for (const auto& bound : bounds) bytes = std::max(bytes, bound(tokens));
    return bytes;
  };
  return spec;
}

}  // namespace aludel
