#include "server/http/http_connection.h"

#include <utility>

#include "absl/types/span.h"

namespace aludel {
namespace {

// How long, and for how many bytes, a refused client may go on sending before it is reset; at once, it would
// never see the answer. They are several times max_body_bytes, so that a client whose body is too long reads why.
constexpr absl::Duration kLingerTimeout = absl::Seconds(2);
constexpr size_t kMaxLingerBytes = 16 << 20;

}  // namespace

HttpConnection::HttpConnection(HttpSocket socket, std::shared_ptr<HttpServerState> state, HttpLoop* loop)
    : state_(std::move(state)),
      loop_(loop),
      socket_(std::move(socket)),
      reader_(&loop->context, &socket_, absl::MakeSpan(loop->scratch), this),
      writer_(&loop->context, &socket_, this, state_->options.write_timeout,
              state_->options.max_queued_bytes),
      requests_(&state_->options.limits, &state_->body_budget),
      read_timer_(loop->context) {}

HttpConnection::~HttpConnection() {
  if (phase_ != Phase::kClosed) state_->open_connections.fetch_sub(1);  // the loop ended before its Start()
}

void HttpConnection::Start() {
  requests_.Start(socket_.Peer());
  loop_->connections.insert(shared_from_this());
  if (loop_->draining) return Close();
  ArmReadTimer(state_->options.header_timeout);
  writer_.Start(weak_from_this());
  reader_.Start(weak_from_this());
}

void HttpConnection::OnOpened() {
  phase_ = Phase::kIdle;
  reader_.Read();
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
  read_timer_.Stop();
  reader_.Close();
  writer_.Close();
  socket_.Close();
  if (auto exchange = exchange_.lock()) exchange->Disconnected();
}

size_t HttpConnection::Room() const { return phase_ == Phase::kLinger ? kMaxLingerBytes : requests_.Room(); }

void HttpConnection::OnBytes(absl::string_view bytes) {
  if (phase_ == Phase::kLinger) {
    lingered_bytes_ += bytes.size();
    if (lingered_bytes_ > kMaxLingerBytes) Close();
    return;
  }
  requests_.Add(bytes);
  Parse();
}

// What has come may be whole requests, whose answers the client waits for.
void HttpConnection::OnInputEnd() {
  if (phase_ != Phase::kExchange) return Close();
  if (const auto exchange = exchange_.lock(); exchange != nullptr && exchange->InputEnded()) Close();
}

void HttpConnection::Parse() {
  while (phase_ == Phase::kIdle || phase_ == Phase::kHeader || phase_ == Phase::kBody) {
    if (phase_ == Phase::kIdle) {
      if (!requests_.Begin()) return;
      phase_ = Phase::kHeader;
      ArmReadTimer(state_->options.header_timeout);
    }
    switch (requests_.Go()) {
      case HttpParser::State::kNeedMore:
        return;
      case HttpParser::State::kError:
        return Refuse(requests_.error());
      case HttpParser::State::kHeaderDone:
        if (!TakeHead()) return;
        break;
      case HttpParser::State::kDone:
        return Dispatch();
    }
  }
}

bool HttpConnection::TakeHead() {
  if (state_->options.check_head) {
    const HttpRequest head = requests_.Head();
    if (auto refused = state_->options.check_head(head)) {
      RespondAndClose(head, *std::move(refused));
      return false;
    }
  }
  phase_ = Phase::kBody;
  ArmReadTimer(state_->options.body_timeout);
  if (requests_.ExpectsContinue()) {
    Append("HTTP/1.1 100 Continue\r\n\r\n", nullptr, /*end=*/false, /*bounded=*/false);
  }
  return true;
}

void HttpConnection::Dispatch() {
  phase_ = Phase::kExchange;
  read_timer_.Stop();
  HttpRequest request = requests_.Take(state_);
  // An HTTP/1.0 connection serves one request: a stream can end there in no other way than by closing.
  keep_alive_ = keep_alive_ && request.keep_alive && request.version == 11;
  request.keep_alive = keep_alive_;
  auto exchange = std::make_shared<HttpExchange>(weak_from_this(), state_, request);
  exchange_ = exchange;
  state_->Handle(std::move(request), std::move(exchange));
}

void HttpConnection::Refuse(const HttpError& error) {
  const HttpRequest head = requests_.Head();
  RespondAndClose(head, state_->Refusal(head, error));
}

void HttpConnection::RespondAndClose(const HttpRequest& request, HttpResponse response) {
  keep_alive_ = false;
  requests_.Abandon();
  read_timer_.Stop();
  phase_ = Phase::kExchange;
  HttpExchange(weak_from_this(), state_, request).Respond(std::move(response), nullptr);
}

void HttpConnection::OnAnswerWritten() {
  exchange_.reset();
  if (phase_ == Phase::kClosed) return;
  if (!keep_alive_) return Linger();
  phase_ = Phase::kIdle;
  ArmReadTimer(state_->options.idle_timeout);
  // A pipelined request may be there already, whole or in part.
  Parse();
  if (phase_ != Phase::kExchange && reader_.ended()) return Close();
  if (phase_ == Phase::kIdle) {
    // An idle connection stays small.
    requests_.Shrink();
    writer_.Shrink();
  }
  reader_.Read();
}

void HttpConnection::Linger() {
  phase_ = Phase::kLinger;
  socket_.ShutdownSend();
  if (reader_.ended()) return Close();
  requests_.Abandon();
  ArmReadTimer(kLingerTimeout);
  reader_.Read();
}

void HttpConnection::ArmReadTimer(absl::Duration timeout) {
  read_timer_.Set(timeout, weak_from_this(), [this] { OnReadTimeout(); });
}

void HttpConnection::OnReadTimeout() {
  if (phase_ == Phase::kHeader) return Refuse({408, "the request header took too long"});
  if (phase_ == Phase::kBody) return Refuse({408, "the request body took too long"});
  Close();
}

}  // namespace aludel
