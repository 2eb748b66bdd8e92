#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/codec/aludel/weights.h"
#include "runtime/codec/rans/rans_stream.h"
#include "runtime/codec/rans/rans_table.h"

namespace aludel {

// The payload of LatentPacking::kRans (FORMAT.md, kind aludel): planes of codes (PlanesOf) through tables that both
// sides have, one scale a latent. Immutable and thread-safe; shared by a codec's handoffs.
class LatentCoder {
 public:
  // `grid.decays` has one for each latent.
  explicit LatentCoder(const LatentGrid& grid);
  LatentCoder(const LatentCoder&) = delete;
  LatentCoder& operator=(const LatentCoder&) = delete;

  // Bound on a payload's bytes.
  static size_t MaxBytes(const std::vector<int>& bits, int64_t tokens);

  // The payload of the planes of `tokens` tokens in `payload` (at least MaxBytes); returns its bytes.
  size_t Encode(absl::Span<const uint8_t> planes, int64_t tokens, absl::Span<uint8_t> payload) const;
  // The inverse: `planes` are of `tokens` tokens. DataLoss where the payload is not exactly theirs, as far as
  // RansDecode can tell; planes then are unspecified.
  absl::Status Decode(absl::Span<const uint8_t> payload, int64_t tokens, absl::Span<uint8_t> planes) const;

 private:
  std::vector<RansRun> Runs(int64_t tokens) const;

  std::vector<int> bits_;          // [rank]
  std::vector<RansTable> tables_;  // of the pairs of bits and decay that come
  std::vector<size_t> table_of_;   // [rank]
};

// Frequencies of a latent's symbols, the high 8 bits of its codes (all of them where they have fewer) as a byte in
// two's complement: those of a logistic distribution of scale s steps, `decay` = exp(-1 / (2 s)) from kMinDecay to
// kMaxDecay. Made by integer arithmetic, so that all machines have the same. Every code of so many bits has at least 1.
std::vector<uint16_t> LatentFrequencies(int bits, float decay);

// The largest and the smallest decay that LatentFrequencies takes: 1 - 2^-23 and its distance to 1.
inline constexpr float kMaxDecay = 1.0f - 0x1p-23f;
inline constexpr float kMinDecay = 0x1p-23f;

}  // namespace aludel
