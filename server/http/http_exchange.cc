#include "server/http/http_exchange.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/http/http_connection.h"

namespace aludel {

HttpExchange::HttpExchange(std::weak_ptr<HttpConnection> connection, std::shared_ptr<HttpServerState> state,
                           const HttpRequest& request)
    : connection_(std::move(connection)),
      state_(std::move(state)),
      peer_(request.peer),
      version_(request.version),
      keep_alive_(request.keep_alive),
      head_only_(request.method == "HEAD") {}

HttpExchange::~HttpExchange() {
  Stage stage;
  {
    absl::MutexLock lock(&mutex_);
    stage = stage_;
  }
  if (stage == Stage::kNew) {
    HttpRequest request;  // the handler had it
    request.peer = peer_;
    Respond(state_->Refusal(request, {500, "the request was dropped"}), nullptr);
  } else if (stage == Stage::kStreaming) {
    Abort();
  }
}

bool HttpExchange::Append(absl::string_view bytes, std::function<void()> flushed, bool end, bool bounded) {
  const std::shared_ptr<HttpConnection> connection = connection_.lock();
  return connection != nullptr && connection->Append(bytes, std::move(flushed), end, bounded);
}

void HttpExchange::Abort() {
  if (const std::shared_ptr<HttpConnection> connection = connection_.lock()) connection->Abort();
}

void HttpExchange::AddHeaders(std::vector<HttpHeader> headers) {
  absl::MutexLock lock(&mutex_);
  for (HttpHeader& header : headers) headers_.push_back(std::move(header));
}

void HttpExchange::Respond(HttpResponse response, std::function<void()> flushed) {
  std::vector<HttpHeader> added;
  {
    absl::MutexLock lock(&mutex_);
    if (stage_ != Stage::kNew) return;
    stage_ = Stage::kEnded;
    on_disconnect_ = nullptr;
    added = std::move(headers_);
  }
  std::vector<HttpHeader> headers;
  if (response.status != 204) {
    headers = {{"Content-Type", std::move(response.content_type)},
               {"Content-Length", absl::StrCat(response.body.size())}};
  }
  headers.push_back({"Connection", keep_alive_ ? "keep-alive" : "close"});
  for (HttpHeader& header : added) {
    const bool own = absl::c_any_of(response.headers, [&](const HttpHeader& one) {
      return absl::EqualsIgnoreCase(one.name, header.name);
    });
    if (!own) headers.push_back(std::move(header));
  }
  for (HttpHeader& header : response.headers) headers.push_back(std::move(header));
  std::string bytes = FormatResponseHead(version_, response.status, headers);
  if (!head_only_) bytes += response.body;
  Append(bytes, std::move(flushed), /*end=*/true, /*bounded=*/false);
}

void HttpExchange::StartStream(int status, absl::string_view content_type, std::vector<HttpHeader> headers) {
  std::vector<HttpHeader> added;
  {
    absl::MutexLock lock(&mutex_);
    if (stage_ != Stage::kNew) return;
    stage_ = Stage::kStreaming;
    added = std::move(headers_);
  }
  // HTTP/1.0 knows no chunks: its streams end with the connection.
  const bool chunked = version_ == 11;
  // Proxies must pass a stream on as it comes: nginx would collect it without X-Accel-Buffering.
  std::vector<HttpHeader> all = {{"Content-Type", std::string(content_type)},
                                 {"Cache-Control", "no-cache"},
                                 {"X-Accel-Buffering", "no"},
                                 {"Connection", keep_alive_ && chunked ? "keep-alive" : "close"}};
  if (chunked) all.push_back({"Transfer-Encoding", "chunked"});
  for (HttpHeader& header : added) all.push_back(std::move(header));
  for (HttpHeader& header : headers) all.push_back(std::move(header));
  Append(FormatResponseHead(version_, status, all), nullptr, /*end=*/false, /*bounded=*/false);
}

bool HttpExchange::Write(absl::string_view bytes, std::function<void()> flushed) {
  {
    absl::MutexLock lock(&mutex_);
    if (stage_ != Stage::kStreaming) return false;
  }
  if (head_only_ || bytes.empty()) return true;
  if (version_ == 10) return Append(bytes, std::move(flushed), /*end=*/false, /*bounded=*/true);
  std::string chunk = absl::StrFormat("%x\r\n", bytes.size());
  absl::StrAppend(&chunk, bytes, "\r\n");
  return Append(chunk, std::move(flushed), /*end=*/false, /*bounded=*/true);
}

void HttpExchange::Finish() {
  {
    absl::MutexLock lock(&mutex_);
    if (stage_ != Stage::kStreaming) return;
    stage_ = Stage::kEnded;
    on_disconnect_ = nullptr;
  }
  const bool last_chunk = version_ == 11 && !head_only_;
  Append(last_chunk ? "0\r\n\r\n" : "", nullptr, /*end=*/true, /*bounded=*/false);
}

void HttpExchange::OnDisconnect(std::function<void()> callback) {
  bool abort = false;
  {
    absl::MutexLock lock(&mutex_);
    if (stage_ == Stage::kEnded) return;
    if (stage_ != Stage::kGone && !input_ended_) {
      on_disconnect_ = std::move(callback);
      return;
    }
    abort = std::exchange(stage_, Stage::kGone) != Stage::kGone;
  }
  if (abort) Abort();
  callback();
}

bool HttpExchange::InputEnded() {
  std::function<void()> callback;
  {
    absl::MutexLock lock(&mutex_);
    input_ended_ = true;
    if (on_disconnect_ == nullptr) return false;
    stage_ = Stage::kGone;
    callback.swap(on_disconnect_);
  }
  callback();
  return true;
}

void HttpExchange::Disconnected() {
  std::function<void()> callback;
  {
    absl::MutexLock lock(&mutex_);
    if (stage_ == Stage::kEnded || stage_ == Stage::kGone) return;
    stage_ = Stage::kGone;
    callback.swap(on_disconnect_);
  }
  if (callback) callback();
}

HttpResponder::HttpResponder(std::shared_ptr<HttpExchange> exchange) : exchange_(std::move(exchange)) {}

void HttpResponder::AddHeaders(std::vector<HttpHeader> headers) { exchange_->AddHeaders(std::move(headers)); }

void HttpResponder::Respond(HttpResponse response, std::function<void()> flushed) {
  exchange_->Respond(std::move(response), std::move(flushed));
}

void HttpResponder::StartStream(int status, absl::string_view content_type, std::vector<HttpHeader> headers) {
  exchange_->StartStream(status, content_type, std::move(headers));
}

bool HttpResponder::Write(absl::string_view bytes, std::function<void()> flushed) {
  return exchange_->Write(bytes, std::move(flushed));
}

void HttpResponder::Finish() { exchange_->Finish(); }

void HttpResponder::OnDisconnect(std::function<void()> callback) {
  exchange_->OnDisconnect(std::move(callback));
}

}  // namespace aludel
