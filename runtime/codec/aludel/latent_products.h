#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor.h"
#include "runtime/codec/aludel/weights.h"
#include "runtime/model/transformer.h"

namespace aludel {

// An encoder's latents E x + F f_A + offset (weights.h) of the tokens of a step, group by group, as the step's layers come. All
// work is on the model's stream. Of one handoff; engine thread only.
class LatentProducts {
 public:
  LatentProducts() = default;
  virtual ~LatentProducts() = default;
  LatentProducts(const LatentProducts&) = delete;
  LatentProducts& operator=(const LatentProducts&) = delete;

  // The side information: H of layer `recomputed_layers`, before the step's first group.
  virtual void AddSide(const LayerSlice& slice) = 0;
  // Layer `at` of a group, the last of which completes its latents.
  virtual void AddLayer(const LayerSlice& slice, size_t group, int at) = 0;
  // Those, f32 [tokens, rank], until the next layer is added.
  virtual TensorView Latents(size_t group, int64_t tokens) const = 0;
  // LayerObserver::KvRows, for layer `at` of any group.
  virtual TensorView KvRows(int at) const = 0;
};

// What the encoders of a codec share of that. Thread-safe, but for the working memory that all share, see CodecSide.
//
// Where the device keeps rows narrow (Ops::KeepsNarrow), f_A and the x of a group's layers are gathered side by side, and one
// product makes the latents of them: in most steps the model computes K and V where they are gathered, so that nothing is
// copied but f_A, once. Elsewhere each layer's product is added to those before it, over as few rows at a time as a cache holds.
class LatentProductsFactory {
 public:
  virtual ~LatentProductsFactory() = default;
  // Enqueues nothing: any thread.
  virtual absl::StatusOr<std::unique_ptr<LatentProducts>> New() const = 0;
};

// `weights` of the groups of `shape`.
absl::StatusOr<std::unique_ptr<LatentProductsFactory>> MakeLatentProducts(
    const Transformer& model, const AludelShape& shape, const AludelEncoderWeights& weights);

}  // namespace aludel
