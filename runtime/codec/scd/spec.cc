#include "runtime/codec/scd/spec.h"

#include <utility>

#include "kernels/tensor.h"

namespace aludel {

CodecSpec ScdSpec(std::string format, std::string artifact_hash, size_t layers, int64_t max_rank) {
  return {.name = std::move(format),
          .artifact_hash = std::move(artifact_hash),
          .kind = FrameKind::kScd,
          .shipped_layers = std::vector<bool>(layers, true),
          .max_frame_bytes = [max_rank](int64_t tokens) {
            return static_cast<size_t>(tokens * max_rank) * sizeof(Bf16);
          }};
}

}  // namespace aludel
