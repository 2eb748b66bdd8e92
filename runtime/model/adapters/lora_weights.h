#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "runtime/model/model_config.h"

namespace aludel {

// What an adapter adds to the matrices of a layer, stacked as LayerWeights are. Null: nothing.
struct LayerUpdates {
  std::unique_ptr<PackedLowRank> q;
  std::unique_ptr<PackedLowRank> kv;
  std::unique_ptr<PackedLowRank> o;
  std::unique_ptr<PackedLowRank> gate_up;
  std::unique_ptr<PackedLowRank> down;
};

// A LoRA adapter on a device beside its base, whose weights it leaves alone: y = W x + scale * B (A x). One base
// serves many. Immutable and thread-safe; what is computed with it must not outlive it, nor it the device.
class LoraWeights {
 public:
  struct Base {
    std::string directory;  // for errors
    std::string hash;       // of the base alone
    ModelConfig config;
    DType compute = DType::kBf16;  // what A and B are rounded to
  };

  // Reads an adapter's directory (PEFT's layout, see MODELS.md) and checks it against the base before any of it
  // is kept. Errors name the file, the field or the tensor, what was found and what was expected.
  static absl::StatusOr<std::unique_ptr<LoraWeights>> Load(Device* device, const std::string& directory,
                                                           const Base& base);

  // The check alone: headers and config, no device. Costs no more than opening the files.
  static absl::Status Check(const std::string& directory, const Base& base);

  // As Transformer::hash() of the base with this adapter merged: what peers, artifacts and prefix caches know
  // this model by.
  const std::string& hash() const { return hash_; }
  size_t bytes() const { return bytes_; }  // on the device
  const LayerUpdates& layer(int index) const { return layers_[index]; }
  const PackedLowRank* head() const { return head_.get(); }  // or null
  // Whether it updates keys or values of some layer.
  bool updates_cache() const;

 private:
  LoraWeights() = default;

  std::string hash_;
  size_t bytes_ = 0;
  std::vector<LayerUpdates> layers_;
  std::unique_ptr<PackedLowRank> head_;
};

}  // namespace aludel
