#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace aludel {

// A row-major matrix in host memory, W [out, in] as PackedMatrix wants it.
struct HostMatrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<float> values;  // [rows, cols]

  static HostMatrix Zeros(int64_t rows, int64_t cols) {
    return {rows, cols, std::vector<float>(static_cast<size_t>(rows * cols))};
  }
  float* row(int64_t i) { return values.data() + i * cols; }
  const float* row(int64_t i) const { return values.data() + i * cols; }
};

// How a layer's cache crosses: as codes of its K and V (Reuse), or as a code of its attention input, from
// which the consumer makes K and V with its own projections (Patch).
enum class ScdMode : uint8_t { kReuse, kPatch };

// The producer's half of a layer. Z_K = K k^T, Z_V = V v^T; or Z_H = H h^T.
struct ScdEncoderLayer {
  ScdMode mode = ScdMode::kReuse;
  HostMatrix k;  // [rank_k, kv_dim]
  HostMatrix v;  // [rank_v, kv_dim]
  HostMatrix h;  // [rank_h, hidden]
};

// The map from a code of the producer's attention input to the consumer's: a linear part plus a gated MLP
// (Shazeer 2020) for what bends,
//   g(z) = skip z + bias + down (silu(gate z + gate_bias) * (up z + up_bias)).
struct AlignerWeights {
  HostMatrix skip;                  // [hidden, rank_h]
  std::vector<float> bias;          // [hidden]
  HostMatrix gate_up;               // [2 width, rank_h]: gate above up
  std::vector<float> gate_up_bias;  // [2 width]
  HostMatrix down;                  // [hidden, width]
};

// The consumer's half of a layer. K = Z_K k^T, V = Z_V v^T before RoPE; or H = g(Z_H).
struct ScdDecoderLayer {
  ScdMode mode = ScdMode::kReuse;
  HostMatrix k;  // [kv_dim, rank_k]
  HostMatrix v;  // [kv_dim, rank_v]
  AlignerWeights aligner;
};

using ScdEncoderWeights = std::vector<ScdEncoderLayer>;  // [layers]
using ScdDecoderWeights = std::vector<ScdDecoderLayer>;  // [layers]

// The zero-byte control: the consumer runs its first `recomputed_layers` layers over the prompt, which gives it K
// and V of the next layer too, and predicts K and V of every deeper layer from that layer's attention input
// by linear regression. Nothing crosses the wire, so no codec may claim what this already gives.
struct ControlLayer {
  HostMatrix kv;            // [2 kv_dim, hidden]: K above V; empty for layers the consumer computes
  std::vector<float> bias;  // [2 kv_dim]
};

struct ControlWeights {
  int recomputed_layers = 0;
  std::vector<ControlLayer> layers;
};

}  // namespace aludel
