#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/codec/scd/weights.h"

namespace aludel {

// Transform coding of the hand-over: the producer projects the states of a group of layers onto a few
// latents and quantises them, the consumer decodes its own K and V from those latents and from what it knows
// by itself. With f the side information, H of layer `native_layers` (each side's own),
//   producer:  z = round((E x + F f_A + offset) / step),   x = [K V] of the group's layers
//   consumer:  [K V] = D u + bias + D2 silu(D1 u + bias1),  u = [f_B, step z].
// F makes z the innovation of x over f_A: what the consumer could not have predicted (Ma et al. stop at
// x alone; reduced-rank regression after Izenman 1975). See FORMAT.md, kind transform.

// How quantised latents become bytes.
enum class LatentPacking : uint8_t {
  kFixed,    // each latent in its own number of bits
  kDeflate,  // Huffman codes (RFC 1951) over planes of bytes
};

struct TransformGroup {
  int first_layer = 0;
  int layers = 0;
  int64_t rank = 0;
};

// What both sides must agree on; the manifest holds it.
struct TransformShape {
  // Layers that the consumer runs by itself over every token. It then has K and V of layer `native_layers`
  // too, and H of that layer as side information. -1: none at all, every layer is coded.
  int native_layers = -1;
  // Tokens that the consumer computes itself, see KvCodec.
  int64_t head_tokens = 0;
  int64_t tail_tokens = 0;
  LatentPacking packing = LatentPacking::kDeflate;
  std::vector<TransformGroup> groups;  // contiguous, from layer native_layers + 1 to the last

  bool has_side() const { return native_layers >= 0; }
};

// Layers that arrive as frames, of a model of `layers`.
inline std::vector<bool> ShippedLayers(const TransformShape& shape, int layers) {
  std::vector<bool> shipped(layers, false);
  for (const TransformGroup& group : shape.groups) {
    std::fill_n(shipped.begin() + group.first_layer, group.layers, true);
  }
  return shipped;
}

// The quantiser of a group's latents.
struct LatentGrid {
  float step = 0;         // of every latent: the encoder has put them on one scale
  std::vector<int> bits;  // [rank] codes lie in [-2^(bits-1), 2^(bits-1) - 1]
};

struct TransformEncoderGroup {
  HostMatrix matrix;  // [rank, layers * 2 * kv_dim], columns K, V of the first layer, K, V of the next
  HostMatrix side;    // [rank, hidden], empty without side information
  std::vector<float> offset;  // [rank]
  LatentGrid grid;
};

struct TransformDecoderGroup {
  LatentGrid grid;
  HostMatrix linear;               // [outputs, side + rank], may be empty beside an MLP
  std::vector<float> bias;         // [outputs], outputs = layers * 2 * kv_dim
  HostMatrix hidden;               // [width, side + rank], empty without an MLP
  std::vector<float> hidden_bias;  // [width]
  HostMatrix out;                  // [outputs, width]
};

using TransformEncoderWeights = std::vector<TransformEncoderGroup>;  // [groups]
using TransformDecoderWeights = std::vector<TransformDecoderGroup>;  // [groups]

}  // namespace aludel
