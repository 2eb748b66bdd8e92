#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "runtime/kv/block_pool.h"
#include "runtime/model/adapters/lora_weights.h"
#include "runtime/model/transformer.h"
#include "tests/testing/test_model.h"

namespace aludel {

inline float Largest(absl::Span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

// Of two tensors of one shape; NaN where there is one.
inline float MaxDifference(absl::Span<const float> a, absl::Span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  float worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const float apart = std::fabs(a[i] - b[i]);
    if (std::isnan(apart)) return apart;
    worst = std::max(worst, apart);
  }
  return worst;
}

// A base on a device of its own, with adapters beside it.
class AdapterServer {
 public:
  AdapterServer(const std::string& base, const TransformerOptions& options)
      : base_(base), model_(base, options, options.compute, /*tokens=*/512) {}

  Transformer& model() { return model_.model(); }
  LoraWeights::Base Base() { return {base_, model().hash(), model().config(), model().options().compute}; }
  std::unique_ptr<LoraWeights> Load(const std::string& directory) {
    auto adapter = LoraWeights::Load(model_.device(), directory, Base());
    if (!adapter.ok()) ADD_FAILURE() << adapter.status().message();
    return *std::move(adapter);
  }

  // A sequence of these ids with an adapter, or with none.
  struct Row {
    const std::vector<int32_t>* ids;
    const LoraWeights* adapter;
  };
  // Logits of the last token of each, all in one batch whose blocks begin anew.
  std::vector<std::vector<float>> Run(const std::vector<Row>& rows) {
    std::vector<BlockTable> tables(rows.size());
    std::vector<BatchItem> items(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_TRUE(tables[i].Grow(pool(), static_cast<int64_t>(rows[i].ids->size())).ok());
      items[i].ids = *rows[i].ids;
      items[i].blocks = tables[i].ids();
      items[i].wants_logits = true;
      items[i].adapter = rows[i].adapter;
    }
    return Forward(items);
  }
  // Of those items that want them.
  std::vector<std::vector<float>> Forward(std::vector<BatchItem>& items) {
    std::vector<float> logits;
    const absl::Status status = model().Forward(absl::MakeSpan(items), pool(), &logits);
    EXPECT_TRUE(status.ok()) << status.message();
    std::vector<std::vector<float>> of;
    for (const auto* at = logits.data(); at < logits.data() + logits.size(); at += model().config().vocab) {
      of.emplace_back(at, at + model().config().vocab);
    }
    return of;
  }
  Device* device() { return model_.device(); }
  BlockPool& pool() {
    if (pool_ == nullptr) {
      pool_ =
          BlockPool::Create(model_.device(), model().MakeKvLayout(64, 16, model().options().compute)).value();
    }
    return *pool_;
  }

 private:
  const std::string base_;
  TestModel model_;
  std::unique_ptr<BlockPool> pool_;
};

}  // namespace aludel
