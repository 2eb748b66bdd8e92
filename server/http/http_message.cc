#include "server/http/http_message.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace aludel {
namespace {

// Formatted once a second by each thread that answers.
const std::string& DateNow() {
  thread_local int64_t second = -1;
  thread_local std::string text;
  const absl::Time now = absl::Now();
  if (const int64_t this_second = absl::ToUnixSeconds(now); this_second != second) {
    second = this_second;
    text = HttpDate(now);
  }
  return text;
}

}  // namespace

absl::string_view HttpRequest::Header(absl::string_view name) const {
  for (const HttpHeader& header : headers) {
    if (absl::EqualsIgnoreCase(header.name, name)) return header.value;
  }
  return {};
}

absl::string_view ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 502:
      return "Bad Gateway";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Unknown";
  }
}

std::string PercentDecode(absl::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && absl::ascii_isxdigit(text[i + 1]) &&
        absl::ascii_isxdigit(text[i + 2])) {
      decoded += absl::HexStringToBytes(text.substr(i + 1, 2));
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

std::optional<std::string> QueryParameter(absl::string_view query, absl::string_view name) {
  for (const absl::string_view parameter : absl::StrSplit(query, '&')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(parameter, absl::MaxSplits('=', 1));
    if (PercentDecode(parts.first) != name) continue;
    return PercentDecode(absl::StrReplaceAll(parts.second, {{"+", " "}}));  // as forms and curl send a space
  }
  return std::nullopt;
}

std::string HttpDate(absl::Time time) {
  return absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", time, absl::UTCTimeZone());
}

std::string FormatResponseHead(int version, int status, const std::vector<HttpHeader>& headers) {
  std::string head = absl::StrCat("HTTP/1.", version % 10, " ", status, " ", ReasonPhrase(status),
                                  "\r\nDate: ", DateNow(), "\r\n");
  for (const HttpHeader& header : headers) {
    absl::StrAppend(&head, header.name, ": ");
    for (char c : header.value) head += (c == '\r' || c == '\n' || c == '\0') ? ' ' : c;
    head += "\r\n";
  }
  head += "\r\n";
  return head;
}

}  // namespace aludel
