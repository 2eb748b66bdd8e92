#include "server/http/http_connection.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Io = HttpSocket::Io;

// Bytes that may wait to be parsed: of a header, or of further requests behind a running exchange. When they
// are full, reading stops until there is room, and a client that goes away is noticed by the next write
// instead. Together with the parsed header less than 64 KiB, which is what a client costs before its key
// is checked.
constexpr size_t kMaxInputBytes = 16 << 10;
// How long, and for how many bytes, a refused client may go on sending before it is reset; at once, it would
// never see the answer. They are several times max_body_bytes, so that a client whose body is too long reads why.
constexpr absl::Duration kLingerTimeout = absl::Seconds(2);
constexpr size_t kMaxLingerBytes = 16 << 20;

}  // namespace

HttpConnection::HttpConnection(HttpSocket socket, std::shared_ptr<HttpServerState> state, HttpLoop* loop)
    : state_(std::move(state)),
      loop_(loop),
      socket_(std::move(socket)),
      read_timer_(loop->context),
      write_timer_(loop->context) {}

HttpConnection::~HttpConnection() {
  if (phase_ != Phase::kClosed) state_->open_connections.fetch_sub(1);  // the loop ended before its Start()
}

void HttpConnection::Start() {
  peer_ = socket_.Peer();
  loop_->connections.insert(shared_from_this());
  if (loop_->draining) return Close();
  ArmReadTimer(state_->options.header_timeout);
  Handshake();
}

void HttpConnection::Handshake() {
  if (phase_ != Phase::kHandshake) return;
  switch (const Io io = socket_.Handshake()) {
    case Io::kDone:
      phase_ = Phase::kIdle;
      return Read();
    case Io::kClosed:
      return Close();
    default:
      socket_.Wait(io, [weak = weak_from_this()](const error_code& ec) {
        const auto self = weak.lock();
        if (self == nullptr) return;
        if (ec) return self->Close();
        self->Handshake();
      });
  }
}

void HttpConnection::Drain() {
  keep_alive_ = false;
  if (phase_ == Phase::kIdle || phase_ == Phase::kHandshake) Close();
}

