#include "transport/tcp/poller.h"

#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "transport/monotonic_clock.h"

namespace aludel {

absl::StatusOr<std::unique_ptr<Poller>> Poller::Open() {
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) return absl::ResourceExhaustedError(absl::StrCat("epoll: ", strerror(errno)));
  return std::unique_ptr<Poller>(new Poller(epoll));
}

Poller::~Poller() { close(epoll_); }

void Poller::Watch(int descriptor, Polled* polled, bool writable) {
  epoll_event event = {};
  event.events = writable ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.ptr = polled;
  if (epoll_ctl(epoll_, EPOLL_CTL_MOD, descriptor, &event) != 0 && errno == ENOENT) {
    epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event);
  }
}

void Poller::Forget(int descriptor) { epoll_ctl(epoll_, EPOLL_CTL_DEL, descriptor, nullptr); }

void Poller::Wait(absl::Time until) {
  constexpr int kMaxEvents = 64;
  // epoll counts in milliseconds; emulated links are finer.
  const absl::Duration wait = std::clamp(until - MonotonicNow(), absl::ZeroDuration(), absl::Hours(1));
  if (wait > absl::ZeroDuration()) {
    const timespec timeout = absl::ToTimespec(wait);
    pollfd descriptor = {.fd = epoll_, .events = POLLIN, .revents = 0};
    if (ppoll(&descriptor, 1, &timeout, nullptr) <= 0) return;
  }
  epoll_event events[kMaxEvents];
  const int ready = epoll_wait(epoll_, events, kMaxEvents, 0);
  for (int i = 0; i < ready; ++i) static_cast<Polled*>(events[i].data.ptr)->OnReady();
}

}  // namespace aludel
