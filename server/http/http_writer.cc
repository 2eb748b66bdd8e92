#include "server/http/http_writer.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

namespace aludel {

HttpWriter::HttpWriter(boost::asio::io_context* loop, HttpSocket* socket, Owner* owner,
                       absl::Duration timeout, size_t max_queued_bytes)
    : loop_(loop),
      socket_(socket),
      owner_(owner),
      timeout_(timeout),
      max_queued_bytes_(max_queued_bytes),
      timer_(*loop) {}

bool HttpWriter::Append(absl::string_view bytes, std::function<void()> flushed, bool end, bool bounded) {
  bool overflow = false;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return false;
    // One write, however large, says nothing of how fast its reader is.
    const size_t largest = std::max(queued_largest_, bytes.size());
    overflow = bounded && queued_.size() + bytes.size() - largest > max_queued_bytes_;
    if (!overflow) {
      queued_largest_ = largest;
      queued_.append(bytes.data(), bytes.size());
      if (flushed) queued_flushed_.push_back(std::move(flushed));
      queued_end_ = queued_end_ || end;
      if (std::exchange(flush_posted_, true)) return true;
    }
  }
  if (overflow) {
    Abort();
    return false;
  }
  PostFlush();
  return true;
}

void HttpWriter::Abort() {
  boost::asio::post(*loop_, [this, weak = alive_] {
    if (const auto alive = weak.lock()) owner_->OnWriteFailed();
  });
}

void HttpWriter::Close() {
  timer_.Stop();
  absl::MutexLock lock(&mutex_);
  closed_ = true;
  queued_.clear();
  queued_flushed_.clear();
}

void HttpWriter::Shrink() {
  in_flight_.shrink_to_fit();
  absl::MutexLock lock(&mutex_);
  queued_.shrink_to_fit();
}

bool HttpWriter::closed() {
  absl::MutexLock lock(&mutex_);
  return closed_;
}

void HttpWriter::PostFlush() {
  boost::asio::post(*loop_, [this, weak = alive_] {
    if (const auto alive = weak.lock()) Flush();
  });
}

void HttpWriter::Flush() {
  {
    absl::MutexLock lock(&mutex_);
    flush_posted_ = false;
    if (closed_ || writing_) return;
    in_flight_.swap(queued_);
    in_flight_flushed_.swap(queued_flushed_);
    in_flight_end_ = std::exchange(queued_end_, false);
    queued_largest_ = 0;
  }
  if (in_flight_.empty()) {
    if (in_flight_end_) owner_->OnAnswerWritten();
    return;
  }
  writing_ = true;
  in_flight_written_ = 0;
  timer_armed_ = false;
  WriteSome();
}

void HttpWriter::WriteSome() {
  while (in_flight_written_ < in_flight_.size()) {
    size_t written = 0;
    const Io io = socket_->Write(in_flight_.data() + in_flight_written_,
                                 in_flight_.size() - in_flight_written_, &written);
    if (io == Io::kClosed) return owner_->OnWriteFailed();
    if (io != Io::kDone) {
      ArmTimer();
      socket_->Wait(io, [this, weak = alive_](const boost::system::error_code& ec) {
        const auto alive = weak.lock();
        if (alive == nullptr || closed()) return;
        if (ec) return owner_->OnWriteFailed();
        WriteSome();
      });
      return;
    }
    in_flight_written_ += written;
  }
  OnWritten();
}

// One for everything in flight: a reader that takes a byte now and then gains no time.
void HttpWriter::ArmTimer() {
  if (std::exchange(timer_armed_, true)) return;
  timer_.Set(timeout_, alive_, [this] { owner_->OnWriteFailed(); });
}

void HttpWriter::OnWritten() {
  writing_ = false;
  if (timer_armed_) timer_.Stop();
  in_flight_.clear();
  for (auto& flushed : std::exchange(in_flight_flushed_, {})) flushed();
  if (std::exchange(in_flight_end_, false)) return owner_->OnAnswerWritten();
  {
    absl::MutexLock lock(&mutex_);
    if ((queued_.empty() && !queued_end_) || std::exchange(flush_posted_, true)) return;
  }
  // By the loop, not by recursion: a writer may be as fast as the socket.
  PostFlush();
}

}  // namespace aludel
