#include "runtime/codec/aludel/latent_packing.h"

#include <isa-l/igzip_lib.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "runtime/codec/aludel/embedded_coder.h"
#include "runtime/codec/video/hevc.h"
#include "runtime/codec/video/video_coder.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr size_t kMostBytes = std::numeric_limits<decltype(LatentPlane::offset)>::max();

// What a plane takes where tokens take `bits` each: planes start on bytes.
size_t BytesOf(int64_t tokens, int bits) { return static_cast<size_t>((tokens * bits + 7) / 8); }

absl::Status Inflate(absl::Span<const uint8_t> in, absl::Span<uint8_t> out) {
  inflate_state state;
  isal_inflate_init(&state);  // sets what matters of it
  state.next_in = const_cast<uint8_t*>(in.data());
  state.avail_in = static_cast<uint32_t>(in.size());
  state.next_out = out.data();
  state.avail_out = static_cast<uint32_t>(out.size());
  const int end = isal_inflate_stateless(&state);
  if (end == ISAL_DECOMP_OK && state.avail_in == 0 && state.avail_out == 0) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrFormat("deflated latents: %d bytes give %d, want exactly %d and nothing behind", in.size(),
                      state.total_out, out.size()));
}

}  // namespace

std::vector<LatentPlane> PlanesOf(const std::vector<int>& bits, LatentPacking packing, int64_t tokens) {
  ALUDEL_CHECK(PlaneBytes(bits, packing, tokens) <= kMostBytes);
  std::vector<LatentPlane> planes(bits.size());
  // Bytes between members too: devices recognize by its bytes a table that they were sent before.
  std::memset(static_cast<void*>(planes.data()), 0, planes.size() * sizeof(LatentPlane));
  size_t at = 0;
  for (size_t i = 0; i < bits.size(); ++i) {
    const bool fixed = packing == LatentPacking::kFixed;
    LatentPlane& plane = planes[i];
    plane.offset = static_cast<uint32_t>(at);
    plane.bits = static_cast<uint8_t>(bits[i]);
    plane.width = static_cast<uint8_t>(fixed ? bits[i] : 8);
    at += BytesOf(tokens, plane.width);
    if (fixed || bits[i] <= 8) continue;
    plane.high_offset = static_cast<uint32_t>(at);
    at += static_cast<size_t>(tokens);
  }
  return planes;
}

size_t PlaneBytes(const std::vector<int>& bits, LatentPacking packing, int64_t tokens) {
  size_t bytes = 0;
  for (const int b : bits) {
    bytes += BytesOf(tokens, packing == LatentPacking::kFixed ? b : (b + 7) / 8 * 8);
  }
  return bytes;
}

std::function<size_t(int64_t tokens)> PackedBound(const LatentGrid& grid, LatentPacking packing) {
  if (packing == LatentPacking::kRans) {
    return [bits = grid.bits](int64_t tokens) { return RansCoder::MaxBytes(bits, tokens); };
  }
  if (packing == LatentPacking::kEmbedded) {
    return [bound = EmbeddedBound(grid)](int64_t tokens) { return bound.Bytes(tokens); };
  }
  if (packing == LatentPacking::kVideo) {
    return [bits = grid.bits](int64_t tokens) { return VideoCoder::MaxBytes(bits, tokens); };
  }
  return [bits = grid.bits, packing](int64_t tokens) -> size_t {
    const size_t planes = PlaneBytes(bits, packing, tokens);
    return packing == LatentPacking::kFixed ? planes : deflateBound(nullptr, planes);
  };
}

size_t MaxPackedBytes(const LatentGrid& grid, LatentPacking packing, int64_t tokens) {
  return PackedBound(grid, packing)(tokens);
}

// Huffman coding alone: codes of neighboring tokens repeat by chance only, so that searching them for
// matches costs time and gains nothing.
size_t DeflatePlanes(absl::Span<const uint8_t> planes, absl::Span<uint8_t> payload) {
  // Without matches neither the window nor its index is of use, and clearing large ones took longer than the
  // coding of a short frame. The level sets the symbols of a block, too: 8192, each block with its own codes.
  constexpr int kWindowBits = 13;
  constexpr int kMemoryLevel = 7;
  z_stream stream = {};
  ALUDEL_CHECK(deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -kWindowBits, kMemoryLevel,
                            Z_HUFFMAN_ONLY) == Z_OK);
  stream.next_in = const_cast<uint8_t*>(planes.data());
  stream.avail_in = static_cast<uInt>(planes.size());
  stream.next_out = payload.data();
  stream.avail_out = static_cast<uInt>(payload.size());
  const int end = deflate(&stream, Z_FINISH);
  const size_t written = stream.total_out;
  deflateEnd(&stream);
  ALUDEL_CHECK(end == Z_STREAM_END);  // `payload` has deflate's own bound
  return written;
}

