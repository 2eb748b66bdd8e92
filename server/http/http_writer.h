#pragma once

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/http/http_socket.h"
#include "server/http/loop_timer.h"

namespace aludel {

// What one connection sends: bytes queue up from any thread, and the loop's thread writes them as the socket takes
// them. A reader that is slower than what is written for it is cut off, by its queue and by time. Lives on the loop's
// thread, but for Append and Abort.
class HttpWriter {
 public:
  // Called on the loop's thread.
  class Owner {
   public:
    virtual ~Owner() = default;
    // The last bytes of an answer are in the socket.
    virtual void OnAnswerWritten() = 0;
    // Nothing more can be written.
    virtual void OnWriteFailed() = 0;
  };

  // All must outlive this.
  HttpWriter(boost::asio::io_context* loop, HttpSocket* socket, Owner* owner, absl::Duration timeout,
             size_t max_queued_bytes);

  // Before the first Append. This and `owner` live as long as `alive` does.
  void Start(std::weak_ptr<void> alive) { alive_ = std::move(alive); }
  // `end`: the answer is complete with these bytes. False if the connection is closed, or fails because `bounded`
  // bytes, beside the largest of the writes that wait, would exceed the queue. `flushed`: once they are in the socket.
  bool Append(absl::string_view bytes, std::function<void()> flushed, bool end, bool bounded);
  // Fails soon.
  void Abort();
  // Nothing is written from now on.
  void Close();
  // Gives memory back while there is nothing to write.
  void Shrink();

 private:
  using Io = HttpSocket::Io;

  void Flush();
  void PostFlush();
  void WriteSome();
  void ArmTimer();
  void OnWritten();
  bool closed();

  boost::asio::io_context* const loop_;
  HttpSocket* const socket_;
  Owner* const owner_;
  const absl::Duration timeout_;
  const size_t max_queued_bytes_;
  std::weak_ptr<void> alive_;
  LoopTimer timer_;
  bool timer_armed_ = false;
  bool writing_ = false;
  std::string in_flight_;
  size_t in_flight_written_ = 0;
  std::vector<std::function<void()>> in_flight_flushed_;
  bool in_flight_end_ = false;

  absl::Mutex mutex_;
  std::string queued_ ABSL_GUARDED_BY(mutex_);
  size_t queued_largest_ ABSL_GUARDED_BY(mutex_) = 0;  // of the writes in it
  std::vector<std::function<void()>> queued_flushed_ ABSL_GUARDED_BY(mutex_);
  bool queued_end_ ABSL_GUARDED_BY(mutex_) = false;
  bool flush_posted_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace aludel
