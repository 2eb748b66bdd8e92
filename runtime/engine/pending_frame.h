#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/frame.h"
#include "runtime/engine/engine.h"

namespace aludel {

// A frame that has arrived for a sequence; `release` gives its bytes back, on the engine's thread.
struct PendingFrame {
  SequenceId id = 0;
  FrameHeader header;
  std::vector<uint8_t> header_bytes;
  absl::Span<const uint8_t> payload;
  std::function<void()> release;
  // FrameOpener's: what its payload is, of a frame that has passed VerifyFrame; or what was wrong with it.
  std::optional<absl::StatusOr<std::unique_ptr<OpenedPayload>>> opened = std::nullopt;
  std::shared_ptr<const void> codec_owner = nullptr;  // what opens it lives in
};

}  // namespace aludel
