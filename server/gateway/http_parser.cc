#include "server/gateway/http_parser.h"

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

namespace http = boost::beast::http;

absl::string_view View(boost::beast::string_view text) { return {text.data(), text.size()}; }

// Splits a request target into path and query. Accepts the absolute form ("http://host/path"), which clients
// behind a forward proxy send.
bool SplitTarget(absl::string_view target, HttpRequest* request) {
  for (absl::string_view scheme : {"http://", "https://"}) {
    if (absl::StartsWithIgnoreCase(target, scheme)) {
      const size_t path = target.find('/', scheme.size());
      target = path == absl::string_view::npos ? absl::string_view("/") : target.substr(path);
    }
  }
  if (target != "*" && (target.empty() || target[0] != '/')) return false;
  const size_t question = target.find('?');
  request->path = std::string(target.substr(0, question));
  if (question != absl::string_view::npos) request->query = std::string(target.substr(question + 1));
  return true;
}

}  // namespace

struct HttpParser::Impl {
  http::request_parser<http::string_body> parser;
};

HttpParser::HttpParser(const HttpLimits& limits) : limits_(limits), impl_(std::make_unique<Impl>()) {
  impl_->parser.header_limit(static_cast<uint32_t>(limits.max_header_bytes));
  impl_->parser.body_limit(limits.max_body_bytes);
}

HttpParser::~HttpParser() = default;

HttpParser::State HttpParser::Fail(int status, absl::string_view message) {
  error_ = HttpError{status, std::string(message)};
  return State::kError;
}

HttpParser::State HttpParser::Feed(absl::string_view bytes, size_t* consumed) {
  auto& parser = impl_->parser;
  *consumed = 0;
  while (!parser.is_done()) {
    const absl::string_view rest = bytes.substr(*consumed);
    boost::system::error_code ec;
    *consumed += parser.put(boost::asio::const_buffer(rest.data(), rest.size()), ec);
    if (ec == http::error::need_more) return State::kNeedMore;
    if (ec == http::error::header_limit) {
      return Fail(431, absl::StrCat("request header is longer than ", limits_.max_header_bytes, " bytes"));
    }
    if (ec == http::error::body_limit) {
      return Fail(413, absl::StrCat("request body is longer than ", limits_.max_body_bytes, " bytes"));
    }
    if (ec) return Fail(400, absl::StrCat("malformed HTTP request: ", ec.message()));
    if (parser.is_header_done() && !header_checked_) {
      header_checked_ = true;
      if (const State state = CheckHeader(); state == State::kError) return state;
      parser.eager(true);
      if (!parser.is_done()) return State::kHeaderDone;
    } else if (!parser.is_done() && *consumed == bytes.size()) {
      return State::kNeedMore;
    }
  }
  return State::kDone;
}

HttpParser::State HttpParser::CheckHeader() {
  const auto& message = impl_->parser.get();
  if (message.version() == 11 && message.count(http::field::host) != 1) {
    return Fail(400, "an HTTP/1.1 request needs exactly one Host header");
  }
  // A coding that we do not undo would leave the body's end unknown, and with it the next request's start.
  if (message.count(http::field::transfer_encoding) > 0 &&
      !absl::EqualsIgnoreCase(View(message[http::field::transfer_encoding]), "chunked")) {
    return Fail(501, "only the transfer encoding \"chunked\" is supported");
  }
  HttpRequest scratch;
  if (!SplitTarget(View(message.target()), &scratch)) return Fail(400, "malformed request target");
  return State::kNeedMore;
}

// HTTP/1.0 knows no interim answers.
bool HttpParser::ExpectsContinue() const {
  const auto& message = impl_->parser.get();
  return message.version() == 11 &&
         absl::EqualsIgnoreCase(View(message[http::field::expect]), "100-continue");
}

HttpRequest HttpParser::Head() const {
  const auto& message = impl_->parser.get();
  HttpRequest request;
  request.method = std::string(View(message.method_string()));
  SplitTarget(View(message.target()), &request);
  request.version = static_cast<int>(message.version());
  request.keep_alive = message.keep_alive();
  for (const auto& field : message) {
    request.headers.push_back({std::string(View(field.name_string())), std::string(View(field.value()))});
  }
  return request;
}

HttpRequest HttpParser::Release() {
  HttpRequest request = Head();
  request.body = std::move(impl_->parser.get().body());
  return request;
}

}  // namespace aludel
