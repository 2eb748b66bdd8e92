#pragma once

#include <cstddef>
#include <memory>

#include "absl/strings/string_view.h"
#include "server/gateway/http_message.h"

namespace aludel {

struct HttpLimits {
  size_t max_header_bytes = 16 << 10;
  size_t max_body_bytes = 8 << 20;
};

// Parses one HTTP/1.x request as its bytes arrive, with Content-Length or chunked body; no I/O. The grammar
// is Boost.Beast's, which costs half a minute to compile and is therefore seen by this class's source file
// alone. One per request; not thread-safe.
class HttpParser {
 public:
  enum class State {
    kNeedMore,    // feed again, with the unconsumed bytes in front of new ones
    kHeaderDone,  // reported once, when the header is complete and a body follows
    kDone,        // Release() has the request; further bytes belong to the next one
    kError,       // error() has the answer; the connection cannot go on
  };

  explicit HttpParser(const HttpLimits& limits);
  ~HttpParser();

  // Consumes a prefix of `bytes` and says how long it was.
  State Feed(absl::string_view bytes, size_t* consumed);

  // After kHeaderDone: the client waits for "100 Continue" before it sends the body.
  bool ExpectsContinue() const;
  // Before Release(): what is known of the request's line and headers, all of it after kHeaderDone.
  HttpRequest Head() const;
  const HttpError& error() const { return error_; }
  // After kDone, once.
  HttpRequest Release();

 private:
  struct Impl;
  State Fail(int status, absl::string_view message);
  State CheckHeader();

  const HttpLimits limits_;
  std::unique_ptr<Impl> impl_;
  bool header_checked_ = false;
  HttpError error_;
};

}  // namespace aludel
