#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/codec/codec.h"
#include "runtime/model/transformer.h"

namespace aludel {

// An encoder's frames on their way from the device to the sink, beside the forward pass: a frame is copied on
// the model's copy stream while the model computes on, and shipped when the copy has ended, by the next
// frame's at the latest. Of one handoff; engine thread only.
class FrameOutbox {
 public:
  // Looks at a frame's bytes before they are shipped.
  using Check = std::function<absl::Status(absl::Span<const uint8_t> bytes)>;
  // What makes a payload of a frame's bytes, at most `max_bytes`; returns how many.
  struct Coding {
    size_t max_bytes = 0;
    std::function<size_t(absl::Span<const uint8_t> bytes, absl::Span<uint8_t> payload)> code;
  };

  // `max_bytes`: of any frame.
  static absl::StatusOr<std::unique_ptr<FrameOutbox>> Create(const Transformer& model, size_t max_bytes);
  // Waits for the copy under way. Frames that were not shipped by then never are.
  ~FrameOutbox();
  FrameOutbox(const FrameOutbox&) = delete;
  FrameOutbox& operator=(const FrameOutbox&) = delete;

  // Memory of the device for the next frame. Ships the one before, waiting for its copy if need be.
  absl::StatusOr<uint8_t*> Next(FrameSink& sink);
  // The frame is the first `bytes` of what Next gave, as the model's stream leaves them. `last` of a forward
  // pass: waits for it, since no later call would.
  absl::Status Add(const FrameCoverage& coverage, size_t bytes, bool last, FrameSink& sink,
                   Check check = nullptr);
  // The same, its payload to be coded on the host.
  absl::Status Add(const FrameCoverage& coverage, size_t bytes, Coding coding, bool last, FrameSink& sink);
  // Ships what can be without waiting.
  absl::Status Poll(FrameSink& sink);

 private:
  struct Leaving {
    FrameCoverage coverage;
    absl::Span<uint8_t> bytes;  // on the host: the sink's memory, or staged_ where they are coded
    Check check;                // or null
    std::optional<Coding> coding;
  };

  FrameOutbox(const Transformer& model, Buffer wire) : model_(model), wire_(std::move(wire)) {}
  absl::Status Send(Leaving leaving, bool last, FrameSink& sink);
  absl::Status Ship(FrameSink& sink);

  const Transformer& model_;
  Buffer wire_;
  std::vector<uint8_t> staged_;
  std::optional<Leaving> leaving_;
};

}  // namespace aludel
