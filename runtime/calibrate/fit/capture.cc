#include "runtime/calibrate/fit/capture.h"

#include <algorithm>

#include "runtime/codec/handoff.h"
#include "runtime/status_macros.h"

namespace aludel {

absl::StatusOr<std::unique_ptr<PromptCapture>> PromptCapture::Create(Transformer& model, CaptureHalf half,
                                                                     int64_t max_tokens,
                                                                     std::vector<CapturedLayer>* layers) {
  constexpr int kBlockTokens = 16;
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
