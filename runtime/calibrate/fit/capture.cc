#include "runtime/calibrate/fit/capture.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "runtime/codec/handoff.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int kBlockTokens = 16;

// Passes slices on as if they stood `shift` tokens further behind.
class Shifted : public LayerObserver {
 public:
  Shifted(LayerObserver* to, int64_t shift) : to_(to), shift_(shift) {}

  absl::Status OnLayer(const LayerSlice& slice) override {
    LayerSlice moved = slice;
    moved.token_begin += shift_;
    return to_->OnLayer(moved);
  }

 private:
  LayerObserver* to_;
  int64_t shift_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PromptCapture>> PromptCapture::Create(Transformer& model, CaptureHalf half,
                                                                     int64_t max_tokens,
                                                                     std::vector<CapturedLayer>* layers) {
  const int64_t blocks = (max_tokens + kBlockTokens - 1) / kBlockTokens;
  ALUDEL_ASSIGN_OR_RETURN(
      auto pool, BlockPool::Create(model.device(), model.MakeKvLayout(blocks, kBlockTokens, DType::kBf16)));
  const int64_t cols = std::max(model.config().hidden, model.config().kv_dim());
  ALUDEL_ASSIGN_OR_RETURN(Buffer staging,
                          model.device()->Allocate(model.options().max_rows * cols * sizeof(float)));
  return std::unique_ptr<PromptCapture>(
      new PromptCapture(model, half, layers, std::move(pool), std::move(staging)));
}

absl::Status PromptCapture::Run(absl::Span<const int32_t> prompt) {
  const auto tokens = static_cast<int64_t>(prompt.size());
  BlockTable table;
  ALUDEL_RETURN_IF_ERROR(table.Grow(*pool_, tokens));
  return RunTokens(model_, *pool_, table.ids(), prompt, 0, tokens, this, nullptr);
}

int64_t PromptCapture::PageTokens(size_t ids, size_t branches) {
  return static_cast<int64_t>(ids + (2 * branches + 1) * kBlockTokens);
}

absl::Status PromptCapture::Run(absl::Span<const int32_t> ids, absl::Span<const int64_t> branches) {
  if (branches.empty()) return Run(ids);
  BlockTable trunk;
  ALUDEL_RETURN_IF_ERROR(trunk.Grow(*pool_, branches.front()));
  ALUDEL_RETURN_IF_ERROR(RunTokens(model_, *pool_, trunk.ids(), ids, 0, branches.front(), this, nullptr));
  // As many branches a step as it has rows for.
  for (size_t begin = 0; begin < branches.size();) {
    size_t end = begin + 1;
    const auto rows = [&](size_t last) {
      return (last < branches.size() ? branches[last] : static_cast<int64_t>(ids.size())) - branches[begin];
    };
    while (end < branches.size() && rows(end + 1) <= model_.options().max_rows) ++end;
    if (rows(end) > model_.options().max_rows) {
      return absl::InvalidArgumentError(
          absl::StrFormat("a prompt has %d tokens behind those that it shares with others, want at most %d",
                          rows(end), model_.options().max_rows));
    }
    ALUDEL_RETURN_IF_ERROR(RunBranches(ids.first(branches[begin] + rows(end)),
                                       branches.subspan(begin, end - begin), trunk, branches.front()));
    begin = end;
  }
  return absl::OkStatus();
}

absl::Status PromptCapture::RunBranches(absl::Span<const int32_t> ids, absl::Span<const int64_t> branches,
                                        const BlockTable& trunk, int64_t position) {
  std::vector<BlockTable> tables(branches.size());
  std::vector<Shifted> observers;
  std::vector<BatchItem> items(branches.size());
  for (size_t b = 0; b < branches.size(); ++b) {
    const int64_t end = b + 1 < branches.size() ? branches[b + 1] : static_cast<int64_t>(ids.size());
    observers.emplace_back(this, branches[b] - position);
    for (const BlockRef& block : trunk.blocks()) tables[b].Append(block);
    ALUDEL_RETURN_IF_ERROR(tables[b].MakeWritable(*pool_, position, model_.stream()));
    ALUDEL_RETURN_IF_ERROR(tables[b].Grow(*pool_, position + end - branches[b]));
    items[b].ids = ids.subspan(branches[b], end - branches[b]);
    items[b].position = position;
    items[b].blocks = tables[b].ids();
  }
  for (size_t b = 0; b < branches.size(); ++b) items[b].observer = &observers[b];
  std::vector<float> ignored;
  ALUDEL_RETURN_IF_ERROR(model_.Forward(absl::MakeSpan(items), *pool_, &ignored));
  for (const BatchItem& item : items) ALUDEL_RETURN_IF_ERROR(item.observer_status);
  return absl::OkStatus();
}

absl::Status PromptCapture::OnLayer(const LayerSlice& slice) {
  CapturedLayer& layer = (*layers_)[slice.layer];
  ALUDEL_RETURN_IF_ERROR(Copy(slice.k, slice.token_begin, &layer.k));
  ALUDEL_RETURN_IF_ERROR(Copy(slice.v, slice.token_begin, &layer.v));
  return Copy(slice.h, slice.token_begin, &layer.h);
}

absl::Status PromptCapture::Copy(const TensorView& x, int64_t token_begin, std::vector<float>* rows) {
  Device* device = model_.device();
  const TensorView flat = TensorView::Of(staging_.as<float>(), x.rows, x.cols);
  device->ops().Convert(x, flat, model_.stream());
  host_.resize(x.rows * x.cols);
  device->CopyToHost(host_.data(), flat.data, host_.size() * sizeof(float), model_.stream());
  ALUDEL_RETURN_IF_ERROR(device->Synchronize(model_.stream()));
  const int64_t width = half_ == CaptureHalf::kWhole ? x.cols : 2 * x.cols;
  const int64_t offset = half_ == CaptureHalf::kRight ? x.cols : 0;
  rows->resize(std::max<size_t>(rows->size(), (token_begin + x.rows) * width));
  for (int64_t t = 0; t < x.rows; ++t) {
    std::copy_n(host_.data() + t * x.cols, x.cols, rows->data() + (token_begin + t) * width + offset);
  }
  return absl::OkStatus();
}

}  // namespace aludel
