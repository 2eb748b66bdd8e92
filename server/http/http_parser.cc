#include "server/http/http_parser.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <exception>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

namespace http = boost::beast::http;
using boost::system::error_code;

constexpr char kFolded[] = "malformed HTTP request: a header line is folded";

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

// Keeps of a request what HttpRequest holds. Beast's own message class would not do: it throws for a field
// longer than 64 KiB, takes trailer fields for header fields, and reserves a declared body before it comes.
struct HttpParser::Impl : http::basic_parser</*isRequest=*/true> {
  HttpRequest request;
  bool well_formed_target = false;
  bool header_done = false;
  size_t extension_bytes = 0;
  size_t max_extension_bytes = 0;
  HttpError refused;  // where a callback ended the parse
  const char* window_end = nullptr;

 private:
  using Text = boost::beast::string_view;

  void Refuse(int status, const std::string& message, error_code& ec) {
    refused = {status, message};
    ec = http::error::bad_value;
  }

  // obs-fold: a value that goes on in the next line. Beast joins it in a buffer of its own, or skips the
  // line breaks in front of it.
  bool IsFolded(Text name, Text value) const {
    const char* const begin = name.data() + name.size();
    const std::less<const char*> before;
    if (before(value.data(), begin) || before(window_end, value.data())) return true;
    return std::find(begin, value.data(), '\r') != value.data();
  }

  void on_request_impl(http::verb, Text method, Text target, int version, error_code&) override {
    request.method = std::string(View(method));
    request.version = version;
    well_formed_target = SplitTarget(View(target), &request);
  }
  void on_response_impl(int, Text, int, error_code&) override {}
  void on_field_impl(http::field, Text name, Text value, error_code& ec) override {
    if (IsFolded(name, value)) return Refuse(400, kFolded, ec);
    if (header_done) return;  // a trailer's
    if (request.headers.size() == kMaxHeaderFields) {
      return Refuse(431, absl::StrCat("request header has more than ", kMaxHeaderFields, " fields"), ec);
    }
    request.headers.push_back({std::string(View(name)), std::string(View(value))});
  }
  void on_header_impl(error_code&) override { header_done = true; }
  void on_body_init_impl(const boost::optional<uint64_t>&, error_code&) override {}
  size_t on_body_impl(Text bytes, error_code&) override {
    request.body.append(bytes.data(), bytes.size());
    return bytes.size();
  }
  void on_chunk_header_impl(uint64_t, Text extension, error_code& ec) override {
    extension_bytes += extension.size();
    if (extension_bytes <= max_extension_bytes) return;
    Refuse(400, absl::StrCat("chunk extensions are longer than ", max_extension_bytes, " bytes"), ec);
  }
  size_t on_chunk_body_impl(uint64_t, Text bytes, error_code& ec) override { return on_body_impl(bytes, ec); }
  void on_finish_impl(error_code&) override {}
};

HttpParser::HttpParser(const HttpLimits& limits) : limits_(limits), impl_(std::make_unique<Impl>()) {
  // Beast's limit holds for what one call sees, not for the header: it would let a header that is cut just
  // behind its line breaks grow without end. Window() bounds it instead.
  impl_->header_limit(std::numeric_limits<uint32_t>::max());
  impl_->body_limit(limits.max_body_bytes);
  impl_->max_extension_bytes = limits.max_header_bytes;
}

HttpParser::~HttpParser() = default;

HttpParser::State HttpParser::Fail(int status, absl::string_view message) {
  error_ = HttpError{status, std::string(message)};
  return State::kError;
}

size_t HttpParser::Window() const {
  return impl_->header_done ? limits_.max_header_bytes : limits_.max_header_bytes - header_bytes_;
}

HttpParser::State HttpParser::Feed(absl::string_view bytes, size_t* consumed) {
  *consumed = 0;
  while (!impl_->is_done()) {
    const absl::string_view window = bytes.substr(*consumed, Window());
    if (window.empty() && *consumed == bytes.size()) return State::kNeedMore;
    impl_->window_end = window.data() + window.size();
    error_code ec;
    size_t size = 0;
    try {
      size = impl_->put(boost::asio::const_buffer(window.data(), window.size()), ec);
    } catch (const std::exception& error) {
      return Fail(400, absl::StrCat("malformed HTTP request: ", error.what()));
    }
    *consumed += size;
    if (!header_checked_) header_bytes_ += size;
    if (ec == http::error::need_more) {
      if (!impl_->header_done) {
        if (bytes.size() - *consumed < Window()) return State::kNeedMore;
        return Fail(431, absl::StrCat("request header is longer than ", limits_.max_header_bytes, " bytes"));
      }
      if (size > 0) continue;  // whole chunks: the rest may fit a window that begins with it
      if (window.size() < Window()) return State::kNeedMore;
      return Fail(
          431, absl::StrCat("a chunk header or trailer is longer than ", limits_.max_header_bytes, " bytes"));
    }
    if (ec == http::error::body_limit) {
      return Fail(413, absl::StrCat("request body is longer than ", limits_.max_body_bytes, " bytes"));
    }
    // Beast's buffer for a folded value was full.
    if (ec == http::error::header_limit) return Fail(400, kFolded);
    if (ec && !impl_->refused.message.empty()) return Fail(impl_->refused.status, impl_->refused.message);
    if (ec) return Fail(400, absl::StrCat("malformed HTTP request: ", ec.message()));
    if (impl_->header_done && !header_checked_) {
      header_checked_ = true;
      if (const State state = CheckHeader(); state == State::kError) return state;
      impl_->eager(true);
      if (!impl_->is_done()) return State::kHeaderDone;
    }
  }
  return State::kDone;
}

HttpParser::State HttpParser::CheckHeader() {
  HttpRequest& request = impl_->request;
  request.keep_alive = impl_->keep_alive();
  int hosts = 0;
  for (const HttpHeader& header : request.headers) {
    if (absl::EqualsIgnoreCase(header.name, "host")) ++hosts;
    // A coding that we do not undo would leave the body's end unknown, and with it the next request's start.
    if (absl::EqualsIgnoreCase(header.name, "transfer-encoding") &&
        !absl::EqualsIgnoreCase(header.value, "chunked")) {
      return Fail(501, "only the transfer encoding \"chunked\" is supported");
    }
  }
  if (request.version == 11 && hosts != 1) {
    return Fail(400, "an HTTP/1.1 request needs exactly one Host header");
  }
  if (!impl_->well_formed_target) return Fail(400, "malformed request target");
  return State::kNeedMore;
}

// HTTP/1.0 knows no interim answers.
bool HttpParser::ExpectsContinue() const {
  return impl_->request.version == 11 &&
         absl::EqualsIgnoreCase(impl_->request.Header("expect"), "100-continue");
}

HttpRequest HttpParser::Head() const {
  const HttpRequest& request = impl_->request;
  return {.method = request.method,
          .path = request.path,
          .query = request.query,
          .headers = request.headers,
          .version = request.version,
          .keep_alive = request.keep_alive};
}

size_t HttpParser::body_bytes() const { return impl_->request.body.size(); }

HttpRequest HttpParser::Release() { return std::move(impl_->request); }

}  // namespace aludel
