#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace aludel {

// What the poller calls when a descriptor has something to say.
class Polled {
 public:
  virtual ~Polled() = default;
  virtual void OnReady() = 0;
};

// Waits for many descriptors at once (epoll, level-triggered). A descriptor must be forgotten before it is
// closed: a process that is being forked may hold it open a little longer, and with it what epoll knows of
// it. Belongs to the progress thread.
class Poller {
 public:
  static absl::StatusOr<std::unique_ptr<Poller>> Open();
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  // Tells `polled` when `descriptor` can be read, has failed or, where `writable`, can be written. Called
  // again it changes that.
  void Watch(int descriptor, Polled* polled, bool writable);
  void Forget(int descriptor);
  // Calls what is ready, or waits until something is or `until` has come. No Polled that is watched may
  // die within.
  void Wait(absl::Time until);

 private:
  explicit Poller(int epoll) : epoll_(epoll) {}
  const int epoll_;
};

}  // namespace aludel