void HttpConnection::Close() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  const std::shared_ptr<HttpConnection> self = shared_from_this();
  loop_->connections.erase(self);
  state_->open_connections.fetch_sub(1);
  DisarmReadTimer();
  write_timer_.cancel();
  socket_.Close();
  {
    absl::MutexLock lock(&mutex_);
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
    absl::MutexLock lock(&mutex_);
    if (closed_) return false;
    // One write, however large, says nothing of how fast its reader is.
    const size_t largest = std::max(queued_largest_, bytes.size());
    overflow = bounded && queued_.size() + bytes.size() - largest > state_->options.max_queued_bytes;
    if (!overflow) {
      queued_largest_ = largest;
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

size_t HttpConnection::Room() const {
  // The parser takes a body as it comes.
  if (phase_ == Phase::kBody || phase_ == Phase::kLinger) return loop_->scratch.size();
  const size_t most = std::max(kMaxInputBytes, state_->options.limits.max_header_bytes);
  return std::min(loop_->scratch.size(), most - std::min(most, input_.size()));
}

void HttpConnection::Read(Io wait) {
  if (reading_ || input_ended_ || phase_ == Phase::kClosed) return;
  if (Room() == 0) return;  // the exchange's end makes some, and goes on here
  reading_ = true;
  auto readable = [weak = weak_from_this()](const error_code& ec) {
    const auto self = weak.lock();
    if (self == nullptr || self->phase_ == Phase::kClosed) return;
    self->reading_ = false;
    if (ec) return self->Close();
    self->OnReadable();
  };
  if (wait == Io::kWaitRead && socket_.buffered()) {
    return asio::post(loop_->context, [readable = std::move(readable)] { readable(error_code()); });
  }
  // Waiting without a buffer keeps an idle connection small.
  socket_.Wait(wait, std::move(readable));
}

void HttpConnection::OnReadable() {
  // A wait that began before an exchange may end in it, with no room left.
  const size_t room = Room();
  if (room == 0) return;
  size_t size = 0;
  const Io io = socket_.Read(loop_->scratch.data(), room, &size);
  if (io == Io::kClosed) return socket_.reason().empty() ? OnInputEnd() : Close();
  if (io != Io::kDone) return Read(io);
  if (phase_ == Phase::kLinger) {
    lingered_bytes_ += size;
    if (lingered_bytes_ > kMaxLingerBytes) return Close();
  } else {
    input_.append(loop_->scratch.data(), size);
    Parse();
  }
  Read();
}

// What has come may be whole requests, whose answers the client waits for.
void HttpConnection::OnInputEnd() {
  input_ended_ = true;
  if (phase_ != Phase::kExchange) return Close();
  if (const auto exchange = exchange_.lock(); exchange != nullptr && exchange->InputEnded()) Close();
}

void HttpConnection::Parse() {
  while (phase_ == Phase::kIdle || phase_ == Phase::kHeader || phase_ == Phase::kBody) {
    if (phase_ == Phase::kIdle) {
      // Some clients end a body with a line break that belongs to nothing.
      input_.erase(0, std::min(input_.find_first_not_of("\r\n"), input_.size()));
      if (input_.empty()) return;
      phase_ = Phase::kHeader;
      parser_.emplace(state_->options.limits);
      request_began_ = std::chrono::steady_clock::now();
      body_share_ = HttpBodyBudget::Share(&state_->body_budget);
      ArmReadTimer(state_->options.header_timeout);
    }
    size_t consumed = 0;
    const HttpParser::State state = parser_->Feed(input_, &consumed);
    input_.erase(0, consumed);
    if (state != HttpParser::State::kError && !body_share_.GrowTo(parser_->body_bytes())) {
      return Refuse({503, "other requests' bodies take all memory that is there for them", 1});
    }
    switch (state) {
      case HttpParser::State::kNeedMore:
        return;
      case HttpParser::State::kError:
        return Refuse(parser_->error());
      case HttpParser::State::kHeaderDone:
        if (state_->options.check_head) {
          const HttpRequest head = Head();
          if (auto refused = state_->options.check_head(head))
            return RespondAndClose(head, *std::move(refused));
        }
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
  if (!request.body.empty()) {
    // The budget lives as long as its share.
    request.body_share = std::make_shared<HttpBodyHold>(HttpBodyHold{state_, std::move(body_share_)});
  }
  request.peer = peer_;
  request.began = request_began_;
  request.received = std::chrono::steady_clock::now();
  // An HTTP/1.0 connection serves one request: a stream can end there in no other way than by closing.
  keep_alive_ = keep_alive_ && request.keep_alive && request.version == 11;
  request.keep_alive = keep_alive_;
  auto exchange = std::make_shared<HttpExchange>(shared_from_this(), request);
  exchange_ = exchange;
  if (state_->options.at_once && state_->options.at_once(request)) {
    return state_->handler(std::move(request), HttpResponder(std::move(exchange)));
  }
  if (state_->queued_requests.fetch_add(1) >= state_->options.max_queued_requests) {
    state_->queued_requests.fetch_sub(1);
    return exchange->Respond(state_->Refusal(request, {503, "too many requests wait for a handler", 1}),
                             nullptr);
  }
  asio::post(*state_->handler_pool,
             [state = state_, request = std::move(request), exchange = std::move(exchange)]() mutable {
               state->queued_requests.fetch_sub(1);
               state->handler(std::move(request), HttpResponder(std::move(exchange)));
             });
}

HttpRequest HttpConnection::Head() const {
  HttpRequest head = parser_->Head();
  head.peer = peer_;
  head.keep_alive = false;
  return head;
}

void HttpConnection::Refuse(const HttpError& error) {
  const HttpRequest head = Head();
  RespondAndClose(head, state_->Refusal(head, error));
}

void HttpConnection::RespondAndClose(const HttpRequest& request, HttpResponse response) {
  keep_alive_ = false;
  parser_.reset();
  body_share_ = {};
  input_.clear();
  DisarmReadTimer();
  phase_ = Phase::kExchange;
  HttpExchange(shared_from_this(), request).Respond(std::move(response), nullptr);
}

void HttpConnection::Flush() {
  {
    absl::MutexLock lock(&mutex_);
    flush_posted_ = false;
    if (closed_ || writing_) return;
    in_flight_.swap(queued_);
    in_flight_flushed_.swap(queued_flushed_);
    in_flight_end_ = std::exchange(queued_end_, false);
    queued_largest_ = 0;
  }
  if (in_flight_.empty()) {
    if (in_flight_end_) EndExchange();
    return;
  }
  writing_ = true;
  in_flight_written_ = 0;
  write_timer_armed_ = false;
  WriteSome();
}

void HttpConnection::WriteSome() {
  while (in_flight_written_ < in_flight_.size()) {
    size_t written = 0;
    const Io io = socket_.Write(in_flight_.data() + in_flight_written_,
                                in_flight_.size() - in_flight_written_, &written);
    if (io == Io::kClosed) return Close();
    if (io != Io::kDone) {
      ArmWriteTimer();
      socket_.Wait(io, [weak = weak_from_this()](const error_code& ec) {
        const auto self = weak.lock();
        if (self == nullptr || self->phase_ == Phase::kClosed) return;
        if (ec) return self->Close();
        self->WriteSome();
      });
      return;
    }
    in_flight_written_ += written;
  }
  OnWritten();
}

// One timer for everything in flight: a reader that takes a byte now and then gains no time.
void HttpConnection::ArmWriteTimer() {
  if (std::exchange(write_timer_armed_, true)) return;
  write_timer_.expires_after(absl::ToChronoNanoseconds(state_->options.write_timeout));
  write_timer_.async_wait(
      [weak = weak_from_this(), generation = ++write_timer_generation_](const error_code& ec) {
        auto self = weak.lock();
        if (!ec && self && self->writing_ && self->write_timer_generation_ == generation) self->Close();
      });
}

void HttpConnection::OnWritten() {
  writing_ = false;
  ++write_timer_generation_;
  if (write_timer_armed_) write_timer_.cancel();
  in_flight_.clear();
  for (auto& flushed : std::exchange(in_flight_flushed_, {})) flushed();
  if (std::exchange(in_flight_end_, false)) return EndExchange();
  {
    absl::MutexLock lock(&mutex_);
    if ((queued_.empty() && !queued_end_) || std::exchange(flush_posted_, true)) return;
  }
  // By the loop, not by recursion: a writer may be as fast as the socket.
  asio::post(loop_->context, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->Flush();
  });
}

void HttpConnection::EndExchange() {
  exchange_.reset();
  if (phase_ == Phase::kClosed) return;
  if (!keep_alive_) return Linger();
  phase_ = Phase::kIdle;
  ArmReadTimer(state_->options.idle_timeout);
  // A pipelined request may be there already, whole or in part.
  Parse();
  if (phase_ != Phase::kExchange && input_ended_) return Close();
  if (phase_ == Phase::kIdle) {
    // An idle connection stays small. (Assigning an empty string would keep the capacity.)
    input_.shrink_to_fit();
    in_flight_.shrink_to_fit();
    absl::MutexLock lock(&mutex_);
    queued_.shrink_to_fit();
  }
  Read();
}

void HttpConnection::Linger() {
  phase_ = Phase::kLinger;
  socket_.ShutdownSend();
  if (input_ended_) return Close();
  input_.clear();
  ArmReadTimer(kLingerTimeout);
  Read();
}

void HttpConnection::ArmReadTimer(absl::Duration timeout) {
  read_timer_.expires_after(absl::ToChronoNanoseconds(timeout));
  // A timer that fired just before it was re-armed still calls back; its old generation shows it.
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