absl::Status CheckPacking(LatentPacking packing) {
  if (packing != LatentPacking::kVideo) return absl::OkStatus();
  ALUDEL_RETURN_IF_ERROR(LoadHevcEncoder());
  return LoadHevcDecoder();
}

std::unique_ptr<LatentCoder> MakeLatentCoder(const LatentGrid& grid, LatentPacking packing, int planes) {
  if (packing == LatentPacking::kRans) return std::make_unique<RansCoder>(grid);
  if (packing == LatentPacking::kVideo) return std::make_unique<VideoCoder>(grid);
  if (packing != LatentPacking::kEmbedded) return nullptr;
  return std::make_unique<EmbeddedCoder>(grid, std::min(planes, grid.planes));
}

absl::StatusOr<OpenedPlanes> OpenPlanes(absl::Span<const uint8_t> payload, const LatentGrid& grid,
                                        LatentPacking packing, const LatentCoder* coder, int64_t tokens,
                                        std::vector<uint8_t>* opened) {
  const size_t want = PlaneBytes(grid.bits, packing, tokens);
  // Of a cut payload codes may take two bytes that had one.
  if (want > kMostBytes / (packing == LatentPacking::kEmbedded ? 2 : 1)) {
    return absl::DataLossError(
        absl::StrFormat("latents of %d tokens of rank %d take %d bytes, at most %d are read", tokens,
                        grid.bits.size(), want, kMostBytes));
  }
  if (HasCoder(packing)) {
    ALUDEL_ASSIGN_OR_RETURN(PlaneScale scale, coder->Decode(payload, tokens, opened));
    return OpenedPlanes{*opened, std::move(scale)};
  }
  if (packing == LatentPacking::kDeflate) {
    opened->resize(want);
    ALUDEL_RETURN_IF_ERROR(Inflate(payload, absl::MakeSpan(*opened)));
    return OpenedPlanes{*opened, {grid.bits, grid.step}};
  }
  if (payload.size() == want) return OpenedPlanes{payload, {grid.bits, grid.step}};
  return absl::DataLossError(absl::StrFormat("latents are %d bytes, want %d (%d tokens of rank %d)",
                                             payload.size(), want, tokens, grid.bits.size()));
}

size_t PackLatents(const float* z, int64_t tokens, const LatentGrid& grid, LatentPacking packing,
                   absl::Span<uint8_t> out) {
  return PackLatents(z, tokens, grid, packing, MakeLatentCoder(grid, packing).get(), out);
}

size_t PackLatents(const float* z, int64_t tokens, const LatentGrid& grid, LatentPacking packing,
                   const LatentCoder* coder, absl::Span<uint8_t> out) {
  // Coders look at their bounds by themselves.
  ALUDEL_CHECK(HasCoder(packing) || out.size() >= MaxPackedBytes(grid, packing, tokens));
  const bool fixed = packing == LatentPacking::kFixed;
  std::vector<uint8_t> to_code(fixed ? 0 : PlaneBytes(grid.bits, packing, tokens));
  uint8_t* const bytes = fixed ? out.data() : to_code.data();
  const std::vector<LatentPlane> planes = PlanesOf(grid.bits, packing, tokens);
  const auto rank = static_cast<int64_t>(planes.size());
  for (int64_t i = 0; i < rank; ++i) WriteLatent(z + i, rank, tokens, 1.0f / grid.step, planes[i], bytes);
  if (fixed) return PlaneBytes(grid.bits, packing, tokens);
  if (packing == LatentPacking::kDeflate) return DeflatePlanes(to_code, out);
  return coder->Encode(to_code, tokens, out);
}

absl::Status UnpackLatents(absl::Span<const uint8_t> bytes, int64_t tokens, const LatentGrid& grid,
                           LatentPacking packing, float* z) {
  std::vector<uint8_t> opened;
  const std::unique_ptr<LatentCoder> coder = MakeLatentCoder(grid, packing);
  ALUDEL_ASSIGN_OR_RETURN(const OpenedPlanes codes,
                          OpenPlanes(bytes, grid, packing, coder.get(), tokens, &opened));
  const std::vector<LatentPlane> planes = PlanesOf(codes.scale.bits, packing, tokens);
  const auto rank = static_cast<int64_t>(planes.size());
  for (int64_t i = 0; i < rank; ++i) {
    ReadLatent(codes.bytes.data(), planes[i], 0, tokens, codes.scale.step, z + i, rank);
  }
  return absl::OkStatus();
}

}  // namespace aludel
