#pragma once

#include <functional>
#include <memory>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/http/http_exchange.h"
#include "server/http/http_reader.h"
#include "server/http/http_request_reader.h"
#include "server/http/http_server_state.h"
#include "server/http/http_socket.h"
#include "server/http/http_writer.h"
#include "server/http/loop_timer.h"

namespace aludel {

// One client connection: takes requests one after the other, hands each to a handler thread, and writes what
// its exchange appends. Reading goes on during an exchange, because that is how a disconnect is noticed;
// bytes of pipelined requests wait, up to a bound, beyond which the client waits. A client that has ended its
// side still gets the answers to what it sent, except where a handler asked to be told (OnDisconnect). Lives
// on one loop's thread, except Append() and Abort(), and is owned by that loop's set.
class HttpConnection : public HttpReader::Owner,
                       public HttpWriter::Owner,
                       public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(HttpSocket socket, std::shared_ptr<HttpServerState> state, HttpLoop* loop);
  ~HttpConnection() override;

  // Enters the loop's set.
  void Start();
  // Closes when idle, else after the running exchange.
  void Drain();
  // Leaves the loop's set.
  void Close();

  // From any thread: queues bytes of the current exchange's response; see HttpWriter.
  bool Append(absl::string_view bytes, std::function<void()> flushed, bool end, bool bounded) {
    return writer_.Append(bytes, std::move(flushed), end, bounded);
  }
  // From any thread: closes without a complete response.
  void Abort() { writer_.Abort(); }

 private:
  enum class Phase { kHandshake, kIdle, kHeader, kBody, kExchange, kLinger, kClosed };

  void OnOpened() override;
  size_t Room() const override;
  void OnBytes(absl::string_view bytes) override;
  void OnInputEnd() override;
  void OnReadFailed() override { Close(); }
  void OnAnswerWritten() override;
  void OnWriteFailed() override { Close(); }

  void Parse();
  // False where the request ends with its head.
  bool TakeHead();
  void Dispatch();
  void Refuse(const HttpError& error);
  // Answers a request that was not read to its end: where the next one begins is not known.
  void RespondAndClose(const HttpRequest& request, HttpResponse response);
  void Linger();
  void ArmReadTimer(absl::Duration timeout);
  void OnReadTimeout();

  const std::shared_ptr<HttpServerState> state_;  // first: sockets and timers end before their loop
  HttpLoop* const loop_;
  HttpSocket socket_;
  HttpReader reader_;
  HttpWriter writer_;
  HttpRequestReader requests_;
  LoopTimer read_timer_;
  Phase phase_ = Phase::kHandshake;
  bool keep_alive_ = true;
  size_t lingered_bytes_ = 0;
  std::weak_ptr<HttpExchange> exchange_;
};

}  // namespace aludel
