#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/codec/aludel/weights.h"
#include "runtime/codec/rans/rans_stream.h"
#include "runtime/codec/rans/rans_table.h"

namespace aludel {

// What planes of codes (PlanesOf) stand for: a latent is its code times the step.
struct PlaneScale {
  std::vector<int> bits;  // [rank]
  float step = 0;
};

// Planes of codes through tables that both sides have, one scale a latent (FORMAT.md, kind aludel). Immutable and
// thread-safe; shared by a codec's handoffs.
class LatentCoder {
 public:
  LatentCoder() = default;
  virtual ~LatentCoder() = default;
  LatentCoder(const LatentCoder&) = delete;
  LatentCoder& operator=(const LatentCoder&) = delete;

  // The payload of the planes of `tokens` tokens in `payload` (at least MaxPackedBytes); returns its bytes.
  virtual size_t Encode(absl::Span<const uint8_t> planes, int64_t tokens,
                        absl::Span<uint8_t> payload) const = 0;
  // The inverse: sets `planes` to those of `tokens` tokens and says what they stand for. DataLoss where the payload is
  // not exactly theirs, as far as RansDecode can tell; planes then are unspecified.
  virtual absl::StatusOr<PlaneScale> Decode(absl::Span<const uint8_t> payload, int64_t tokens,
                                            std::vector<uint8_t>* planes) const = 0;
};

// LatentPacking::kRans. A coder of less than whole codes, too, for EmbeddedCoder.
class RansCoder : public LatentCoder {
 public:
  // `grid.decays` has one for each latent. With `dropped`, below all bits: of codes whose magnitudes have lost so many
  // low bits, planes of as many bits less.
  explicit RansCoder(const LatentGrid& grid, int dropped = 0);

  // Bound on a payload's bytes.
  static size_t MaxBytes(const std::vector<int>& bits, int64_t tokens);

  size_t Encode(absl::Span<const uint8_t> planes, int64_t tokens, absl::Span<uint8_t> payload) const override;
  absl::StatusOr<PlaneScale> Decode(absl::Span<const uint8_t> payload, int64_t tokens,
                                    std::vector<uint8_t>* planes) const override;

 private:
  std::vector<RansRun> Runs(int64_t tokens) const;

  PlaneScale scale_;
  std::vector<RansTable> tables_;  // of the pairs of bits and decay that come
  std::vector<size_t> table_of_;   // [rank]
};

// Lanes of a stream of latents' symbols.
int LatentLanes(size_t symbols);

}  // namespace aludel
