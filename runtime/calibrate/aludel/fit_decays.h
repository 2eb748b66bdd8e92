#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/codec/aludel/weights.h"
#include "runtime/codec/rans/rans_table.h"

namespace aludel {

// How often each latent's symbols come (LatentFrequencies says what they are). Not thread-safe.
class SymbolCounts {
 public:
  explicit SymbolCounts(const LatentGrid& grid)
      : grid_(grid), counts_(grid.bits.size(), std::array<uint64_t, kMaxRansSymbols>{}) {}

  // z [tokens, stride], the grid's latents first.
  void Add(const float* z, int64_t tokens, int64_t stride);

  // Per latent the decay, one of a few, under which what was counted takes the fewest bits. Latents of about one scale
  // have the same, so that they share a table.
  std::vector<float> FitDecays() const;

 private:
  LatentGrid grid_;
  std::vector<std::array<uint64_t, kMaxRansSymbols>> counts_;  // [rank]
};

}  // namespace aludel
