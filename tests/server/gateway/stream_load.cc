#include "tests/server/gateway/stream_load.h"

#include <sys/epoll.h>
#include <sys/resource.h>

#include <algorithm>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/server/http/raw_client.h"

namespace aludel {
namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(int64_t nanoseconds) {
  return static_cast<double>(Clock::now().time_since_epoch().count() - nanoseconds) * 1e-6;
}

struct Client {
  std::unique_ptr<RawClient> connection;
  int64_t sent = 0;  // when the request was, on the steady clock
  std::string unread;
  int tokens = 0;
  bool done = false;

  // Takes what has come out of the socket; false when the gateway has closed it.
  bool Read(StreamFigures* figures) {
    char bytes[16384];
    const ssize_t n = recv(connection->fd(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN)) return false;
    unread.append(bytes, static_cast<size_t>(std::max<ssize_t>(n, 0)));
    size_t from = 0;
    for (size_t at; (at = unread.find('@', from)) != std::string::npos;) {
      const size_t end = unread.find(';', at);
      if (end == std::string::npos) break;
      int64_t token_sent = 0;
      if (!absl::SimpleAtoi(unread.substr(at + 1, end - at - 1), &token_sent)) return false;
      if (tokens++ == 0) {
        figures->first_ms.push_back(MillisecondsSince(sent));
      } else {
        figures->token_ms.push_back(MillisecondsSince(token_sent));
      }
      from = end + 1;
    }
    done = unread.find("[DONE]", from) != std::string::npos;
    unread.erase(0, from);
    return true;
  }
};

}  // namespace

StreamFigures RunStreams(uint16_t port, const StreamLoad& load) {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  const std::string request =
      absl::StrCat("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: ", load.body.size(),
                   "\r\n\r\n", load.body);
  StreamFigures figures;
  std::vector<Client> clients(static_cast<size_t>(load.streams));
  const int poll_fd = epoll_create1(0);
  size_t opened = 0;
  size_t ended = 0;
  bool all_run = false;
  const auto start = Clock::now();
  while (ended < clients.size() && Clock::now() < start + load.timeout) {
    if (opened < clients.size() && Clock::now() >= start + opened * load.ramp / load.streams) {
      Client& client = clients[opened];
      client.connection = std::make_unique<RawClient>(port);
      client.sent = Clock::now().time_since_epoch().count();
      client.connection->Send(request);
      epoll_event event = {.events = EPOLLIN, .data = {.u64 = opened++}};
      epoll_ctl(poll_fd, EPOLL_CTL_ADD, client.connection->fd(), &event);
    }
    epoll_event events[64];
    const int ready = epoll_wait(poll_fd, events, 64, opened < clients.size() ? 1 : 100);
    for (int i = 0; i < ready; ++i) {
      Client& client = clients[events[i].data.u64];
      const bool open = client.Read(&figures);
      if (open && !client.done) continue;
      ++ended;
      if (client.done && client.tokens == load.tokens) ++figures.complete;
      epoll_ctl(poll_fd, EPOLL_CTL_DEL, client.connection->fd(), nullptr);
    }
    if (figures.first_ms.size() == clients.size() && !std::exchange(all_run, true) && load.when_all_run) {
      load.when_all_run();
    }
  }
  close(poll_fd);
  std::sort(figures.first_ms.begin(), figures.first_ms.end());
  std::sort(figures.token_ms.begin(), figures.token_ms.end());
  return figures;
}

double Quantile(const std::vector<double>& sorted, double q) {
  return sorted.empty() ? 0 : sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1))];
}

}  // namespace aludel
