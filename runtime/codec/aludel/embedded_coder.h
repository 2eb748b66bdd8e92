#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/codec/aludel/embedded_bound.h"
#include "runtime/codec/aludel/latent_coder.h"
#include "runtime/codec/aludel/latent_tables.h"
#include "runtime/codec/aludel/weights.h"

namespace aludel {

// LatentPacking::kEmbedded (FORMAT.md, kind aludel): codes in planes, the coarsest first. A payload that is cut behind
// a plane is a valid coarser one, and what was cut off would refine it.

inline constexpr int kMaxEmbeddedPlanes = 8;

// Of a plane's length, which is in front of it.
inline constexpr size_t kMaxPlaneLengthBytes = 5;

// What a payload would be with its first `planes` planes alone, at least 1: a prefix of it; all of it where it has no
// more. Needs no artifact. DataLoss where bytes are no whole planes.
absl::StatusOr<absl::Span<const uint8_t>> TruncatePlanes(absl::Span<const uint8_t> payload, int planes);

// At least 1. DataLoss as above.
absl::StatusOr<int> CountPlanes(absl::Span<const uint8_t> payload);

class EmbeddedCoder : public LatentCoder {
 public:
  // Of `grid.planes` planes it writes the first `planes`, and reads as many. 0: writes all and reads any number.
  EmbeddedCoder(const LatentGrid& grid, int planes);

  size_t Encode(absl::Span<const uint8_t> planes, int64_t tokens, absl::Span<uint8_t> payload) const override;
  // DataLoss with another number of planes than its own. With fewer than the grid's, codes are near the means of what
  // they may have been, in parts of the grid's step or multiples of it.
  absl::StatusOr<PlaneScale> Decode(absl::Span<const uint8_t> payload, int64_t tokens,
                                    std::vector<uint8_t>* planes) const override;

 private:
  // Codes without their `level` low bits of magnitude, [rank][tokens]; a latent with no more bits is 0.
  using Codes = std::vector<int32_t>;

  struct Symbols {
    std::vector<RansRun> runs;
    std::vector<std::array<size_t, 3>> begin;  // [latents] of those that code by each kind of table
  };

  int base_level() const { return grid_.planes - 1; }
  size_t EncodeBase(const Codes& codes, int64_t tokens, absl::Span<uint8_t> out) const;
  absl::Status DecodeBase(absl::Span<const uint8_t> bytes, int64_t tokens, Codes* codes) const;
  // Plane of the bit at `level`, of whole codes.
  size_t EncodeRefinement(const Codes& codes, int level, int64_t tokens, absl::Span<uint8_t> out) const;
  // Takes `codes` from the level above to this one.
  absl::Status DecodeRefinement(absl::Span<const uint8_t> bytes, int level, int64_t tokens,
                                Codes* codes) const;
  // Where symbols of the plane at `level` lie, of codes from the level above it.
  Symbols PlaceSymbols(absl::Span<const int32_t> above, int level, int64_t tokens) const;
  PlaneScale WritePlanes(const Codes& codes, int level, int64_t tokens, std::vector<uint8_t>* planes) const;

  // Latents that have bits above `level`.
  std::vector<size_t> LatentsAbove(int level) const;

  const LatentGrid grid_;
  const int planes_;
  const EmbeddedBound bound_;
  std::vector<size_t> base_latents_;
  std::vector<int> base_bits_;
  RansCoder base_;
  std::vector<std::vector<RefinementChoice>> refinements_;  // [level][rank]
};

}  // namespace aludel
