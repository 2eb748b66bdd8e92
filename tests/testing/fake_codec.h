#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/codec/codec.h"

namespace aludel {

// A wire format without a model: two layers, eight bytes a token. Encoders and decoders it has none.
class FakeCodec : public KvCodec {
 public:
  const std::string& name() const override { return name_; }
  const std::string& artifact_hash() const override { return artifact_hash_; }
  FrameKind kind() const override { return FrameKind::kScd; }
  const std::vector<bool>& shipped_layers() const override { return shipped_layers_; }
  int recomputed_layers() const override { return 0; }
  int64_t recomputed_head_tokens() const override { return 0; }
  int64_t recomputed_tail_tokens() const override { return 0; }
  double flops_per_token() const override { return 0; }
  size_t MaxFrameBytes(int64_t tokens) const override { return static_cast<size_t>(tokens) * 8; }
  absl::StatusOr<std::unique_ptr<KvEncoder>> NewEncoder() const override {
    return absl::FailedPreconditionError("a fake");
  }
  absl::StatusOr<std::unique_ptr<KvDecoder>> NewDecoder() const override {
    return absl::FailedPreconditionError("a fake");
  }

 private:
  const std::string name_ = "fake";
  const std::string artifact_hash_ = "0102030405060708ffff";
  const std::vector<bool> shipped_layers_ = {true, true};
};

}  // namespace aludel
