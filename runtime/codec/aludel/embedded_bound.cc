#include "runtime/codec/aludel/embedded_bound.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "runtime/codec/aludel/embedded_coder.h"
#include "runtime/codec/aludel/latent_coder.h"
#include "runtime/codec/aludel/latent_tables.h"
#include "runtime/codec/rans/rans_table.h"

namespace aludel {
namespace {

constexpr int kBitParts = 64;

// What a symbol makes a state larger by, with the 9/8 that its rounding may add (MaxRansBytes).
size_t Cost(uint32_t frequency) {
  return static_cast<size_t>(std::ceil(kBitParts * std::log2(1.125 * kRansTotal / frequency)));
}

size_t CostOf(int table, uint8_t symbol) { return Cost(Refinements()[table].coder(symbol).frequency); }
size_t CostlierBit(int table) { return std::max(CostOf(table, 0), CostOf(table, 1)); }

// The costliest code of a latent.
size_t CostliestCode(int bits, float decay, int planes) {
  const int base_level = planes - 1;
  // What refinements below a level take of a code that is 0, 1 or more above it.
  size_t zero = 0, one = 0, more = 0;
  for (int level = 0; level < std::min(base_level, bits); ++level) {
    const RefinementChoice tables = ChooseRefinement(decay, level);
    zero = std::max(CostOf(tables.zero, 0) + zero, CostOf(tables.zero, 1) + one);
    one = CostlierBit(tables.one) + more;
    more += CostlierBit(tables.more);
  }
  if (bits <= base_level) return zero;
  const std::vector<uint16_t> frequencies = LatentFrequencies(bits, decay, base_level);
  const int half = 1 << (std::min(bits - base_level, kLatentSymbolBits) - 1);
  const bool wide = bits - base_level > kLatentSymbolBits;
  size_t most = 0;
  for (int m = -half; m < half; ++m) {
    const std::array<size_t, 3> below = {zero, one, more};
    // A wide symbol has many codes.
    const size_t rest =
        wide ? *std::max_element(below.begin(), below.end()) : below[std::min(std::abs(m), 2)];
    most = std::max(most, Cost(frequencies[static_cast<uint8_t>(m)]) + rest);
  }
  return most;
}

}  // namespace

EmbeddedBound::EmbeddedBound(const LatentGrid& grid) : plane_latents_(static_cast<size_t>(grid.planes)) {
  std::map<std::pair<int, float>, size_t> costs;
  for (size_t i = 0; i < grid.bits.size(); ++i) {
    const auto [found, added] = costs.try_emplace({grid.bits[i], grid.decays[i]});
    if (added) found->second = CostliestCode(grid.bits[i], grid.decays[i], grid.planes);
    parts_ += found->second;
    low_bits_ += static_cast<size_t>(std::max(0, grid.bits[i] - (grid.planes - 1) - kLatentSymbolBits));
    for (int level = 0; level < grid.planes; ++level) {
      if (grid.bits[i] > level) ++plane_latents_[static_cast<size_t>(level)];
    }
  }
}

size_t EmbeddedBound::Bytes(int64_t tokens) const {
  const auto count = static_cast<size_t>(tokens);
  size_t bytes = (parts_ * count / kBitParts + low_bits_ * count) / 8 + 2;
  for (const size_t latents : plane_latents_) {
    bytes += kMaxPlaneLengthBytes + MaxRansBytes(0, LatentLanes(latents * count));
  }
  return bytes;
}

}  // namespace aludel
