#pragma once

#include <cstddef>
#include <memory>

#include "absl/strings/string_view.h"
#include "server/http/http_message.h"

namespace aludel {

struct HttpLimits {
  size_t max_header_bytes = 16 << 10;
  size_t max_body_bytes = 8 << 20;
};

// Parses one HTTP/1.x request as its bytes arrive, with Content-Length or chunked body; no I/O. The grammar
// is Boost.Beast's, whose headers only this class's source file sees. One per request; not thread-safe.
//
// Everything that is not body has a bound, however its bytes are cut: request line and header fields
// together, each chunk header, and the trailer section are at most `max_header_bytes` long, chunk extensions
// together too; a header has at most kMaxHeaderFields fields. Trailer fields are checked and dropped: a field
// that comes behind the body must not look like one that the request was judged by (RFC 9110, 6.5.1).
class HttpParser {
 public:
  enum class State {
    kNeedMore,    // feed again, with the unconsumed bytes in front of new ones
    kHeaderDone,  // reported once, when the header is complete and a body follows
    kDone,        // Release() has the request; further bytes belong to the next one
    kError,       // error() has the answer; the connection cannot go on
  };
  static constexpr size_t kMaxHeaderFields = 128;

  explicit HttpParser(const HttpLimits& limits);
  ~HttpParser();

  // Consumes a prefix of `bytes` and says how long it was. After kNeedMore fewer than `max_header_bytes`
  // bytes are unconsumed.
  State Feed(absl::string_view bytes, size_t* consumed);

  // After kHeaderDone: the client waits for "100 Continue" before it sends the body.
  bool ExpectsContinue() const;
  // Before Release(): what is known of the request's line and headers, all of it after kHeaderDone.
  HttpRequest Head() const;
  // Of the body, so far.
  size_t body_bytes() const;
  const HttpError& error() const { return error_; }
  // After kDone, once.
  HttpRequest Release();

 private:
  struct Impl;
  State Fail(int status, absl::string_view message);
  // Bytes that one step of the grammar may look at.
  size_t Window() const;
  State CheckHeader();

  const HttpLimits limits_;
  std::unique_ptr<Impl> impl_;
  size_t header_bytes_ = 0;  // consumed so far
  bool header_checked_ = false;
  HttpError error_;
};

}  // namespace aludel
