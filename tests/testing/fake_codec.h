#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/codec/codec.h"

namespace aludel {

// A wire format without a model: two layers, eight bytes a token.
inline CodecSpec FakeSpec() {
  return {.name = "fake",
          .artifact_hash = "0102030405060708ffff",
          .kind = FrameKind::kScd,
          .shipped_layers = {true, true},
          .max_frame_bytes = [](int64_t tokens) { return static_cast<size_t>(tokens) * 8; }};
}

// Its producer's side, which makes no encoder.
class FakeEncoders : public EncoderFactory {
 public:
  FakeEncoders() : EncoderFactory(FakeSpec(), 0) {}
  absl::StatusOr<std::unique_ptr<KvEncoder>> NewEncoder() const override {
    return absl::FailedPreconditionError("a fake");
  }
};

}  // namespace aludel
