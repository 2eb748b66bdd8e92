#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/calibrate/aludel/gradient/host_model.h"

namespace aludel {

struct TailPass;

// One of several continuations of a common trunk.
struct TailBranch {
  // Rows [first_row, first_row + rows) of the cache are what it has behind the trunk.
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t tail = 0;  // tokens of its tail
};

// A prompt's cache in a model's coordinates, and the tokens that are fed on it.
struct CachedTail {
  // K (after bias and k-norm, before RoPE) and V of every layer: [tokens, layers * 2 * kv_dim], columns
  // K_0 V_0 K_1 V_1 ...
  absl::Span<const float> cache;
  int64_t tokens = 0;
  // Ids at positions tokens, tokens + 1, ...: the prompt's last token, then the answer so far.
  absl::Span<const int32_t> tail;
  // Several prompts that begin alike, in one pass: rows [0, trunk) of the cache are common, each branch has
  // rows of its own, and no branch sees another's. Tails lie one behind the other. Rows that no branch names
  // are not seen. Empty: all rows are the trunk's, and one tail follows.
  absl::Span<const TailBranch> branches = {};
  int64_t trunk = 0;  // read where there are branches
};

// How a model's next-token distributions depend on the KV cache that it was given: forward over the tail and
// backward to the cache, on the host, in f32 or with the matrices in bf16. For every architecture that
// Transformer runs. For calibration: owns a copy of the weights (HostModel) and the activations of one pass (2 caches,
// and attention weights [layers, heads, tail, tokens + tail]), which the next call reuses. Not thread-safe; matrix
// products use the threads that SetProductThreads allows.
//
// Every call fails with InvalidArgument where shapes, ids or positions do not fit, or where the cache, a
// target or the result holds a number that is not finite.
class CacheGradient {
 public:
  // `rope_length` as in TransformerOptions; `matrices`: see HostModel.
  static absl::StatusOr<std::unique_ptr<CacheGradient>> Load(const ModelPath& path, int64_t rope_length = 0,
                                                             DType matrices = DType::kF32);
  ~CacheGradient();

  const ModelConfig& config() const { return model_->config; }
  // Numbers in the cache per token.
  int64_t columns() const { return int64_t{2} * config().layers * config().kv_dim(); }

  // [tail, vocab]: what the model says after each token of the tail.
  absl::Status Logits(const CachedTail& input, std::vector<float>* logits);

  // Greedy answers side by side, a token of each in one pass. `input` has a tail of one token for every branch, or one
  // without branches. An answer has at most `most` tokens; it ends with an end token, or where the context does. `seen` is
  // told what the model said after each token of a branch that was fed, in their order: the answer's last is not fed.
  absl::StatusOr<std::vector<std::vector<int32_t>>> Answer(
      const CachedTail& input, int64_t most,
      absl::FunctionRef<void(size_t branch, absl::Span<const float> logits)> seen);

  // The mean over the tail of KL(target || model on this cache), in nats, and its gradient with respect to
  // the cache, in the cache's shape. `target_logprobs` [tail, vocab] are log-probabilities; minus infinity is
  // a probability of zero.
  absl::StatusOr<double> Kl(const CachedTail& input, absl::Span<const float> target_logprobs,
                            std::vector<float>* gradient);

  // sum_i log p(y_i) with one label y_i after each token of the tail drawn from the model's own distribution
  // there, and its gradient g: E[g g^T] is the Fisher matrix of the cache, the second derivative of the sum
  // of the tail's KL around it.
  absl::StatusOr<double> SampledLogProbability(const CachedTail& input, std::mt19937_64& random,
                                               std::vector<float>* gradient);

 private:
  CacheGradient(std::unique_ptr<HostModel> model, int64_t rope_length);

  absl::Status Forward(const CachedTail& input);
  // Checks the loss and its gradient.
  absl::Status Backward(double loss, const std::vector<float>& d_logits, std::vector<float>* gradient);

  std::unique_ptr<HostModel> model_;
  std::unique_ptr<TailPass> pass_;
};

}  // namespace aludel
