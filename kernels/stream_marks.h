#pragma once

#include <memory>

#include "absl/status/status.h"
#include "kernels/device.h"

namespace aludel {

// A Device whose streams run behind the host is one of these, too: for callers that go on while it works. What takes a Stream
// follows the stream's rule.
class StreamMarks {
 public:
  // What was on a stream at one moment. Once it has passed, what CopyToHost was to bring by then has come. For one thread at a
  // time, which need not be the stream's. Must not outlive its stream.
  class Mark {
   public:
    virtual ~Mark() = default;
    // Whether it has run. Also true when the device runs nothing any more, which LostDevice() says then.
    virtual bool Passed() = 0;
    virtual void Await() = 0;
  };

  virtual ~StreamMarks() = default;
  // Of what is on `stream` now.
  virtual std::unique_ptr<Mark> MarkOf(Stream stream) = 0;
  // What is enqueued on `later` from now on runs behind `mark`, a mark of this device.
  virtual void Follow(Stream later, const Mark& mark) = 0;
  // The first failure to enqueue on `stream` since the last call, or the last Synchronize, which will not report it again.
  // Does not wait: what fails while it runs is an error of the device, and comes from every later call.
  virtual absl::Status TakeFailure(Stream stream) = 0;
};

// Whether all that was enqueued on `stream` has been taken: StreamMarks::TakeFailure, or OK where everything runs at once.
inline absl::Status Enqueued(Device& device, Stream stream) {
  auto* const marks = dynamic_cast<StreamMarks*>(&device);
  return marks != nullptr ? marks->TakeFailure(stream) : absl::OkStatus();
}

}  // namespace aludel
