#include "tests/testing/slow_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace aludel {

LoopbackListener::LoopbackListener() : file_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = {.sin_family = AF_INET};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  EXPECT_EQ(bind(file_, reinterpret_cast<const sockaddr*>(&address), bytes), 0);
  EXPECT_EQ(listen(file_, 64), 0);
  EXPECT_EQ(getsockname(file_, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
}

LoopbackListener::~LoopbackListener() { close(file_); }

int LoopbackListener::Accept() const {
  pollfd wait = {.fd = file_, .events = POLLIN};
  return poll(&wait, 1, 20) > 0 ? accept(file_, nullptr, nullptr) : -1;
}

SlowProxy::~SlowProxy() {
  stop_ = true;
  thread_.join();
  for (std::thread& connection : connections_) connection.join();
}

void SlowProxy::Run() {
  while (!stop_) {
    if (const int client = listener_.Accept(); client >= 0) {
      connections_.emplace_back([this, client] { Pass(client); });
    }
  }
}

void SlowProxy::Pass(int client) {
  const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(to_port_))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  bool open = connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  bool asked = false;  // no answer has begun since
  bool holds = false;
  while (open && !stop_ && !(holds && cuts_)) {
    if (holds && held_below_ == 0) {
      holds = false;
      --held_;
    }
    pollfd waits[] = {{.fd = client, .events = POLLIN}, {.fd = holds ? -1 : server, .events = POLLIN}};
    if (poll(waits, 2, holds ? 1 : 20) <= 0) continue;
    if (waits[0].revents != 0) {
      open = Copy(client, server, 1 << 16);
      asked = true;
    }
    if (!open || waits[1].revents == 0) continue;
    if (std::exchange(asked, false) && IsHeld(server)) {
      holds = true;
      ++held_;
      continue;
    }
    const int drip_ms = drip_ms_;
    open = Copy(server, client, drip_ms > 0 ? 1 : 1 << 16);
    if (drip_ms > 0) absl::SleepFor(absl::Milliseconds(drip_ms));
  }
  if (holds) --held_;
  close(client);
  close(server);
}

bool SlowProxy::IsHeld(int server) const {
  constexpr size_t kSmallest = 1024;
  char begin[32] = {};
  size_t bytes = 0;
  if (recv(server, begin, sizeof(begin) - 1, MSG_PEEK) <= 1 || begin[0] != '$') return false;
  return absl::SimpleAtoi(absl::string_view(begin + 1, std::strcspn(begin + 1, "\r")), &bytes) &&
         bytes >= kSmallest && bytes < held_below_;
}

bool SlowProxy::Copy(int from, int to, size_t most) {
  std::vector<char> bytes(most);
  const ssize_t got = recv(from, bytes.data(), bytes.size(), 0);
  return got > 0 && send(to, bytes.data(), static_cast<size_t>(got), MSG_NOSIGNAL) == got;
}

}  // namespace aludel
