#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace aludel {

// One HTTP path of the gateway.
struct Route {
  absl::string_view path;    // a trailing "*" stands for the rest
  absl::string_view method;  // where it is GET, HEAD is served too
  bool open = false;         // needs no key
  bool quiet = false;        // polled every few seconds by machines: no log line
  bool at_once = false;      // takes microseconds: answered whatever waits for a handler thread
  bool metered = false;      // costs enough to count against its client's limits
  bool completion = false;   // work for a decode server
  bool deletes = false;      // takes DELETE too
  bool anthropic = false;    // errors in the shape of Anthropic's API, not of OpenAI's
  bool admin = false;        // the operator's: not there where admin_listen has it
  bool manages = false;      // for keys with admin=1, and slow: waits for other servers
  bool bare = false;         // a POST without a body

  bool Takes(absl::string_view asked) const;
  bool TakesBody() const { return method == "POST" && !bare; }
  std::string Allow() const;  // every method it takes, as the header has them
};

// Without doubled slashes and without one at the end, which clients add where they join a base URL and a path.
std::string CanonicalPath(absl::string_view path);
absl::Span<const Route> Routes();
// Of a path of OpenAI's that is no route: why; "" for one that means nothing here.
absl::string_view WhyNotServed(absl::string_view path);
// The route of a path as it was asked for; null: none of ours.
const Route* FindRoute(absl::string_view asked);

}  // namespace aludel
