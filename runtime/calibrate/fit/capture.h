#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/kv/block_pool.h"
#include "runtime/model/transformer.h"

namespace aludel {

// What one layer computed for every token of a prompt, in host memory. Each row may be shared by two models
// side by side: [producer, consumer].
struct CapturedLayer {
  std::vector<float> k, v, h;
};

// Which part of a captured row a model fills.
enum class CaptureHalf : uint8_t { kWhole, kLeft, kRight };

// Runs one model over prompts and writes what its layers compute into rows of the caller. Owns pages for one
// prompt at a time. Not thread-safe.
class PromptCapture : public LayerObserver {
 public:
  // For prompts of at most `max_tokens` tokens; `layers` [layers] must outlive the capture.
  static absl::StatusOr<std::unique_ptr<PromptCapture>> Create(Transformer& model, CaptureHalf half,
                                                               int64_t max_tokens,
                                                               std::vector<CapturedLayer>* layers);

  absl::Status Run(absl::Span<const int32_t> prompt);
  // Several prompts that begin alike (see Passage), whose rows come out in the order of `ids`: the trunk runs once,
  // and of the prompts what follows it, `branches` saying where each begins.
  absl::Status Run(absl::Span<const int32_t> ids, absl::Span<const int64_t> branches);
  // What Create's `max_tokens` must be for that: pages are not shared within.
  static int64_t PageTokens(size_t ids, size_t branches);

  absl::Status OnLayer(const LayerSlice& slice) override;

 private:
  PromptCapture(Transformer& model, CaptureHalf half, std::vector<CapturedLayer>* layers,
                std::unique_ptr<BlockPool> pool, Buffer staging)
      : model_(model), half_(half), layers_(layers), pool_(std::move(pool)), staging_(std::move(staging)) {}

  absl::Status RunBranches(absl::Span<const int32_t> ids, absl::Span<const int64_t> branches,
                           const BlockTable& trunk, int64_t position);
  absl::Status Copy(const TensorView& x, int64_t token_begin, std::vector<float>* rows);

  Transformer& model_;
  CaptureHalf half_;
  std::vector<CapturedLayer>* layers_;
  std::unique_ptr<BlockPool> pool_;
  Buffer staging_;  // f32 [max_rows, max(hidden, kv_dim)]
  std::vector<float> host_;
};

}  // namespace aludel
