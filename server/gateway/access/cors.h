#pragma once

#include <string>
#include <vector>

#include "server/http/http_message.h"

namespace aludel {

// Which web pages of other origins may read answers (CORS). A pure function of the request.
class Cors {
 public:
  // Origins as browsers send them, e.g. "https://chat.example.com"; "*" allows every one, none allows none.
  explicit Cors(std::vector<std::string> origins) : origins_(std::move(origins)) {}

  // What a response to `request` must carry, a preflight's answer included. Where any origin is allowed the
  // headers depend on the request's origin, and `Vary` tells caches so on every response.
  std::vector<HttpHeader> HeadersFor(const HttpRequest& request) const;
  // A browser asking ahead whether it may send what it wants to.
  static bool IsPreflight(const HttpRequest& request);

 private:
  const std::vector<std::string> origins_;
};

}  // namespace aludel
