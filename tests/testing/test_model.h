#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/device.h"
#include "runtime/kv/block_pool.h"
#include "runtime/model/transformer.h"
#include "runtime/model/transformer_options.h"
#include "tests/testing/test_device.h"

namespace aludel {

// A model with a device and a KV cache of its own, and one sequence that a test runs piece by piece.
class TestModel {
 public:
  TestModel(const ModelPath& path, const TransformerOptions& options, DType kv_dtype, int64_t tokens,
            const DeviceOptions& device = {}) {
    device_ = OpenTestDevice(device).value();
    auto model = Transformer::Load(device_.get(), path, options);
    if (!model.ok()) ADD_FAILURE() << std::string(model.status().message());
    model_ = *std::move(model);
    const KvLayout layout = model_->MakeKvLayout((tokens + 15) / 16, 16, kv_dtype);
    pool_ = BlockPool::Create(device_.get(), layout).value();
    EXPECT_TRUE(table_.Grow(*pool_, tokens).ok());
  }

  // Appends tokens and returns the logits of the last one.
  std::vector<float> Run(absl::Span<const int32_t> ids, LayerObserver* observer = nullptr) {
    BatchItem item{ids, position_, table_.ids(), /*wants_logits=*/true, observer, absl::OkStatus()};
    std::vector<float> logits;
    const absl::Status status = model_->Forward(absl::MakeSpan(&item, 1), *pool_, &logits);
    EXPECT_TRUE(status.ok()) << std::string(status.message());
    position_ += static_cast<int64_t>(ids.size());
    return logits;
  }

  // Forgets every token from `position` on.
  void Rewind(int64_t position) { position_ = position; }

  Transformer& model() { return *model_; }
  BlockPool& pool() { return *pool_; }
  BlockTable& table() { return table_; }
  Device* device() { return device_.get(); }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Transformer> model_;
  std::unique_ptr<BlockPool> pool_;
  BlockTable table_;
  int64_t position_ = 0;
};

}  // namespace aludel
