#include "server/http/client/http_client_connection.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Io = HttpSocket::Io;

constexpr uint32_t kMaxHeaderBytes = 16 << 10;
// A server that does not answer at one address is tried at its next one after this.
constexpr std::chrono::seconds kAddressPatience{2};

std::string Text(const tcp::endpoint& endpoint) {
  const std::string address = endpoint.address().to_string();
  return absl::StrCat(endpoint.address().is_v6() ? absl::StrCat("[", address, "]") : address, ":",
                      endpoint.port());
}

}  // namespace

// Parses one answer and hands out its body.
class HttpClient::Connection::Answer : public http::basic_parser</*isRequest=*/false> {
 public:
  explicit Answer(const HttpClient::OnBody* on_body) : on_body_(on_body) {
    header_limit(kMaxHeaderBytes);
    body_limit(boost::none);  // nothing of it is kept here
    eager(true);
  }
  int status() const { return status_; }
  // What put() throws is an error as well, and a header has one bound, however it is cut: header_limit()
  // holds for what one call sees.
  size_t Put(absl::string_view bytes, error_code& ec) {
    size_t size = 0;
    try {
      size = put(asio::const_buffer(bytes.data(), bytes.size()), ec);
    } catch (const std::exception& error) {
      refused_ = absl::DataLossError(absl::StrCat("malformed HTTP answer: ", error.what()));
      ec = boost::system::errc::make_error_code(boost::system::errc::operation_canceled);
    }
    if (ec == http::error::need_more && !is_header_done()) {
      header_bytes_ += size;
      if (header_bytes_ + bytes.size() - size > kMaxHeaderBytes) ec = http::error::header_limit;
    }
    return size;
  }
  absl::Status Error(const error_code& ec) const {
    if (!refused_.ok()) return refused_;
    if (ec == http::error::header_limit) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the answer's header is longer than ", kMaxHeaderBytes, " bytes"));
    }
    return absl::DataLossError(absl::StrCat("malformed HTTP answer: ", ec.message()));
  }

 private:
  using Text = boost::beast::string_view;
  void on_request_impl(http::verb, Text, Text, int, error_code&) override {}
  void on_response_impl(int status, Text, int, error_code&) override { status_ = status; }
  void on_field_impl(http::field, Text, Text, error_code&) override {}
  void on_header_impl(error_code&) override {}
  void on_body_init_impl(const boost::optional<uint64_t>&, error_code&) override {}
  void on_chunk_header_impl(uint64_t, Text, error_code&) override {}
  void on_finish_impl(error_code&) override {}
  size_t on_chunk_body_impl(uint64_t, Text bytes, error_code& ec) override { return on_body_impl(bytes, ec); }
  size_t on_body_impl(Text bytes, error_code& ec) override {
    refused_ = (*on_body_)(absl::string_view(bytes.data(), bytes.size()));
    if (!refused_.ok()) ec = boost::system::errc::make_error_code(boost::system::errc::operation_canceled);
    return bytes.size();
  }

  const HttpClient::OnBody* const on_body_;
  int status_ = 0;
  size_t header_bytes_ = 0;  // consumed of a header that goes on
  absl::Status refused_;
};

HttpClient::Connection::Connection(Impl* client)
    : client_(client), addresses_(client->addresses_), patience_(client->context_) {}

HttpClient::Connection::~Connection() = default;

void HttpClient::Connection::Serve(std::shared_ptr<Exchange> exchange) {
  exchange_ = std::move(exchange);
  exchange_->connection = this;
  kept_ = socket_.has_value();
  if (kept_) return Send();
  Connect(0);
}

void HttpClient::Connection::Fail(const absl::Status& error) { End(error, /*keep=*/false); }

const char* HttpClient::Connection::doing() const {
  return answer_ != nullptr && answer_->got_some() ? "in the middle of the answer" : doing_;
}

void HttpClient::Connection::Close() {
  closed_ = true;
  error_code ec;
  if (opening_) opening_->close(ec);
  if (socket_) socket_->Close();
  patience_.cancel();
  const std::shared_ptr<Connection> self = shared_from_this();
  std::erase(client_->idle_, self);
  client_->connections_.erase(self);
}

void HttpClient::Connection::Connect(size_t index) {
  doing_ = "while connecting";
  opening_.emplace(client_->context_);
  opening_->async_connect(addresses_[index], [self = shared_from_this(), index](const error_code& ec) {
    if (!self->closed_) self->OnConnected(index, ec);
  });
  if (index + 1 == addresses_.size()) return;
  patience_.expires_after(kAddressPatience);
  patience_.async_wait([self = shared_from_this()](const error_code& ec) {
    error_code ignored;
    if (!ec && !self->closed_ && !self->socket_) self->opening_->close(ignored);
  });
}

