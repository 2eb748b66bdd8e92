#include "server/http/client/http_client.h"

#include <openssl/ssl.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "server/http/client/http_client_connection.h"

namespace aludel {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

// How long what a name means is taken for granted.
constexpr std::chrono::seconds kAddressAge{60};
constexpr absl::Duration kLongestRun = absl::Hours(1);

std::shared_ptr<SSL_CTX> MakeTls(bool insecure) {
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  ALUDEL_CHECK(context != nullptr);  // but for memory, it cannot fail
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE);
  SSL_CTX_set_verify(context.get(), insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_default_verify_paths(context.get());
  return context;
}

}  // namespace

HttpClient::Impl::Impl(HttpClientOptions options) : options_(std::move(options)) {
  if (options_.url.tls) tls_ = MakeTls(options_.insecure);
  head_ = absl::StrCat(" ", options_.url.target, " HTTP/1.1\r\nHost: ", options_.url.Authority(), "\r\n");
  for (const auto& [name, value] : options_.headers) absl::StrAppend(&head_, name, ": ", value, "\r\n");
}

HttpClient::Impl::~Impl() {
  if (look_up_ != nullptr) {
    absl::MutexLock lock(&look_up_->mutex);
    look_up_->client = nullptr;
  }
  while (!connections_.empty()) (*connections_.begin())->Close();
}

void HttpClient::Impl::Post(absl::string_view body, absl::Duration timeout, OnBody on_body, OnEnd on_end) {
  Start(absl::StrCat("POST", head_, "Content-Type: application/json\r\nContent-Length: ", body.size(),
                     "\r\n\r\n", body),
        timeout, std::move(on_body), std::move(on_end));
}

void HttpClient::Impl::Get(absl::Duration timeout, OnBody on_body, OnEnd on_end) {
  Start(absl::StrCat("GET", head_, "\r\n"), timeout, std::move(on_body), std::move(on_end));
}

void HttpClient::Impl::Start(std::string bytes, absl::Duration timeout, OnBody on_body, OnEnd on_end) {
  const auto exchange = std::make_shared<Exchange>(
      Exchange{.bytes = std::move(bytes),
               .on_body = std::move(on_body),
               .on_end = std::move(on_end),
               .deadline = asio::steady_timer(context_, absl::ToChronoNanoseconds(timeout))});
  exchange->deadline.async_wait(
      [this, timeout, weak = std::weak_ptr<Exchange>(exchange)](const error_code& ec) {
        const std::shared_ptr<Exchange> late = weak.lock();
        if (!ec && late != nullptr) OnTimeout(late.get(), timeout);
      });
  waiting_.push_back(exchange);
  Dispatch();
}

void HttpClient::Impl::RunFor(absl::Duration duration) {
  due_ = false;
  wake_.expires_after(absl::ToChronoNanoseconds(std::min(duration, kLongestRun)));
  wake_.async_wait([this](const error_code& ec) { due_ = due_ || !ec; });
  for (const int64_t ended = ended_; !due_ && ended_ == ended;) context_.run_one();
}

void HttpClient::Impl::EndAll(const absl::Status& error) {
  for (auto& exchange : std::exchange(waiting_, {})) End(std::move(exchange), 0, error);
  for (const auto& connection : std::vector(connections_.begin(), connections_.end())) {
    if (connection->busy()) connection->Fail(error);
  }
}

void HttpClient::Impl::Dispatch() {
  while (!waiting_.empty()) {
    std::shared_ptr<Connection> connection;
    if (!idle_.empty() && !waiting_.front()->wants_new_connection) {
      connection = std::move(idle_.back());
      idle_.pop_back();
    } else if (connections_.size() >= options_.max_connections) {
      return;
    } else if (addresses_.empty() || Clock::now() > addresses_until_) {
      return StartLookUp();
    } else {
      connection = *connections_.insert(std::make_shared<Connection>(this)).first;
    }
    std::shared_ptr<Exchange> next = std::move(waiting_.front());
    waiting_.pop_front();
    connection->Serve(std::move(next));
  }
}

void HttpClient::Impl::StartLookUp() {
  if (look_up_ != nullptr) return;
  look_up_ = std::make_shared<LookUp>();
  look_up_->client = this;
  const auto look_up = [look_up = look_up_, host = options_.url.host, port = options_.url.port] {
    asio::io_context context;
    tcp::resolver resolver(context);
    error_code ec;
    const auto found = resolver.resolve(host, absl::StrCat(port), tcp::resolver::numeric_service, ec);
    std::vector<tcp::endpoint> addresses;
    for (const auto& one : found) addresses.push_back(one.endpoint());
    absl::MutexLock lock(&look_up->mutex);
    if (look_up->client == nullptr) return;
    asio::post(look_up->client->context_,
               [client = look_up->client, error = ec ? ec.message() : "", addresses = std::move(addresses)] {
                 client->OnLookedUp(error, addresses);
               });
  };
  try {
    std::thread(look_up).detach();
  } catch (const std::system_error& error) {
    asio::post(context_, [this, error = std::string(error.what())] { OnLookedUp(error, {}); });
  }
}

void HttpClient::Impl::OnLookedUp(const std::string& error, std::vector<tcp::endpoint> addresses) {
  look_up_.reset();
  addresses_ = std::move(addresses);
  addresses_until_ = Clock::now() + kAddressAge;
  if (!addresses_.empty()) return Dispatch();
  const absl::Status status = absl::UnavailableError(
      absl::StrCat("look up ", options_.url.host, ": ", error.empty() ? "no address" : error));
  for (auto& exchange : std::exchange(waiting_, {})) End(std::move(exchange), 0, status);
}

void HttpClient::Impl::OnTimeout(Exchange* exchange, absl::Duration timeout) {
  const auto late = [timeout](absl::string_view doing) {
    return absl::DeadlineExceededError(
        absl::StrCat("timed out after ", absl::FormatDuration(timeout), " ", doing));
  };
  if (exchange->connection != nullptr) return exchange->connection->Fail(late(exchange->connection->doing()));
  const auto at = std::find_if(waiting_.begin(), waiting_.end(),
                               [exchange](const auto& one) { return one.get() == exchange; });
  ALUDEL_CHECK(at != waiting_.end());
  std::shared_ptr<Exchange> taken = std::move(*at);
  waiting_.erase(at);
  End(std::move(taken), 0,
      late(look_up_ == nullptr ? "waiting for a connection" : "while looking up the host"));
}

void HttpClient::Impl::End(std::shared_ptr<Exchange> exchange, int status, const absl::Status& error) {
  ++ended_;
  exchange->on_end(status, error);
  exchange.reset();
  Dispatch();
}

HttpClient::HttpClient(HttpClientOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
HttpClient::~HttpClient() = default;
void HttpClient::Post(absl::string_view body, absl::Duration timeout, OnBody on_body, OnEnd on_end) {
  impl_->Post(body, timeout, std::move(on_body), std::move(on_end));
}
void HttpClient::Get(absl::Duration timeout, OnBody on_body, OnEnd on_end) {
  impl_->Get(timeout, std::move(on_body), std::move(on_end));
}
void HttpClient::RunFor(absl::Duration duration) { impl_->RunFor(duration); }
void HttpClient::EndAll(const absl::Status& error) { impl_->EndAll(error); }

}  // namespace aludel
