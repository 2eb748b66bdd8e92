#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/http/http_body_budget.h"

namespace aludel {

struct HttpHeader {
  std::string name;
  std::string value;
};

// A request as a handler sees it; plain values, owned by the handler.
struct HttpRequest {
  std::string method;
  std::string path;   // without the query, still percent-encoded
  std::string query;  // behind '?', still percent-encoded
  std::vector<HttpHeader> headers;
  std::string body;
  std::shared_ptr<HttpBodyHold> body_share;  // the body's part of max_total_body_bytes, as long as this lives
  int version = 11;                          // 10 or 11
  bool keep_alive = true;
  std::string peer;                                // "address:port"
  std::chrono::steady_clock::time_point began;     // when its first byte was read: deadlines count from here
  std::chrono::steady_clock::time_point received;  // when the last byte of the body was read

  // First header of that name, compared without case; empty where there is none.
  absl::string_view Header(absl::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<HttpHeader> headers;
  std::string body;
  std::string error;  // for logs: what was wrong; "" where nothing was
};

// A request that the HTTP layer itself refuses.
struct HttpError {
  int status = 400;
  std::string message;
  int retry_after_seconds = 0;  // 0: no Retry-After
};

absl::string_view ReasonPhrase(int status);

// "%41" -> "A". A '%' that no two hex digits follow stays as it is.
std::string PercentDecode(absl::string_view text);

// Value of the first parameter of that name in a query, decoded.
std::optional<std::string> QueryParameter(absl::string_view query, absl::string_view name);

// "Sun, 06 Nov 1994 08:49:37 GMT" (RFC 9110, 5.6.7).
std::string HttpDate(absl::Time time);

// Status line, Date and header lines, the empty line included. Line breaks in header values become spaces, so
// that no value can start a header of its own.
std::string FormatResponseHead(int version, int status, const std::vector<HttpHeader>& headers);

}  // namespace aludel
