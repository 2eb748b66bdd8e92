#include "runtime/codec/transform/latent_packing.h"

#include <isa-l/igzip_lib.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_format.h"
#include "kernels/check.h"

namespace aludel {
namespace {

// Bytes of one latent's plane in fixed packing; planes start on bytes.
size_t FixedBytes(int64_t tokens, int bits) { return static_cast<size_t>((tokens * bits + 7) / 8); }

// A code wider than a byte travels as two planes, so that Huffman codes see bytes of one kind together.
int BytePlanes(int bits) { return bits > 8 ? 2 : 1; }

size_t PlaneBytes(const std::vector<int>& bits, int64_t tokens) {
  int planes = 0;
  for (const int b : bits) planes += BytePlanes(b);
  return static_cast<size_t>(planes) * static_cast<size_t>(tokens);
}

// To the nearest code, ties to even; NaN to 0. Without calls or branches, so that loops of it become vectors.
int32_t Quantise(float z, float inverse_step, int bits) {
  // Added to a number below 2^22 it leaves the nearest integer in the low bits.
  constexpr float kRounder = 0x1.8p23f;
  constexpr int32_t kRounderBits = 0x4b400000;
  const auto limit = static_cast<float>(1 << (bits - 1));
  float scaled = z * inverse_step;
  scaled = scaled >= -limit ? scaled : (scaled < -limit ? -limit : 0.0f);
  scaled = scaled <= limit - 1 ? scaled : limit - 1;
  return __builtin_bit_cast(int32_t, scaled + kRounder) - kRounderBits;
}

// Codes of one latent, least significant bit first.
void WriteBits(const float* z, int64_t stride, int64_t tokens, float inverse_step, int bits, uint8_t* out) {
  uint64_t pending = 0;
  int filled = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    const auto code = static_cast<uint32_t>(Quantise(z[t * stride], inverse_step, bits));
    pending |= static_cast<uint64_t>(code & ((1u << bits) - 1)) << filled;
    for (filled += bits; filled >= 8; filled -= 8, pending >>= 8) *out++ = static_cast<uint8_t>(pending);
  }
  if (filled > 0) *out = static_cast<uint8_t>(pending);
}

int32_t SignExtend(uint32_t code, int bits) {
  const uint32_t sign = 1u << (bits - 1);
  return static_cast<int32_t>((code ^ sign) - sign);
}

void ReadBits(const uint8_t* in, int64_t tokens, float step, int bits, float* z, int64_t stride) {
  uint64_t pending = 0;
  int filled = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    for (; filled < bits; filled += 8) pending |= static_cast<uint64_t>(*in++) << filled;
    const auto code = static_cast<uint32_t>(pending) & ((1u << bits) - 1);
    z[t * stride] = step * static_cast<float>(SignExtend(code, bits));
    pending >>= bits;
    filled -= bits;
  }
}

std::vector<uint8_t> BytePlanesOf(const float* z, int64_t tokens, float inverse_step,
                                  const std::vector<int>& bits) {
  std::vector<uint8_t> planes(PlaneBytes(bits, tokens));
  const auto rank = static_cast<int64_t>(bits.size());
  uint8_t* plane = planes.data();
  for (int64_t i = 0; i < rank; ++i) {
    const bool wide = BytePlanes(bits[i]) == 2;
    for (int64_t t = 0; t < tokens; ++t) {
      const auto code = static_cast<uint32_t>(Quantise(z[t * rank + i], inverse_step, bits[i]));
      plane[t] = static_cast<uint8_t>(code);
      if (wide) plane[tokens + t] = static_cast<uint8_t>(code >> 8);
    }
    plane += (wide ? 2 : 1) * tokens;
  }
  return planes;
}

