#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/codec/transform/weights.h"

namespace aludel {

// The payload bytes of quantised latents (FORMAT.md, kind transform). Stateless.

// No latent is coded in more bits.
inline constexpr int kMaxLatentBits = 16;

// Bound on the bytes that PackLatents writes.
size_t MaxPackedBytes(const std::vector<int>& bits, LatentPacking packing, int64_t tokens);

// Rounds z [tokens, rank] (row-major) to multiples of the step, clamps to the range of each latent, and
// writes the codes into `out` (at least MaxPackedBytes). NaN becomes 0. Returns the bytes written.
size_t PackLatents(const float* z, int64_t tokens, const LatentGrid& grid, LatentPacking packing,
                   absl::Span<uint8_t> out);

// The inverse: z [tokens, rank] = step * codes. DataLoss where the bytes are not exactly the codes of that
// many tokens; z is then unspecified.
absl::Status UnpackLatents(absl::Span<const uint8_t> bytes, int64_t tokens, const LatentGrid& grid,
                           LatentPacking packing, float* z);

}  // namespace aludel
