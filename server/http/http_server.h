#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/http/http_message.h"
#include "server/http/http_parser.h"

namespace aludel {

class HttpExchange;
class TlsContext;

// The gateway sets addresses, threads, limits and timeouts from GatewayConfig (config.proto); the defaults
// here are those of a server that is opened without one, as in tests.
struct HttpServerOptions {
  std::string address = "127.0.0.1";
  uint16_t port = 0;  // 0: any free port, see HttpServer::port()
  int io_threads = 1;
  // Handlers run on these, so that one that tokenizes for milliseconds delays no stream.
  int handler_threads = 2;
  int max_connections = 20000;
  int max_queued_requests = 4096;  // waiting for a handler thread; beyond: 503
  HttpLimits limits;
  // Bodies in memory, from their first byte until their HttpRequest dies, over all connections; beyond: 503.
  size_t max_total_body_bytes = 256 << 20;
  const TlsContext* tls = nullptr;                    // null: plain HTTP; must outlive the server
  absl::Duration header_timeout = absl::Seconds(10);  // first byte to end of header
  absl::Duration body_timeout = absl::Seconds(30);
  absl::Duration idle_timeout = absl::Seconds(75);   // kept-alive connection without a request
  absl::Duration write_timeout = absl::Seconds(30);  // for a full write queue to reach the socket
  // A reader that is slower than its stream is cut off when more bytes than this wait for it, beside the largest one of
  // the writes that wait: one write is taken whole, whatever its size.
  size_t max_queued_bytes = 1 << 20;
  // Called once a header has been read whose body has not: an answer ends the request there, and its
  // connection. null: every body is read. On an I/O thread: must not block.
  std::function<std::optional<HttpResponse>(const HttpRequest&)> check_head;
  // Requests whose handler runs on the I/O thread itself, in front of all that wait for a handler thread: it
  // must not block, because all streams wait while it runs. null: none.
  std::function<bool(const HttpRequest&)> at_once;
  // The answer to what never reaches the handler, or is dropped by it: malformed, too large, too slow, too
  // many requests or connections. The request holds its peer and what of its head is known. null: the message
  // as plain text. From any thread; must not block.
  std::function<HttpResponse(const HttpRequest&, const HttpError&)> refuse;
};

// Options that listen on `listen`, which is address:port, [address]:port or localhost:port; the rest as above.
// InvalidArgument says what was found.
absl::StatusOr<HttpServerOptions> ListenOn(absl::string_view listen);

// Answers one request, from any thread; copies share the exchange. Either Respond() once, or StartStream(),
// any number of Write(), Finish(). When the last copy dies without having ended the exchange, the client gets
// a 500, or a broken stream: a request never ends in silence.
class HttpResponder {
 public:
  explicit HttpResponder(std::shared_ptr<HttpExchange> exchange);

  // `flushed` runs on an I/O thread once the bytes are in the socket; never if the client is gone first.
  void Respond(HttpResponse response, std::function<void()> flushed = nullptr);

  // Headers of every response to this request, whatever it turns out to be; a whole one's own of the same
  // name stand in their place. Before the response.
  void AddHeaders(std::vector<HttpHeader> headers);

  void StartStream(int status, absl::string_view content_type, std::vector<HttpHeader> headers);
  // False when the client is gone (or was cut off for reading too slowly): stop producing.
  bool Write(absl::string_view bytes, std::function<void()> flushed = nullptr);
  void Finish();

  // `callback` runs once if the client goes away before the exchange ends: at once if it is gone already,
  // else on an I/O thread. It must not block. A client that half-closes its side counts as gone here, as it
  // looks the same; a handler that does not ask answers it.
  void OnDisconnect(std::function<void()> callback);

 private:
  std::shared_ptr<HttpExchange> exchange_;
};

// HTTP/1.1 with keep-alive, pipelining (answered in order, one at a time; a client that is too far ahead is
// no longer read from) and streamed responses, on a fixed number of threads. Knows nothing of what it serves.
// Thread-safe. The handler must outlive the server.
class HttpServer {
 public:
  using Handler = std::function<void(HttpRequest, HttpResponder)>;

  // Listens from then on. Fails with the address and the reason, e.g. a port in use.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options, Handler handler);
  // Shutdown without grace. Ends the process if there is no memory to do so.
  ~HttpServer();  // NOLINT(bugprone-exception-escape)

  uint16_t port() const;
  int open_connections() const;
  // For how long an I/O thread has not come round to what was posted to it; zero where all have. Call it regularly, from
  // one thread, until Shutdown.
  absl::Duration Silence();

  // Stops accepting, closes idle connections, lets running exchanges end within `grace`, then closes the
  // rest. Returns when every connection is closed. Idempotent.
  void Shutdown(absl::Duration grace);

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace aludel
