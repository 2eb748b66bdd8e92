#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/codec/aludel/weights.h"

namespace aludel {

// Bound on the bytes of a grid's payloads of LatentPacking::kEmbedded, by what their tables take of each latent's
// costliest code over all planes together. Immutable; copies are small.
class EmbeddedBound {
 public:
  explicit EmbeddedBound(const LatentGrid& grid);

  size_t Bytes(int64_t tokens) const;

 private:
  std::vector<size_t> plane_latents_;  // that have a symbol in each plane
  size_t parts_ = 0;                   // of a bit (kBitParts), of a token's codes
  size_t low_bits_ = 0;                // of a token, which are no symbols
};

}  // namespace aludel
