#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "runtime/calibrate/aludel/gradient/cache_gradient.h"
#include "runtime/calibrate/aludel/gradient/host_model.h"
#include "runtime/model/model_config.h"

namespace aludel {

// cos and sin of every position, times the attention factor.
class Rotations {
 public:
  explicit Rotations(RopeFrequencies rope) : rope_(std::move(rope)) {}

  void Grow(int64_t positions);
  // Rotates each head of `row` [heads, head_dim] to `position`, in place.
  void Apply(int64_t position, int heads, float* row) const;
  // The transpose of Apply: gradients of rotated rows become gradients of plain ones.
  void ApplyTransposed(int64_t position, int heads, float* row) const;

 private:
  RopeFrequencies rope_;
  std::vector<float> cosine_, sine_;  // [positions, head_dim / 2]
};

// Rows of keys [begin, end), cached ones first, the tail's behind them.
struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// What a token of the tail attends to: of the trunk, of its branch, of its tail.
using VisibleKeys = std::array<KeyRange, 3>;

// What the backward pass of one layer needs again. n tokens of tail, s rows of keys.
struct TailLayer {
  std::vector<float> x;              // [n, hidden] entering the layer
  std::vector<float> qkv;            // [n, q_dim + 2 kv_dim] before q/k-norm
  std::vector<float> q;              // [n, q_dim] rotated
  std::vector<float> k;              // [s, kv_dim] rotated
  std::vector<float> v;              // [s, kv_dim]
  std::vector<float> probabilities;  // [heads, n, s]
  std::vector<float> y;              // [n, hidden] after attention
  std::vector<float> gate_up;        // [n, 2 ffn]
};

// Of the layer that the backward pass is in.
struct TailGradients {
  std::vector<float> x;       // [n, hidden], of the residual stream
  std::vector<float> h;       // [n, hidden], of a norm's output
  std::vector<float> wide;    // [n, 2 ffn], then [n, q_dim] of what heads attended to
  std::vector<float> scores;  // [n, s], of one head
  std::vector<float> q;       // [n, q_dim]
  std::vector<float> k;       // [s, kv_dim]
  std::vector<float> v;       // [s, kv_dim]
  std::vector<float> qkv;     // [n, q_dim + 2 kv_dim]
};

// The activations of one forward pass. Vectors keep their memory from call to call.
struct TailPass {
  Rotations rotations;
  int64_t tokens = 0;
  int64_t tail = 0;
  std::vector<int64_t> positions;    // [length], of keys
  std::vector<int64_t> rows;         // [tail], where their keys are
  std::vector<VisibleKeys> visible;  // [tail]
  std::vector<TailLayer> layers;
  std::vector<float> x;        // [n, hidden] after the last layer
  std::vector<float> logits;   // [n, vocab]
  std::vector<float> h, wide;  // scratch of any layer
  TailGradients gradients;

  int64_t length() const { return static_cast<int64_t>(positions.size()); }
};

// Fills `pass`. The input has been checked.
void RunTail(const HostModel& model, const CachedTail& input, TailPass* pass);

// The same a token at a time: places the cache, with room for `most` tokens of each of the input's branches.
void StartSteps(const HostModel& model, const CachedTail& input, int64_t most, TailPass* pass);
// Feeds the `step`th token of some branches: `ids` of `live`. Each has been fed its earlier ones.
void RunStep(const HostModel& model, const CachedTail& input, int64_t most, int64_t step,
             absl::Span<const size_t> live, absl::Span<const int32_t> ids, TailPass* pass);

// gradient [tokens, layers * 2 * kv_dim] of a loss whose gradient in the logits of `pass` is `d_logits`.
void RunTailBackward(const HostModel& model, const std::vector<float>& d_logits, TailPass* pass,
                     std::vector<float>* gradient);

// out = x / rms(x) * weight over `size` numbers.
void NormRow(const float* x, const float* weight, int64_t size, double eps, float* out);
// dx += (d NormRow / d x)^T dy.
void AddNormRowGradient(const float* x, const float* weight, int64_t size, double eps, const float* dy,
                        float* dx);

}  // namespace aludel
