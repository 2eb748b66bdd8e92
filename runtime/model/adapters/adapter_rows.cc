#include "runtime/model/adapters/adapter_rows.h"

#include <algorithm>

namespace aludel {

void AdapterRows::Clear() { used_ = 0; }

void AdapterRows::Add(const LoraWeights* adapter, int64_t begin, int64_t rows) {
  if (adapter == nullptr) return;
  const auto used = absl::MakeSpan(groups_).subspan(0, used_);
  auto* group = std::find_if(used.begin(), used.end(), [&](const Rows& g) { return g.adapter == adapter; });
  if (group == used.end()) {
    if (used_ == groups_.size()) groups_.emplace_back();
    group = &groups_[used_++];
    group->adapter = adapter;
    group->rows.clear();
  }
  for (int64_t row = begin; row < begin + rows; ++row) group->rows.push_back(static_cast<int32_t>(row));
}

absl::Span<const LowRankRows> AdapterRows::OfLayer(int layer,
                                                   std::unique_ptr<PackedLowRank> LayerUpdates::*matrix) {
  found_[0].swap(found_[1]);
  std::vector<LowRankRows>& found = found_[0];
  found.clear();
  for (size_t i = 0; i < used_; ++i) {
    const PackedLowRank* const update = (groups_[i].adapter->layer(layer).*matrix).get();
    if (update != nullptr) found.push_back({update, groups_[i].rows});
  }
  return found;
}

absl::Span<const LowRankRows> AdapterRows::OfHead() {
  std::vector<LowRankRows>& found = found_[0];
  found.clear();
  for (size_t i = 0; i < used_; ++i) {
    const PackedLowRank* const update = groups_[i].adapter->head();
    if (update != nullptr) found.push_back({update, groups_[i].rows});
  }
  return found;
}

}  // namespace aludel
