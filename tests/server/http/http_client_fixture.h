#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/http/client/http_client.h"

namespace aludel::http_client_testing {

// One accepted connection.
class Peer {
 public:
  explicit Peer(int fd) : fd_(fd) {}
  ~Peer() { close(fd_); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // Head and body of the next request; "" at the connection's end.
  std::string ReadRequest() {
    size_t end;
    while ((end = unread_.find("\r\n\r\n")) == std::string::npos) {
      if (!Fill()) return "";
    }
    size_t length = 0;
    if (const size_t field = unread_.find("Content-Length: "); field < end) {
      const size_t at = field + 16;
      EXPECT_TRUE(absl::SimpleAtoi(unread_.substr(at, unread_.find('\r', at) - at), &length));
    }
    while (unread_.size() < end + 4 + length) {
      if (!Fill()) return "";
    }
    const std::string request = unread_.substr(0, end + 4 + length);
    unread_.erase(0, request.size());
    return request;
  }
  void Send(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }
  void WaitForEnd() {
    while (Fill()) {
    }
  }

 private:
  bool Fill() {
    char bytes[16384];
    const ssize_t size = recv(fd_, bytes, sizeof(bytes), 0);
    if (size > 0) unread_.append(bytes, static_cast<size_t>(size));
    return size > 0;
  }

  const int fd_;
  std::string unread_;
};

// Accepts one connection for each script, one after the other; a connection ends with its script.
class ScriptedServer {
 public:
  using Script = std::function<void(Peer*)>;
  explicit ScriptedServer(std::vector<Script> scripts, bool ipv6 = false)
      : fd_(socket(ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in four = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    auto* address = ipv6 ? reinterpret_cast<sockaddr*>(&six) : reinterpret_cast<sockaddr*>(&four);
    socklen_t size = ipv6 ? sizeof(six) : sizeof(four);
    listens_ = bind(fd_, address, size) == 0 && listen(fd_, 8) == 0 && getsockname(fd_, address, &size) == 0;
    if (!listens_) return;
    const uint16_t port = ntohs(ipv6 ? six.sin6_port : four.sin_port);
    url_ = ParseHttpUrl(absl::StrCat(ipv6 ? "http://[::1]:" : "http://127.0.0.1:", port, "/v1")).value();
    thread_ = std::thread([this, scripts = std::move(scripts)] {
      for (const Script& script : scripts) {
        Peer peer(accept(fd_, nullptr, nullptr));
        script(&peer);
      }
    });
  }
  // The client is gone by then, or has had all of its answers.
  ~ScriptedServer() {
    shutdown(fd_, SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    close(fd_);
  }
  bool listens() const { return listens_; }
  const HttpUrl& url() const { return url_; }

 private:
  const int fd_;
  bool listens_ = false;
  HttpUrl url_;
  std::thread thread_;
};

inline ScriptedServer::Script Answers(std::vector<std::string> answers) {
  return [answers = std::move(answers)](Peer* peer) {
    for (const std::string& answer : answers) {
      if (peer->ReadRequest().empty()) return;
      peer->Send(answer);
    }
  };
}

inline ScriptedServer::Script AnswersAndStays(const std::string& answer) {
  return [answer](Peer* peer) {
    peer->ReadRequest();
    peer->Send(answer);
    peer->WaitForEnd();
  };
}

inline constexpr char kFine[] = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine";

struct Result {
  bool ended = false;
  int status = 0;
  absl::Status error;
  std::string body;
  std::string message() const { return std::string(error.message()); }
};

inline void Post(HttpClient* client, Result* result, absl::string_view body = "{}",
                 absl::Duration timeout = absl::Seconds(10)) {
  client->Post(
      body, timeout,
      [result](absl::string_view bytes) {
        result->body.append(bytes.data(), bytes.size());
        return absl::OkStatus();
      },
      [result](int status, const absl::Status& error) {
        EXPECT_FALSE(result->ended);
        result->ended = true;
        result->status = status;
        result->error = error;
      });
}

inline Result Ask(HttpClient* client, absl::string_view body = "{}",
                  absl::Duration timeout = absl::Seconds(10)) {
  Result result;
  Post(client, &result, body, timeout);
  while (!result.ended) client->RunFor(absl::Seconds(1));
  return result;
}

inline Result AskOnce(const HttpUrl& url, absl::Duration timeout = absl::Seconds(10)) {
  HttpClient client({.url = url});
  return Ask(&client, "{}", timeout);
}

// What becomes of one answer, after which the server closes.
inline Result AnsweredWith(const std::string& answer) {
  ScriptedServer server({Answers({answer})});
  return AskOnce(server.url());
}

}  // namespace aludel::http_client_testing
