#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace aludel {

// Probabilities are multiples of 1 / kRansTotal.
inline constexpr int kRansBits = 12;
inline constexpr uint32_t kRansTotal = 1u << kRansBits;
inline constexpr size_t kMaxRansSymbols = 256;

// The probabilities of one kind of symbols, as a rANS coder wants them (rans_stream.h). Immutable.
class RansTable {
 public:
  // What a symbol does to a state x below frequency << 19: x += start + x / frequency * (kRansTotal - frequency), with
  // x / frequency = x * reciprocal >> shift exactly. With 2^k the next power of two at or above the frequency,
  // reciprocal = ceil(2^(31+k) / frequency) is too large by less than 1 / 2^(31+k) each, which times x stays below
  // 1 / frequency.
  struct Coder {
    uint32_t reciprocal = 0;
    uint32_t frequency = 0;
    uint32_t start = 0;
    uint32_t shift = 0;
  };

  // `frequencies` of symbols 0, 1, ...: at most kMaxRansSymbols, together kRansTotal; 0 where a symbol cannot come.
  // DataLoss where they are not that.
  static absl::StatusOr<RansTable> Create(absl::Span<const uint16_t> frequencies);

  // Of a symbol that cannot come: zeros.
  const Coder& coder(uint8_t symbol) const { return coders_[symbol]; }

  // What the low bits of a state decode to: a symbol, and x = (x >> kRansBits) * frequency + offset.
  struct Slot {
    uint16_t frequency = 0;
    uint16_t offset = 0;  // from the symbol's first slot
  };
  const Slot* slots() const { return slots_.data(); }                   // [kRansTotal]
  const uint8_t* slot_symbols() const { return slot_symbols_.data(); }  // [kRansTotal]

 private:
  RansTable() : slots_(kRansTotal), slot_symbols_(kRansTotal) {}

  std::array<Coder, kMaxRansSymbols> coders_;
  std::vector<Slot> slots_;
  std::vector<uint8_t> slot_symbols_;
};

// Frequencies for Create that come close to `counts` (at most kMaxRansSymbols, together above 0 and below 2^50): at
// least 1 where the count is. The same on every machine.
std::vector<uint16_t> RansFrequencies(absl::Span<const uint64_t> counts);

}  // namespace aludel
