#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/stream_marks.h"
#include "runtime/codec/codec.h"
#include "runtime/model/transformer.h"

namespace aludel {

// An encoder's frames on their way from the device to the sink, beside the forward pass: a frame is copied on
// the model's copy stream while the model computes on, and shipped when the copy has ended. The order of frames in
// the device's memory is kept by the device alone, so that the host enqueues a whole pass without waiting:
//
//   model's stream  .. encode 0 ......... encode 1 ......... encode 2 ..    an encode follows the copy before it
//   copy stream          copy 0 ->          copy 1 ->          copy 2 ->
//   host            (layers, encodes and copies enqueued; what has come is shipped on the way) the last ship 0, 1, 2
//
// Of one handoff; engine thread only.
class FrameOutbox {
 public:
  // Looks at a frame's bytes before they are shipped.
  using Check = std::function<absl::Status(absl::Span<const uint8_t> bytes)>;
  // What makes a payload of a frame's bytes, at most `max_bytes`; returns how many.
  struct Coding {
    size_t max_bytes = 0;
    std::function<size_t(absl::Span<const uint8_t> bytes, absl::Span<uint8_t> payload)> code;
  };
  // Frames under way that the host is to code: it waits for the first of so many before it copies another.
  static constexpr size_t kStaged = 2;

  // `max_bytes`: of any frame.
  static absl::StatusOr<std::unique_ptr<FrameOutbox>> Create(const Transformer& model, size_t max_bytes);
  // Waits for the copies under way. Frames that were not shipped by then never are.
  ~FrameOutbox();
  FrameOutbox(const FrameOutbox&) = delete;
  FrameOutbox& operator=(const FrameOutbox&) = delete;

  // Memory of the device for the next frame, for work on the model's stream.
  uint8_t* Next();
  // The frame is the first `bytes` of what Next gave, as the model's stream leaves them. Ships what has come; `last` of
  // a forward pass: waits for all frames and ships them, since no later call would.
  absl::Status Add(const FrameCoverage& coverage, size_t bytes, bool last, FrameSink& sink,
                   Check check = nullptr);
  // The same, its payload to be coded on the host.
  absl::Status Add(const FrameCoverage& coverage, size_t bytes, Coding coding, bool last, FrameSink& sink);
  // Ships what can be without waiting.
  absl::Status Poll(FrameSink& sink);

 private:
  struct Leaving {
    FrameCoverage coverage;
    absl::Span<uint8_t> bytes;  // on the host: the sink's memory, or of staged_ where they are coded
    Check check = nullptr;
    std::optional<Coding> coding = std::nullopt;
    std::unique_ptr<StreamMarks::Mark> copied = nullptr;  // null: everything runs at once
  };

  FrameOutbox(const Transformer& model, Buffer wire);
  absl::Status Send(Leaving leaving, bool last, FrameSink& sink);
  // Ships the oldest frame; waits for its copy.
  absl::Status ShipFirst(FrameSink& sink);

  const Transformer& model_;
  StreamMarks* const marks_;  // null: everything runs at once
  Buffer wire_;
  std::array<std::vector<uint8_t>, kStaged> staged_;  // in turn
  size_t next_staged_ = 0;
  std::deque<Leaving> leaving_;  // oldest first; bounded by the frames of a forward pass
};

}  // namespace aludel
