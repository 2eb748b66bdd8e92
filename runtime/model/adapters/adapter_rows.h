#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "kernels/ops.h"
#include "runtime/model/adapters/lora_weights.h"

namespace aludel {

// Which rows of a batch take the updates of which adapter: an adapter's rows together, wherever they lie, so
// that its weights are read once. Keeps its memory from batch to batch. Not thread-safe.
class AdapterRows {
 public:
  void Clear();
  // Rows [begin, begin + rows) of the batch, none of them added before. Null: the base alone.
  void Add(const LoraWeights* adapter, int64_t begin, int64_t rows);
  bool empty() const { return used_ == 0; }

  // Of one layer's matrix, those adapters that update it. Valid until the second call after it: two may be had at a time.
  absl::Span<const LowRankRows> OfLayer(int layer, std::unique_ptr<PackedLowRank> LayerUpdates::*matrix);
  // Valid until the next call.
  absl::Span<const LowRankRows> OfHead();

 private:
  struct Rows {
    const LoraWeights* adapter = nullptr;
    std::vector<int32_t> rows;
  };

  size_t used_ = 0;  // of groups_
  std::vector<Rows> groups_;
  std::array<std::vector<LowRankRows>, 2> found_;  // the latest two
};

}  // namespace aludel
