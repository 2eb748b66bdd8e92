#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/codec/scd/weights.h"

namespace aludel {

// Aludel coding of the handoff: the producer projects the states of a group of layers onto a few
// latents and quantizes them, the consumer decodes its own K and V from those latents and from what it knows
// by itself. With f the side information, H of layer `recomputed_layers` (each side's own),
//   producer:  z = round((E x + F f_A + offset) / step),   x = [K V] of the group's layers
//   consumer:  [K V] = D u + bias + D2 silu(D1 u + bias1),  u = [S f_B, step z].
// F makes z the innovation of x over f_A: what the consumer could not have predicted (Ma et al. stop at
// x alone; reduced-rank regression after Izenman 1975). S keeps the directions of f_B that tell most about [K V] of all
// groups, so that decoding costs less; without it u holds f_B itself. See FORMAT.md, kind aludel.

// How quantized latents become bytes.
enum class LatentPacking : uint8_t {
  kFixed,     // each latent in its own number of bits
  kDeflate,   // Huffman codes (RFC 1951) over planes of bytes
  kRans,      // codes of tables that both sides have, by one scale a latent
  kEmbedded,  // the same in planes, coarse ones first: a payload may end behind any of them
  kVideo      // a lossless HEVC picture of them
};

constexpr const char* Name(LatentPacking packing) {
  switch (packing) {
    case LatentPacking::kFixed:
      return "fixed";
    case LatentPacking::kDeflate:
      return "deflate";
    case LatentPacking::kRans:
      return "rans";
    case LatentPacking::kEmbedded:
      return "embedded";
    case LatentPacking::kVideo:
      return "video";
  }
  return "unknown";
}

constexpr std::optional<LatentPacking> ParseLatentPacking(std::string_view name) {
  for (const LatentPacking packing : {LatentPacking::kFixed, LatentPacking::kDeflate, LatentPacking::kRans,
                                      LatentPacking::kEmbedded, LatentPacking::kVideo}) {
    if (name == Name(packing)) return packing;
  }
  return std::nullopt;
}

// True where tables are made from LatentGrid::decays.
constexpr bool HasScales(LatentPacking packing) {
  return packing == LatentPacking::kRans || packing == LatentPacking::kEmbedded;
}

// True where a LatentCoder codes planes.
constexpr bool HasCoder(LatentPacking packing) {
  return HasScales(packing) || packing == LatentPacking::kVideo;
}

struct AludelGroup {
  int first_layer = 0;
  int layers = 0;
  int64_t rank = 0;
};

// What calibration saw of codes in prompts that no fit has seen: see code_range.h.
struct CodeRange {
  double end_share = 0;        // the largest EndShare
  std::vector<double> digits;  // [groups] the largest Digits, 0: not known; empty: of none
};

// What both sides must agree on; the manifest holds it.
struct AludelShape {
  // Layers that the consumer runs by itself over every token. It then has K and V of layer `recomputed_layers`
  // too, and H of that layer as side information. -1: none at all, every layer is coded.
  int recomputed_layers = -1;
  // Tokens that the consumer computes itself, see CodecSpec.
  int64_t head_tokens = 0;
  int64_t tail_tokens = 0;
  LatentPacking packing = LatentPacking::kDeflate;
  // Of LatentPacking::kEmbedded, in memory alone: planes of a frame, 0: all of the grids'. Decoders refuse others.
  int planes = 0;
  // Decoders fail frames that are far beyond it; none: not known, and no frame is.
  std::optional<CodeRange> range;
  std::vector<AludelGroup> groups;  // contiguous, from layer recomputed_layers + 1 to the last

  bool has_side() const { return recomputed_layers >= 0; }
};

// The only layout of pictures so far. In files, so that an encoder's hash tells frames of one packing from another's.
inline constexpr int kVideoLayout = 1;

// The quantizer of a group's latents.
struct LatentGrid {
  float step = 0;         // of every latent: the encoder has put them on one scale
  std::vector<int> bits;  // [rank] codes lie in [-2^(bits-1), 2^(bits-1) - 1]
  // [rank] where the packing HasScales, else empty: exp(-1 / (2 s)), s the scale of codes' logistic distribution.
  std::vector<float> decays;
  int planes = 0;  // of LatentPacking::kEmbedded, else 0
  int video = 0;   // of LatentPacking::kVideo how a picture is laid out, kVideoLayout; else 0
};

struct AludelEncoderGroup {
  HostMatrix matrix;  // [rank, layers * 2 * kv_dim], columns K, V of the first layer, K, V of the next
  HostMatrix side;    // [rank, hidden], empty without side information
  std::vector<float> offset;  // [rank]
  LatentGrid grid;
};

struct AludelDecoderGroup {
  LatentGrid grid;
  HostMatrix linear;        // [outputs, side + rank], may be empty beside an MLP; side: rows of S, or hidden
  std::vector<float> bias;  // [outputs], outputs = layers * 2 * kv_dim
  HostMatrix hidden;        // [width, side + rank], empty without an MLP
  std::vector<float> hidden_bias;  // [width]
  HostMatrix out;                  // [outputs, width]
};

// Rows of S are a multiple of it: whole pieces of 16 bytes as bf16.
inline constexpr int64_t kSideRankUnit = 8;

using AludelEncoderWeights = std::vector<AludelEncoderGroup>;  // [groups]

struct AludelDecoderWeights {
  HostMatrix side;  // S [side, hidden]; empty: u holds f_B itself
  std::vector<AludelDecoderGroup> groups;
};

}  // namespace aludel
