#include "server/http/http_url.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

constexpr uint16_t kHttpPort = 80;
constexpr uint16_t kHttpsPort = 443;
constexpr size_t kMaxNameBytes = 253;  // RFC 1035, 2.3.4, as text

bool IsIpv6(const std::string& host) {
  in6_addr address;
  return inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

bool IsName(absl::string_view host) {
  return !host.empty() && host.size() <= kMaxNameBytes &&
         std::all_of(host.begin(), host.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_';
         });
}

bool IsPort(absl::string_view text, uint16_t* port) {
  int number = 0;
  const bool digits = !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  if (!digits || !absl::SimpleAtoi(text, &number) || number < 1 || number > 65535) return false;
  *port = static_cast<uint16_t>(number);
  return true;
}

}  // namespace

std::string HttpUrl::Authority() const {
  const std::string name = host.find(':') == std::string::npos ? host : absl::StrCat("[", host, "]");
  return port == (tls ? kHttpsPort : kHttpPort) ? name : absl::StrCat(name, ":", port);
}

absl::StatusOr<HttpUrl> ParseHttpUrl(absl::string_view text) {
  const auto wrong = [text](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\": ", what));
  };
  if (!std::all_of(text.begin(), text.end(), absl::ascii_isgraph)) {
    return wrong("spaces, control and non-ASCII characters must be percent-encoded");
  }
  HttpUrl url;
  url.tls = absl::StartsWithIgnoreCase(text, "https://");
  if (!url.tls && !absl::StartsWithIgnoreCase(text, "http://")) {
    return wrong("begins with neither http:// nor https://");
  }
  url.port = url.tls ? kHttpsPort : kHttpPort;
  absl::string_view rest = text.substr(url.tls ? 8 : 7);
  if (absl::StrContains(rest, '#')) return wrong("a fragment (#) is not sent to a server");
  const size_t end = std::min(rest.find_first_of("/?"), rest.size());
  url.target = absl::StrCat(end < rest.size() && rest[end] == '/' ? "" : "/", rest.substr(end));
  rest = rest.substr(0, end);
  if (absl::StrContains(rest, '@')) return wrong("a user name (@) is not supported");
  const bool bracket = absl::StartsWith(rest, "[");
  const size_t host_end = bracket ? rest.find(']') : std::min(rest.find(':'), rest.size());
  if (host_end == absl::string_view::npos) return wrong("\"[\" without \"]\"");
  url.host = std::string(bracket ? rest.substr(1, host_end - 1) : rest.substr(0, host_end));
  rest = rest.substr(bracket ? host_end + 1 : host_end);
  if (bracket && !IsIpv6(url.host)) return wrong("no IPv6 address between \"[\" and \"]\"");
  if (!bracket && !IsName(url.host)) return wrong("its host is no name or address (IPv6 needs brackets)");
  if (!rest.empty() && (rest[0] != ':' || !IsPort(rest.substr(1), &url.port))) {
    return wrong("what follows the host is no port from 1 to 65535");
  }
  return url;
}

}  // namespace aludel
