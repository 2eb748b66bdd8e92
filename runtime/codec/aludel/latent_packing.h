#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/latents.h"
#include "runtime/codec/aludel/latent_coder.h"
#include "runtime/codec/aludel/latent_tables.h"
#include "runtime/codec/aludel/weights.h"

namespace aludel {

// The payload bytes of quantized latents (FORMAT.md, kind aludel): planes of codes, which the operations
// PackLatents and UnpackLatents write and read on a device, and but with kFixed their codes. Stateless.

// Where the codes of latents of so many bits lie. But with kFixed a code takes whole bytes, the lower ones of
// all tokens first, so that what codes them sees bytes of one kind together.
std::vector<LatentPlane> PlanesOf(const std::vector<int>& bits, LatentPacking packing, int64_t tokens);
size_t PlaneBytes(const std::vector<int>& bits, LatentPacking packing, int64_t tokens);

// Bound on the bytes of payloads, which is made once for a grid.
std::function<size_t(int64_t tokens)> PackedBound(const LatentGrid& grid, LatentPacking packing);
size_t MaxPackedBytes(const LatentGrid& grid, LatentPacking packing, int64_t tokens);

// kDeflate's payload of `planes` in `payload` (at least MaxPackedBytes). Returns its bytes.
size_t DeflatePlanes(absl::Span<const uint8_t> planes, absl::Span<uint8_t> payload);

// Whether this process can code in such a packing and decode it: of kVideo as LoadHevcEncoder and LoadHevcDecoder, all others OK.
absl::Status CheckPacking(LatentPacking packing);

// What OpenPlanes takes of a grid; null where the packing has no coder. `planes` as EmbeddedCoder takes them, all
// where the grid has fewer.
std::unique_ptr<LatentCoder> MakeLatentCoder(const LatentGrid& grid, LatentPacking packing, int planes = 0);

// Planes of codes as a payload has them.
struct OpenedPlanes {
  absl::Span<const uint8_t> bytes;  // laid out by PlanesOf(scale.bits, ...)
  PlaneScale scale;                 // the grid's own, but of a cut kEmbedded payload
};

// The planes of `tokens` tokens that are in a payload: in `opened`, or the payload itself with kFixed.
// DataLoss where they are not exactly those. `coder`: the grid's.
absl::StatusOr<OpenedPlanes> OpenPlanes(absl::Span<const uint8_t> payload, const LatentGrid& grid,
                                        LatentPacking packing, const LatentCoder* coder, int64_t tokens,
                                        std::vector<uint8_t>* opened);

// Both steps on the host: the payload of z [tokens, rank] (row-major) in `out` (at least MaxPackedBytes),
// each latent rounded to a multiple of the step and clamped to its range. NaN becomes 0. Returns the
// bytes written.
size_t PackLatents(const float* z, int64_t tokens, const LatentGrid& grid, LatentPacking packing,
                   absl::Span<uint8_t> out);
// For many frames of one grid: `coder` as in OpenPlanes.
size_t PackLatents(const float* z, int64_t tokens, const LatentGrid& grid, LatentPacking packing,
                   const LatentCoder* coder, absl::Span<uint8_t> out);

// The inverse: z [tokens, rank] = scale.step * codes. DataLoss as OpenPlanes; z is then unspecified.
absl::Status UnpackLatents(absl::Span<const uint8_t> bytes, int64_t tokens, const LatentGrid& grid,
                           LatentPacking packing, float* z);

}  // namespace aludel
