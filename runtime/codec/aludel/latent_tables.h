#pragma once

#include <cstdint>
#include <vector>

#include "runtime/codec/rans/rans_table.h"

namespace aludel {

// Tables of latents' codes (FORMAT.md, kind aludel): those of a logistic distribution of scale s steps, given as the decay
// exp(-1 / (2 s)). Made by integer arithmetic, so that all machines have the same. Stateless.

// No latent is coded in more bits.
inline constexpr int kMaxLatentBits = 16;

// Of them, at most so many are a symbol; what is below looks random.
inline constexpr int kLatentSymbolBits = 8;

// The largest and the smallest decay: 1 - 2^-23 and its distance to 1.
inline constexpr float kMaxDecay = 1.0f - 0x1p-23f;
inline constexpr float kMinDecay = 0x1p-23f;

// Frequencies of a latent's symbols, the high 8 bits of its codes (all of them where they have fewer) as a byte in
// two's complement. Every code of so many bits has at least 1. With `dropped` bits, below `bits`: of codes whose
// magnitudes have lost their low bits, that is, of bits - dropped bits.
std::vector<uint16_t> LatentFrequencies(int bits, float decay, int dropped = 0);

// Tables of what a code's magnitude without its low `level` bits is, where its higher bits are known to come to `above`.
struct RefinementChoice {
  int zero = 0;  // above = 0: symbol 0 stays 0, 1 becomes 1, 2 becomes -1
  int one = 0;   // above = 1: the next bit
  int more = 0;  // above > 1: the next bit
};

// The tables for a latent among Refinements(), which all latents share: the nearest to the decay's.
RefinementChoice ChooseRefinement(float decay, int level);

// For codes that are 0 so far, then for the others. They live as long as the process.
const std::vector<RansTable>& Refinements();

}  // namespace aludel
