#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "runtime/codec/codec.h"

namespace aludel {

// Another format with recomputed tokens, as if its artifact asked for them.
inline CodecSpec WithRecomputedTokens(CodecSpec spec, int64_t head, int64_t tail) {
  spec.recomputed_head_tokens = head;
  spec.recomputed_tail_tokens = tail;
  return spec;
}

class RecomputedTokensEncoders : public EncoderFactory {
 public:
  RecomputedTokensEncoders(std::unique_ptr<EncoderFactory> other, int64_t head, int64_t tail)
      : EncoderFactory(WithRecomputedTokens(other->spec(), head, tail), other->flops_per_token()),
        other_(std::move(other)) {}
  absl::StatusOr<std::unique_ptr<KvEncoder>> NewEncoder() const override { return other_->NewEncoder(); }

 private:
  const std::unique_ptr<EncoderFactory> other_;
};

class RecomputedTokensDecoders : public DecoderFactory {
 public:
  RecomputedTokensDecoders(std::unique_ptr<DecoderFactory> other, int64_t head, int64_t tail)
      : DecoderFactory(WithRecomputedTokens(other->spec(), head, tail), other->flops_per_token()),
        other_(std::move(other)) {}
  absl::StatusOr<std::unique_ptr<KvDecoder>> NewDecoder() const override { return other_->NewDecoder(); }

 private:
  const std::unique_ptr<DecoderFactory> other_;
};

}  // namespace aludel
