#include "server/gateway/http_connection.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Bytes of further requests that may wait behind a running exchange. When they are full, reading stops, and a
// client that goes away is noticed by the next write instead.
constexpr size_t kMaxPipelinedBytes = 64 << 10;
// How long a refused client may go on sending before it is reset; without a pause it would never see the
// answer.
constexpr absl::Duration kLingerTimeout = absl::Seconds(2);

}  // namespace

HttpConnection::HttpConnection(tcp::socket socket, std::shared_ptr<HttpServerState> state, HttpLoop* loop)
    : state_(std::move(state)),
      loop_(loop),
      socket_(std::move(socket)),
      read_timer_(loop->context),
      write_timer_(loop->context) {}

HttpConnection::~HttpConnection() { state_->open_connections.fetch_sub(1, std::memory_order_relaxed); }

void HttpConnection::Start() {
  error_code ec;
  socket_.non_blocking(true, ec);
  socket_.set_option(tcp::no_delay(true), ec);
  const tcp::endpoint remote = socket_.remote_endpoint(ec);
  if (!ec) peer_ = absl::StrCat(remote.address().to_string(), ":", remote.port());
  loop_->connections.insert(this);
  if (loop_->draining) return Close();
  ArmReadTimer(state_->options.header_timeout);
  Read();
}

void HttpConnection::Drain() {
  keep_alive_ = false;
  if (phase_ == Phase::kIdle) Close();
}

void HttpConnection::Close() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  loop_->connections.erase(this);
  DisarmReadTimer();
  write_timer_.cancel();
  error_code ec;
  socket_.close(ec);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    queued_.clear();
    queued_flushed_.clear();
  }
  if (auto exchange = exchange_.lock()) exchange->Disconnected();
}

void HttpConnection::Abort() {
  asio::post(loop_->context, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->Close();
  });
}

bool HttpConnection::Append(absl::string_view bytes, std::function<void()> flushed, bool end, bool bounded) {
  bool overflow = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return false;
    overflow = bounded && queued_.size() + bytes.size() > state_->options.max_queued_bytes;
    if (!overflow) {
      queued_.append(bytes.data(), bytes.size());
      if (flushed) queued_flushed_.push_back(std::move(flushed));
      queued_end_ = queued_end_ || end;
      if (std::exchange(flush_posted_, true)) return true;
    }
  }
  if (overflow) {
    Abort();
    return false;
  }
  asio::post(loop_->context, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->Flush();
  });
  return true;
}

void HttpConnection::Read() {
  if (reading_ || phase_ == Phase::kClosed) return;
  if (phase_ == Phase::kExchange && input_.size() >= kMaxPipelinedBytes) return;
  reading_ = true;
  // Waiting without a buffer keeps an idle connection small.
  socket_.async_wait(tcp::socket::wait_read,
                     [self = shared_from_this()](const error_code& ec) { self->OnReadable(ec); });
}

void HttpConnection::OnReadable(const error_code& wait_error) {
  reading_ = false;
  if (phase_ == Phase::kClosed) return;
  if (wait_error) return Close();
  error_code ec;
  const size_t size = socket_.read_some(asio::buffer(loop_->scratch), ec);
  if (ec == asio::error::would_block || ec == asio::error::interrupted) return Read();
  if (ec) return Close();
  if (phase_ != Phase::kLinger) {
    input_.append(loop_->scratch.data(), size);
    Parse();
  }
  Read();
}

void HttpConnection::Parse() {
  while (phase_ == Phase::kIdle || phase_ == Phase::kHeader || phase_ == Phase::kBody) {
    if (phase_ == Phase::kIdle) {
      // Some clients end a body with a line break that belongs to nothing.
      input_.erase(0, std::min(input_.find_first_not_of("\r\n"), input_.size()));
      if (input_.empty()) return;
      phase_ = Phase::kHeader;
      parser_.emplace(state_->options.limits);
      ArmReadTimer(state_->options.header_timeout);
    }
    size_t consumed = 0;
    const HttpParser::State state = parser_->Feed(input_, &consumed);
    input_.erase(0, consumed);
    switch (state) {
      case HttpParser::State::kNeedMore:
        return;
      case HttpParser::State::kError:
        return Refuse(parser_->error());
      case HttpParser::State::kHeaderDone:
        phase_ = Phase::kBody;
        ArmReadTimer(state_->options.body_timeout);
        if (parser_->ExpectsContinue()) {
          Append("HTTP/1.1 100 Continue\r\n\r\n", nullptr, /*end=*/false, /*bounded=*/false);
        }
        break;
      case HttpParser::State::kDone:
        return Dispatch();
    }
  }
}

