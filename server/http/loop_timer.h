#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/time/time.h"

namespace aludel {

// One timeout of something that lives on a loop's thread, which may be set anew while it runs out. That thread's alone.
class LoopTimer {
 public:
  explicit LoopTimer(boost::asio::io_context& loop) : timer_(loop) {}

  // Calls `expired` after `timeout`, unless this is set anew or stopped before. Never once `owner` has died, which
  // owns this.
  template <typename F>
  void Set(absl::Duration timeout, std::weak_ptr<void> owner, F expired) {
    timer_.expires_after(absl::ToChronoNanoseconds(timeout));
    // One that fired just before it was set anew still calls back; its old generation shows it.
    timer_.async_wait([this, owner = std::move(owner), generation = ++generation_,
                       expired = std::move(expired)](const boost::system::error_code& ec) {
      const std::shared_ptr<void> alive = owner.lock();
      if (!ec && alive != nullptr && generation == generation_) expired();
    });
  }

  void Stop() {
    ++generation_;
    timer_.cancel();
  }

 private:
  boost::asio::steady_timer timer_;
  uint64_t generation_ = 0;
};

}  // namespace aludel