void HttpClient::Connection::OnConnected(size_t index, const error_code& ec) {
  patience_.cancel();
  std::vector<tcp::endpoint>& known = client_->addresses_;
  if (ec) {
    if (index + 1 < addresses_.size()) return Connect(index + 1);
    known.clear();
    return Fail(
        absl::UnavailableError(absl::StrCat("connect to ", Text(addresses_[index]), ": ", ec.message())));
  }
  // The next connection begins with the address that answers.
  if (const auto at = std::find(known.begin(), known.end(), addresses_[index]); at != known.end()) {
    std::iter_swap(known.begin(), at);
  }
  socket_.emplace(*std::exchange(opening_, std::nullopt), client_->tls_, client_->options_.url.host);
  doing_ = "in the TLS handshake";
  Handshake();
}

void HttpClient::Connection::Handshake() {
  const Io io = socket_->Handshake();
  if (io == Io::kDone) return Send();
  if (io == Io::kClosed) {
    const std::string& reason = socket_->reason();
    return Fail(absl::UnavailableError(absl::StrCat("TLS with ", client_->options_.url.Authority(), ": ",
                                                    reason.empty() ? "closed by the server" : reason)));
  }
  socket_->Wait(io, [self = shared_from_this()](const error_code&) {
    if (!self->closed_) self->Handshake();
  });
}

void HttpClient::Connection::Send() {
  doing_ = "waiting for an answer";
  answer_ = std::make_unique<Answer>(&exchange_->on_body);
  written_ = 0;
  Write();
  Read();
}

void HttpClient::Connection::Write() {
  const std::string& bytes = exchange_->bytes;
  while (written_ < bytes.size()) {
    size_t size = 0;
    const Io io = socket_->Write(bytes.data() + written_, bytes.size() - written_, &size);
    // An answer may have come before that: "too large", for one.
    if (io == Io::kClosed) return OnReadable();
    if (io != Io::kDone) {
      return socket_->Wait(io, [self = shared_from_this()](const error_code&) {
        if (!self->closed_) self->Write();
      });
    }
    written_ += size;
  }
}

// Goes on while the connection is idle, so that its end is noticed.
void HttpClient::Connection::Read(Io wait) {
  if (closed_ || std::exchange(reading_, true)) return;
  socket_->Wait(wait, [self = shared_from_this()](const error_code&) {
    self->reading_ = false;
    if (!self->closed_) self->OnReadable();
  });
}

void HttpClient::Connection::OnReadable() {
  size_t size = 0;
  std::vector<char>& scratch = client_->scratch_;
  const Io io = socket_->Read(scratch.data(), scratch.size(), &size);
  if (io == Io::kClosed) return OnClosed();
  if (io != Io::kDone) return Read(io);
  if (exchange_ == nullptr) return Close();  // nothing was asked
  unread_.append(scratch.data(), size);
  Parse();
  Read();
}

void HttpClient::Connection::Parse() {
  while (!unread_.empty()) {
    error_code ec;
    unread_.erase(0, answer_->Put(unread_, ec));
    if (ec == http::error::need_more && unread_.size() <= kMaxHeaderBytes) return;
    if (ec == http::error::need_more) ec = http::error::header_limit;  // of a chunk
    if (ec) return Fail(answer_->Error(ec));
    if (!answer_->is_done()) continue;
    if (answer_->status() / 100 != 1) return Finish();
    // An interim answer, and another one follows.
    answer_ = std::make_unique<Answer>(&exchange_->on_body);
  }
}

// By the server, or broken.
void HttpClient::Connection::OnClosed() {
  if (exchange_ == nullptr) return Close();
  const std::string& reason = socket_->reason();
  if (!answer_->got_some() && kept_) {
    const std::shared_ptr<Connection> self = shared_from_this();
    const std::shared_ptr<Exchange> exchange = std::exchange(exchange_, nullptr);
    exchange->connection = nullptr;
    exchange->wants_new_connection = true;
    Close();
    client_->waiting_.push_front(exchange);
    return client_->Dispatch();
  }
  error_code ec;
  if (answer_->got_some() && reason.empty()) answer_->put_eof(ec);
  if (answer_->is_done()) return Finish();
  const char* when = answer_->got_some() ? "in the middle of the answer" : "without an answer";
  Fail(absl::UnavailableError(
      absl::StrCat("the connection ended ", when, reason.empty() ? "" : ": ", reason)));
}

void HttpClient::Connection::Finish() {
  const bool sent = written_ == exchange_->bytes.size();
  End(absl::OkStatus(), sent && unread_.empty() && answer_->keep_alive());
}

void HttpClient::Connection::End(const absl::Status& error, bool keep) {
  const std::shared_ptr<Connection> self = shared_from_this();
  const int status = answer_ != nullptr && answer_->is_header_done() ? answer_->status() : 0;
  answer_.reset();
  std::shared_ptr<Exchange> exchange = std::exchange(exchange_, nullptr);
  if (keep) {
    client_->idle_.push_back(self);
  } else {
    Close();
  }
  client_->End(std::move(exchange), status, error);
}

}  // namespace aludel