// Huffman coding alone: codes of neighbouring tokens repeat by chance only, so that searching them for
// matches costs time and gains nothing.
size_t Deflate(absl::Span<const uint8_t> in, absl::Span<uint8_t> out) {
  // Without matches neither the window nor its index is of use, and clearing large ones took longer than the
  // coding of a short frame. The level sets the symbols of a block, too: 8192, each block with its own codes.
  constexpr int kWindowBits = 13;
  constexpr int kMemoryLevel = 7;
  z_stream stream = {};
  ALUDEL_CHECK(deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -kWindowBits, kMemoryLevel,
                            Z_HUFFMAN_ONLY) == Z_OK);
  stream.next_in = const_cast<uint8_t*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
  const int end = deflate(&stream, Z_FINISH);
  const size_t written = stream.total_out;
  deflateEnd(&stream);
  ALUDEL_CHECK(end == Z_STREAM_END);  // `out` has deflate's own bound
  return written;
}

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

absl::Status UnpackFixed(absl::Span<const uint8_t> bytes, int64_t tokens, const LatentGrid& grid, float* z) {
  const size_t want = MaxPackedBytes(grid.bits, LatentPacking::kFixed, tokens);
  if (bytes.size() != want) {
    return absl::DataLossError(absl::StrFormat("latents are %d bytes, want %d (%d tokens of rank %d)",
                                               bytes.size(), want, tokens, grid.bits.size()));
  }
  const auto rank = static_cast<int64_t>(grid.bits.size());
  const uint8_t* plane = bytes.data();
  for (int64_t i = 0; i < rank; ++i) {
    ReadBits(plane, tokens, grid.step, grid.bits[i], z + i, rank);
    plane += FixedBytes(tokens, grid.bits[i]);
  }
  return absl::OkStatus();
}

absl::Status UnpackDeflate(absl::Span<const uint8_t> bytes, int64_t tokens, const LatentGrid& grid,
                           float* z) {
  std::vector<uint8_t> planes(PlaneBytes(grid.bits, tokens));
  if (absl::Status status = Inflate(bytes, absl::MakeSpan(planes)); !status.ok()) return status;
  const auto rank = static_cast<int64_t>(grid.bits.size());
  const uint8_t* plane = planes.data();
  for (int64_t i = 0; i < rank; ++i) {
    const bool wide = BytePlanes(grid.bits[i]) == 2;
    for (int64_t t = 0; t < tokens; ++t) {
      const int32_t code = wide ? static_cast<int16_t>(plane[t] | plane[tokens + t] << 8)
                                : static_cast<int32_t>(static_cast<int8_t>(plane[t]));
      z[t * rank + i] = grid.step * static_cast<float>(code);
    }
    plane += (wide ? 2 : 1) * tokens;
  }
  return absl::OkStatus();
}

}  // namespace

size_t MaxPackedBytes(const std::vector<int>& bits, LatentPacking packing, int64_t tokens) {
  if (packing == LatentPacking::kDeflate) return deflateBound(nullptr, PlaneBytes(bits, tokens));
  size_t bytes = 0;
  for (const int b : bits) bytes += FixedBytes(tokens, b);
  return bytes;
}

size_t PackLatents(const float* z, int64_t tokens, const LatentGrid& grid, LatentPacking packing,
                   absl::Span<uint8_t> out) {
  const size_t bound = MaxPackedBytes(grid.bits, packing, tokens);
  ALUDEL_CHECK(out.size() >= bound);
  const float inverse_step = 1.0f / grid.step;
  if (packing == LatentPacking::kDeflate)
    return Deflate(BytePlanesOf(z, tokens, inverse_step, grid.bits), out);
  const auto rank = static_cast<int64_t>(grid.bits.size());
  uint8_t* plane = out.data();
  for (int64_t i = 0; i < rank; ++i) {
    WriteBits(z + i, rank, tokens, inverse_step, grid.bits[i], plane);
    plane += FixedBytes(tokens, grid.bits[i]);
  }
  return bound;
}

absl::Status UnpackLatents(absl::Span<const uint8_t> bytes, int64_t tokens, const LatentGrid& grid,
                           LatentPacking packing, float* z) {
  return packing == LatentPacking::kDeflate ? UnpackDeflate(bytes, tokens, grid, z)
                                            : UnpackFixed(bytes, tokens, grid, z);
}

}  // namespace aludel
