#include "server/decode/answer_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/deadline.h"
#include "server/rpc/rpc_status.h"

namespace aludel {
namespace {

// Time for a slow reader to take the rest after the end.
constexpr absl::Duration kReaderGrace = absl::Seconds(10);

}  // namespace

AnswerStream::AnswerStream(std::shared_ptr<Stream> stream, size_t max_backlog, Timer* timer)
    : stream_(std::move(stream)), max_backlog_(max_backlog), timer_(timer) {}

absl::Status AnswerStream::Push(v1::GenerateEvent event) {
  switch (stream_->Push(std::move(event))) {
    case Pushed::kTaken:
      return absl::OkStatus();
    case Pushed::kGone:
      return absl::CancelledError("the client has gone");
    case Pushed::kFull:
      break;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("the reader is more than ", max_backlog_, " tokens behind"));
}

void AnswerStream::End(const absl::Status& status) {
  stream_->End(ToGrpc(status));
  // A backlog that is not read must not keep the call open for ever.
  timer_->At(MonotonicNow() + kReaderGrace, [weak = std::weak_ptr<Stream>(stream_)] {
    if (const auto stream = weak.lock()) stream->Abort();
  });
}

}  // namespace aludel
