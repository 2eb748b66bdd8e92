#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/http/http_url.h"

namespace aludel {

struct HttpClientOptions {
  HttpUrl url;
  // Besides Host, Content-Type and Content-Length; values hold no line breaks.
  std::vector<std::pair<std::string, std::string>> headers;
  // https verifies the server's certificate and its name against the system's trust store, or what the
  // environment variables SSL_CERT_FILE and SSL_CERT_DIR name, unless:
  bool insecure = false;
  size_t max_connections = 1;
};

// POSTs JSON to one URL over HTTP/1.1, or GETs it, on connections that are kept and used again, the last used
// first. A request waits while all of them are in use. If a kept connection breaks before any answer, the
// request is sent again, once, on a new one. Redirects are not followed and proxies not used. Belongs to one
// thread, and calls back only from within its functions; the process ignores SIGPIPE.
class HttpClient {
 public:
  // A piece of the body as it arrives, chunks undone. An error ends the request with that error.
  using OnBody = std::function<absl::Status(absl::string_view bytes)>;
  // Once, last. `status` is HTTP's, 0 where no header came. `error` is Ok where the answer came whole,
  // whatever its status, and else says what was under way and what became of it.
  using OnEnd = std::function<void(int status, const absl::Status& error)>;

  explicit HttpClient(HttpClientOptions options);
  // Requests that have not ended by then never call back.
  ~HttpClient();

  // `timeout` is for everything: waiting for a connection, opening it, sending, the whole answer.
  void Post(absl::string_view body, absl::Duration timeout, OnBody on_body, OnEnd on_end);
  void Get(absl::Duration timeout, OnBody on_body, OnEnd on_end);
  // Sends, receives and calls back until `duration` has passed or a request has ended.
  void RunFor(absl::Duration duration);
  // Ends with `error` what has not ended.
  void EndAll(const absl::Status& error);

 private:
  struct Exchange;
  class Connection;
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace aludel
