#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/codec/codec.h"

namespace aludel {

// Another codec with recomputed tokens, as if its artifact asked for them.
class RecomputedTokensCodec : public KvCodec {
 public:
  RecomputedTokensCodec(std::unique_ptr<KvCodec> codec, int64_t head, int64_t tail)
      : codec_(std::move(codec)), head_(head), tail_(tail) {}

  const std::string& name() const override { return codec_->name(); }
  const std::string& artifact_hash() const override { return codec_->artifact_hash(); }
  FrameKind kind() const override { return codec_->kind(); }
  const std::vector<bool>& shipped_layers() const override { return codec_->shipped_layers(); }
  int recomputed_layers() const override { return codec_->recomputed_layers(); }
  int64_t recomputed_head_tokens() const override { return head_; }
  int64_t recomputed_tail_tokens() const override { return tail_; }
  double flops_per_token() const override { return codec_->flops_per_token(); }
  size_t MaxFrameBytes(int64_t tokens) const override { return codec_->MaxFrameBytes(tokens); }
  absl::StatusOr<std::unique_ptr<KvEncoder>> NewEncoder() const override { return codec_->NewEncoder(); }
  absl::StatusOr<std::unique_ptr<KvDecoder>> NewDecoder() const override { return codec_->NewDecoder(); }

 private:
  const std::unique_ptr<KvCodec> codec_;
  const int64_t head_;
  const int64_t tail_;
};

}  // namespace aludel
