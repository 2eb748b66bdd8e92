#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/system/error_code.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/http/client/http_client.h"
#include "server/http/http_socket.h"

// The inside of HttpClient, for its own source files.
namespace aludel {

// One request, from Post() to its end.
struct HttpClient::Exchange {
  std::string bytes;  // to send
  OnBody on_body;
  OnEnd on_end;
  boost::asio::steady_timer deadline;
  Connection* connection = nullptr;   // null: it waits for one
  bool wants_new_connection = false;  // a kept one broke under it
};

// Requests that wait, connections that serve them, and the addresses that both go to.
class HttpClient::Impl {
 public:
  explicit Impl(HttpClientOptions options);
  ~Impl();

  void Post(absl::string_view body, absl::Duration timeout, OnBody on_body, OnEnd on_end);
  void Get(absl::Duration timeout, OnBody on_body, OnEnd on_end);
  void RunFor(absl::Duration duration);
  void EndAll(const absl::Status& error);

 private:
  friend class HttpClient::Connection;

  // getaddrinfo() cannot be stopped: it has a thread of its own, which is left behind when the caller
  // gives up.
  struct LookUp {
    absl::Mutex mutex;
    Impl* client ABSL_GUARDED_BY(mutex);  // null: the caller has given up
  };

  void Start(std::string bytes, absl::Duration timeout, OnBody on_body, OnEnd on_end);
  void Dispatch();
  void StartLookUp();
  void OnLookedUp(const std::string& error, std::vector<boost::asio::ip::tcp::endpoint> addresses);
  void OnTimeout(Exchange* exchange, absl::Duration timeout);
  void End(std::shared_ptr<Exchange> exchange, int status, const absl::Status& error);

  boost::asio::io_context context_{1};  // first: sockets and timers end before it
  const HttpClientOptions options_;
  std::string head_;  // of every request, between its method and what its body adds
  std::shared_ptr<SSL_CTX> tls_;
  std::shared_ptr<LookUp> look_up_;  // under way
  std::vector<boost::asio::ip::tcp::endpoint> addresses_;
  std::chrono::steady_clock::time_point addresses_until_;
  std::unordered_set<std::shared_ptr<Connection>> connections_;
  std::vector<std::shared_ptr<Connection>> idle_;
  std::deque<std::shared_ptr<Exchange>> waiting_;
  boost::asio::steady_timer wake_{context_};
  bool due_ = false;
  int64_t ended_ = 0;
  std::vector<char> scratch_ = std::vector<char>(64 << 10);  // every read passes through here
};

// Opens itself for its first exchange, serves one at a time, and is idle in between. Kept alive by its client
// and its pending operations.
class HttpClient::Connection : public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(Impl* client);
  ~Connection();

  // When new or idle.
  void Serve(std::shared_ptr<Exchange> exchange);
  bool busy() const { return exchange_ != nullptr; }
  // What a busy one is at, as the end of a sentence.
  const char* doing() const;
  // Ends the exchange, and with it the connection.
  void Fail(const absl::Status& error);
  // Does not call back the exchange, if there is one.
  void Close();

 private:
  class Answer;

  void Connect(size_t index);
  void OnConnected(size_t index, const boost::system::error_code& ec);
  void Handshake();
  void Send();
  void Write();
  void Read(HttpSocket::Io wait = HttpSocket::Io::kWaitRead);
  void OnReadable();
  void Parse();
  void OnClosed();
  void Finish();
  void End(const absl::Status& error, bool keep);

  Impl* const client_;
  const std::vector<boost::asio::ip::tcp::endpoint> addresses_;
  std::optional<boost::asio::ip::tcp::socket> opening_;
  boost::asio::steady_timer patience_;  // with an address that does not answer
  std::optional<HttpSocket> socket_;
  std::shared_ptr<Exchange> exchange_;  // null: idle
  std::unique_ptr<Answer> answer_;      // of the exchange
  std::string unread_;                  // received and not yet parsed
  size_t written_ = 0;
  const char* doing_ = "";
  bool kept_ = false;  // it served an exchange before this one
  bool reading_ = false;
  bool closed_ = false;
};

}  // namespace aludel
