#pragma once

#include <memory>

#include "absl/status/status.h"
#include "aludel/v1/handoff.pb.h"
#include "server/process/timer.h"
#include "server/rpc/event_stream.h"

namespace aludel {

// What the client of one Decode.Generate reads, within the bound that a reader may be behind. Thread-safe.
class AnswerStream {
 public:
  using Stream = EventStream<v1::GenerateEvent>;

  // `max_backlog` is the stream's, for errors. `timer` must outlive it.
  AnswerStream(std::shared_ptr<Stream> stream, size_t max_backlog, Timer* timer);

  // Cancelled where the client has gone, ResourceExhausted where it reads too slowly.
  absl::Status Push(v1::GenerateEvent event);
  // Ends the call when the rest was read, or not for long enough.
  void End(const absl::Status& status);

 private:
  const std::shared_ptr<Stream> stream_;
  const size_t max_backlog_;
  Timer* const timer_;
};

}  // namespace aludel
