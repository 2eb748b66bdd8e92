#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/gateway/http_server.h"
#include "server/http_socket.h"

namespace aludel {

class HttpConnection;

// One I/O thread and what only it touches.
struct HttpLoop {
  boost::asio::io_context context{1};
  std::unordered_set<HttpConnection*> connections;
  std::vector<char> scratch = std::vector<char>(64 << 10);  // every read passes through here
  bool draining = false;
  std::thread thread;
};

// What connections share; outlives all of them.
struct HttpServerState {
  // By options.refuse, or as plain text.
  HttpResponse Refusal(const HttpRequest& request, const HttpError& error) const;

  HttpServerOptions options;
  HttpServer::Handler handler;
  std::vector<std::unique_ptr<HttpLoop>> loops;
  std::unique_ptr<boost::asio::thread_pool> handler_pool;
  std::atomic<int> open_connections{0};
  std::atomic<int> queued_requests{0};
};

// One client connection: reads requests one after the other, hands each to a handler thread, and writes what
// its exchange appends. Reading goes on during an exchange, because that is how a disconnect is noticed;
// bytes of pipelined requests wait, up to a bound. Lives on one loop's thread, except Append() and Abort().
// Kept alive by its pending operations and its exchange.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(HttpSocket socket, std::shared_ptr<HttpServerState> state, HttpLoop* loop);
  ~HttpConnection();

  void Start();
  // Closes when idle, else after the running exchange.
  void Drain();
  void Close();

  // From any thread: queues bytes of the current exchange's response. `end`: the response is complete with
  // them. False if the connection is closed, or closes because `bounded` bytes would exceed the queue.
  bool Append(absl::string_view bytes, std::function<void()> flushed, bool end, bool bounded);
  // From any thread: closes without a complete response.
  void Abort();

 private:
  friend class HttpExchange;
  enum class Phase { kHandshake, kIdle, kHeader, kBody, kExchange, kLinger, kClosed };

  void Handshake();
  void Read(HttpSocket::Io wait = HttpSocket::Io::kWaitRead);
  void OnReadable();
  void Parse();
  void Dispatch();
  // The request that is being read, as far as it is known.
  HttpRequest Head() const;
  void Refuse(const HttpError& error);
  // Answers a request that was not read to its end: where the next one begins is not known.
  void RespondAndClose(const HttpRequest& request, HttpResponse response);
  void Flush();
  void WriteSome();
  void ArmWriteTimer();
  void OnWritten();
  void EndExchange();
  void Linger();
  void ArmReadTimer(absl::Duration timeout);
  void DisarmReadTimer();
  void OnReadTimeout();

  const std::shared_ptr<HttpServerState> state_;  // first: sockets and timers end before their loop
  HttpLoop* const loop_;
  HttpSocket socket_;
  boost::asio::steady_timer read_timer_;
  uint64_t read_timer_generation_ = 0;
  boost::asio::steady_timer write_timer_;
  bool write_timer_armed_ = false;
  uint64_t write_timer_generation_ = 0;
  std::string peer_;

  Phase phase_ = Phase::kHandshake;
  bool reading_ = false;
  bool keep_alive_ = true;
  std::string input_;  // read and not yet parsed
  std::optional<HttpParser> parser_;
  std::weak_ptr<HttpExchange> exchange_;
  bool writing_ = false;
  std::string in_flight_;
  size_t in_flight_written_ = 0;
  std::vector<std::function<void()>> in_flight_flushed_;
  bool in_flight_end_ = false;

  // Not absl::Mutex: ThreadSanitizer cannot look into Debian's Abseil.
  std::mutex mutex_;
  std::string queued_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> queued_flushed_ ABSL_GUARDED_BY(mutex_);
  bool queued_end_ ABSL_GUARDED_BY(mutex_) = false;
  bool flush_posted_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

// One request and its answer: frames what HttpResponder is told and guards its order.
class HttpExchange {
 public:
  HttpExchange(std::shared_ptr<HttpConnection> connection, const HttpRequest& request);
  ~HttpExchange();

  void AddHeaders(std::vector<HttpHeader> headers);
  void Respond(HttpResponse response, std::function<void()> flushed);
  void StartStream(int status, absl::string_view content_type, std::vector<HttpHeader> headers);
  bool Write(absl::string_view bytes, std::function<void()> flushed);
  void Finish();
  void OnDisconnect(std::function<void()> callback);
  // By the connection, when it closes before the end.
  void Disconnected();

 private:
  enum class Stage { kNew, kStreaming, kEnded, kGone };

  const std::shared_ptr<HttpConnection> connection_;
  const int version_;
  const bool keep_alive_;
  const bool head_only_;  // HEAD: no body
  std::mutex mutex_;
  Stage stage_ ABSL_GUARDED_BY(mutex_) = Stage::kNew;
  std::vector<HttpHeader> headers_ ABSL_GUARDED_BY(mutex_);  // of whatever response comes
  std::function<void()> on_disconnect_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
