#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/http/http_body_budget.h"
#include "server/http/http_server.h"
#include "server/http/http_socket.h"

namespace aludel {

class HttpConnection;

// One I/O thread and what only it touches.
struct HttpLoop {
  boost::asio::io_context context{1};
  // Owns them, from Start() to Close(). Everything else that knows a connection holds it weakly, or for
  // one call.
  std::unordered_set<std::shared_ptr<HttpConnection>> connections;
  std::vector<char> scratch = std::vector<char>(64 << 10);  // every read passes through here
  bool draining = false;
  std::thread thread;
};

// What connections share; outlives all of them.
struct HttpServerState {
  HttpServerState(HttpServerOptions options, HttpServer::Handler handler)
      : options(std::move(options)),
        handler(std::move(handler)),
        body_budget(this->options.max_total_body_bytes) {}

  // By options.refuse, or as plain text.
  HttpResponse Refusal(const HttpRequest& request, const HttpError& error) const;

  const HttpServerOptions options;
  const HttpServer::Handler handler;
  HttpBodyBudget body_budget;
  std::vector<std::unique_ptr<HttpLoop>> loops;
  std::unique_ptr<boost::asio::thread_pool> handler_pool;
  std::atomic<int> open_connections{0};
  std::atomic<int> queued_requests{0};
};

// One client connection: reads requests one after the other, hands each to a handler thread, and writes what
// its exchange appends. Reading goes on during an exchange, because that is how a disconnect is noticed;
// bytes of pipelined requests wait, up to a bound, beyond which the client waits. A client that has ended its
// side still gets the answers to what it sent, except where a handler asked to be told (OnDisconnect). Lives
// on one loop's thread, except Append() and Abort(), and is owned by that loop's set.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(HttpSocket socket, std::shared_ptr<HttpServerState> state, HttpLoop* loop);
  ~HttpConnection();

  // Enters the loop's set.
  void Start();
  // Closes when idle, else after the running exchange.
  void Drain();
  // Leaves the loop's set.
  void Close();

  // From any thread: queues bytes of the current exchange's response. `end`: the response is complete with
  // them. False if the connection is closed, or closes because `bounded` bytes, beside the largest of what is
  // queued, would exceed the queue.
  bool Append(absl::string_view bytes, std::function<void()> flushed, bool end, bool bounded);
  // From any thread: closes without a complete response.
  void Abort();

 private:
  friend class HttpExchange;
  enum class Phase { kHandshake, kIdle, kHeader, kBody, kExchange, kLinger, kClosed };

  void Handshake();
  void Read(HttpSocket::Io wait = HttpSocket::Io::kWaitRead);
  void OnReadable();
  void OnInputEnd();
  // Bytes that may be read now.
  size_t Room() const;
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
  bool input_ended_ = false;  // the client sends no more
  bool keep_alive_ = true;
  std::string input_;  // read and not yet parsed
  size_t lingered_bytes_ = 0;
  std::optional<HttpParser> parser_;
  std::chrono::steady_clock::time_point request_began_;  // of the request that parser_ reads
  HttpBodyBudget::Share body_share_;                     // of the parser's body
  std::weak_ptr<HttpExchange> exchange_;
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

// One request and its answer: frames what HttpResponder is told and guards its order. Outlives its connection
// where that closes first.
class HttpExchange {
 public:
  HttpExchange(const std::shared_ptr<HttpConnection>& connection, const HttpRequest& request);
  ~HttpExchange();

  void AddHeaders(std::vector<HttpHeader> headers);
  void Respond(HttpResponse response, std::function<void()> flushed);
  void StartStream(int status, absl::string_view content_type, std::vector<HttpHeader> headers);
  bool Write(absl::string_view bytes, std::function<void()> flushed);
  void Finish();
  void OnDisconnect(std::function<void()> callback);
  // By the connection, when it closes before the end.
  void Disconnected();
  // By the connection, when the client ended its side. True: the handler wanted to know, and now takes the
  // client for gone. False: the answer is still wanted.
  bool InputEnded();

 private:
  enum class Stage { kNew, kStreaming, kEnded, kGone };

  // False where the connection has closed, or closes for it.
  bool Append(absl::string_view bytes, std::function<void()> flushed, bool end, bool bounded);
  void Abort();

  const std::weak_ptr<HttpConnection> connection_;
  const std::shared_ptr<HttpServerState> state_;
  const std::string peer_;
  const int version_;
  const bool keep_alive_;
  const bool head_only_;  // HEAD: no body
  absl::Mutex mutex_;
  Stage stage_ ABSL_GUARDED_BY(mutex_) = Stage::kNew;
  bool input_ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<HttpHeader> headers_ ABSL_GUARDED_BY(mutex_);  // of whatever response comes
  std::function<void()> on_disconnect_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
