#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace aludel {

// Codes of more than kLatentSymbolBits in two parts: symbols, their high bits, which coders code, and low bits, which look
// random and are sent as they are, one latent after the other, the least significant bit first (FORMAT.md, packing rans).

// Bytes that the low bits of `tokens` tokens take.
size_t LowBitBytes(const std::vector<int>& bits, int64_t tokens);

// `planes` of codes (PlanesOf, but with kFixed) into symbols, latent by latent, [rank, tokens], and LowBitBytes at `low`.
std::vector<uint8_t> SplitLowBits(absl::Span<const uint8_t> planes, const std::vector<int>& bits,
                                  int64_t tokens, uint8_t* low);

// The inverse: sets `planes`. `symbols` are in their latents' ranges.
void JoinLowBits(absl::Span<const uint8_t> symbols, const uint8_t* low, const std::vector<int>& bits,
                 int64_t tokens, std::vector<uint8_t>* planes);

}  // namespace aludel