void HttpConnection::Dispatch() {
  phase_ = Phase::kExchange;
  DisarmReadTimer();
  HttpRequest request = parser_->Release();
  parser_.reset();
  request.peer = peer_;
  request.received = std::chrono::steady_clock::now();
  // An HTTP/1.0 connection serves one request: a stream can end there in no other way than by closing.
  keep_alive_ = keep_alive_ && request.keep_alive && request.version == 11;
  request.keep_alive = keep_alive_;
  auto exchange = std::make_shared<HttpExchange>(shared_from_this(), request);
  exchange_ = exchange;
  if (state_->queued_requests.fetch_add(1) >= state_->options.max_queued_requests) {
    state_->queued_requests.fetch_sub(1);
    HttpResponse busy;
    busy.status = 503;
    busy.content_type = "text/plain";
    busy.headers.push_back({"Retry-After", "1"});
    busy.body = "too many requests wait for a handler\n";
    return exchange->Respond(std::move(busy), nullptr);
  }
  asio::post(*state_->handler_pool,
             [state = state_, request = std::move(request), exchange = std::move(exchange)]() mutable {
               state->queued_requests.fetch_sub(1);
               state->handler(std::move(request), HttpResponder(std::move(exchange)));
             });
}

// `error` by value: the parser that it comes from ends here.
void HttpConnection::Refuse(HttpError error) {
  HttpRequest request;
  request.version = 11;
  request.keep_alive = keep_alive_ = false;
  parser_.reset();
  input_.clear();
  DisarmReadTimer();
  phase_ = Phase::kExchange;
  HttpExchange exchange(shared_from_this(), request);
  HttpResponse response;
  response.status = error.status;
  response.content_type = "text/plain";
  response.body = std::move(error.message) + "\n";
  exchange.Respond(std::move(response), nullptr);
}

void HttpConnection::Flush() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    flush_posted_ = false;
    if (closed_ || writing_) return;
    in_flight_.swap(queued_);
    in_flight_flushed_.swap(queued_flushed_);
    in_flight_end_ = std::exchange(queued_end_, false);
  }
  if (in_flight_.empty()) {
    if (in_flight_end_) EndExchange();
    return;
  }
  writing_ = true;
  write_timer_.expires_after(absl::ToChronoNanoseconds(state_->options.write_timeout));
  write_timer_.async_wait([weak = weak_from_this()](const error_code& ec) {
    auto self = weak.lock();
    if (!ec && self && self->writing_) self->Close();
  });
  asio::async_write(socket_, asio::buffer(in_flight_),
                    [self = shared_from_this()](const error_code& ec, size_t) { self->OnWritten(ec); });
}

void HttpConnection::OnWritten(const error_code& ec) {
  writing_ = false;
  write_timer_.cancel();
  if (phase_ == Phase::kClosed) return;
  if (ec) return Close();
  in_flight_.clear();
  for (auto& flushed : std::exchange(in_flight_flushed_, {})) flushed();
  if (std::exchange(in_flight_end_, false)) {
    EndExchange();
  } else {
    Flush();
  }
}

void HttpConnection::EndExchange() {
  exchange_.reset();
  if (phase_ == Phase::kClosed) return;
  if (!keep_alive_) return Linger();
  phase_ = Phase::kIdle;
  input_.shrink_to_fit();
  in_flight_ = std::string();
  ArmReadTimer(state_->options.idle_timeout);
  // A pipelined request may be there already, whole or in part.
  Parse();
  Read();
}

void HttpConnection::Linger() {
  phase_ = Phase::kLinger;
  error_code ec;
  socket_.shutdown(tcp::socket::shutdown_send, ec);
  input_.clear();
  ArmReadTimer(kLingerTimeout);
  Read();
}

void HttpConnection::ArmReadTimer(absl::Duration timeout) {
  read_timer_.expires_after(absl::ToChronoNanoseconds(timeout));
  // A timer that fired just before it was re-armed still calls back; its generation gives it away.
  read_timer_.async_wait(
      [weak = weak_from_this(), generation = ++read_timer_generation_](const error_code& ec) {
        auto self = weak.lock();
        if (!ec && self && self->read_timer_generation_ == generation) self->OnReadTimeout();
      });
}

void HttpConnection::DisarmReadTimer() {
  ++read_timer_generation_;
  read_timer_.cancel();
}

void HttpConnection::OnReadTimeout() {
  if (phase_ == Phase::kHeader) return Refuse({408, "the request header took too long"});
  if (phase_ == Phase::kBody) return Refuse({408, "the request body took too long"});
  Close();
}

}  // namespace aludel
