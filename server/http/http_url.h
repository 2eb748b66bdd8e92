#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aludel {

// Where a request goes: http://HOST[:PORT][/PATH][?QUERY], or the same of https.
struct HttpUrl {
  bool tls = false;
  std::string host;          // a name or an address; IPv6 without its brackets
  uint16_t port = 80;        // https: 443
  std::string target = "/";  // path and query, as they stand

  // HOST:PORT, without the port where it is the scheme's own: the Host header's value.
  std::string Authority() const;
};

// Strict, so that a mistake is found before anything is sent: no user names, fragments, zones or bytes that a
// request line cannot carry. Fails with InvalidArgument, which quotes the text and says what is wrong
// with it.
absl::StatusOr<HttpUrl> ParseHttpUrl(absl::string_view text);

}  // namespace aludel
