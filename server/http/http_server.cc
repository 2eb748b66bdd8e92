#include "server/http/http_server.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <future>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/http/http_connection.h"
#include "server/http/http_server_state.h"
#include "server/http/tls_context.h"

namespace aludel {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Pause after accept() ran out of descriptors: closing connections is what frees them.
constexpr std::chrono::milliseconds kAcceptPause{50};
// How often Shutdown looks whether running exchanges have ended.
constexpr std::chrono::milliseconds kDrainPoll{5};

}  // namespace

class HttpServer::Impl {
 public:
  Impl(const HttpServerOptions& options, Handler handler)
      : state_(std::make_shared<HttpServerState>(options, std::move(handler))) {
    for (int i = 0; i < std::max(1, options.io_threads); ++i) {
      state_->loops.push_back(std::make_unique<HttpLoop>());
      guards_.push_back(asio::make_work_guard(state_->loops.back()->context));
    }
    acceptor_.emplace(state_->loops[0]->context);
    accept_timer_.emplace(state_->loops[0]->context);
  }

  absl::Status Listen() {
    const HttpServerOptions& options = state_->options;
    const std::string where = absl::StrCat(options.address, ":", options.port);
    error_code ec;
    const auto address = asio::ip::make_address(options.address, ec);
    if (ec) return absl::InvalidArgumentError(absl::StrCat("listen address ", where, ": ", ec.message()));
    const tcp::endpoint endpoint(address, options.port);
    acceptor_->open(endpoint.protocol(), ec);
    if (!ec) acceptor_->set_option(tcp::acceptor::reuse_address(true), ec);
    if (!ec) acceptor_->bind(endpoint, ec);
    if (!ec) acceptor_->listen(tcp::acceptor::max_listen_connections, ec);
    if (!ec) port_ = acceptor_->local_endpoint(ec).port();
    if (ec) return absl::UnavailableError(absl::StrCat("cannot listen on ", where, ": ", ec.message()));
    return absl::OkStatus();
  }

  void Run() {
    state_->handler_pool = std::make_unique<asio::thread_pool>(std::max(1, state_->options.handler_threads));
    Accept();
    for (auto& loop : state_->loops) {
      loop->thread = std::thread([&context = loop->context] { context.run(); });
    }
  }

  void Shutdown(absl::Duration grace) {
    if (std::exchange(shut_down_, true)) return;
    OnEveryLoop([this](HttpLoop* loop) {
      loop->draining = true;
      if (loop == state_->loops[0].get()) {
        error_code ec;
        acceptor_->close(ec);
        accept_timer_->cancel();
      }
      // Closing removes from the set, so walk over a copy.
      for (const auto& connection : std::vector(loop->connections.begin(), loop->connections.end())) {
        connection->Drain();
      }
    });
    const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(grace);
    while (state_->open_connections.load() > 0 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(kDrainPoll);
    }
    OnEveryLoop([](HttpLoop* loop) {
      for (const auto& connection : std::vector(loop->connections.begin(), loop->connections.end())) {
        connection->Close();
      }
    });
    state_->handler_pool->join();
    guards_.clear();
    // With every socket and timer closed the loops run out of work.
    for (auto& loop : state_->loops) loop->thread.join();
  }

  absl::Duration Silence() {
    const int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
    int64_t longest = 0;
    pings_.resize(state_->loops.size());
    for (size_t i = 0; i < pings_.size(); ++i) {
      if (pings_[i] == nullptr) pings_[i] = std::make_shared<std::atomic<int64_t>>(0);
      const int64_t asked = pings_[i]->load();
      if (asked != 0) {
        longest = std::max(longest, now - asked);
        continue;
      }
      pings_[i]->store(now);
      asio::post(state_->loops[i]->context, [ping = pings_[i]] { ping->store(0); });
    }
    return absl::FromChrono(std::chrono::steady_clock::duration(longest));
  }

  uint16_t port() const { return port_; }
  int open_connections() const { return state_->open_connections.load(std::memory_order_relaxed); }

 private:
  template <typename F>
  void OnEveryLoop(F f) {
    for (auto& loop : state_->loops) {
      std::promise<void> done;
      asio::post(loop->context, [&] {
        f(loop.get());
        done.set_value();
      });
      done.get_future().wait();
    }
  }

  void Accept() {
    HttpLoop* loop = state_->loops[next_loop_++ % state_->loops.size()].get();
    acceptor_->async_accept(loop->context, [this, loop](const error_code& ec, tcp::socket socket) {
      if (!acceptor_->is_open()) return;
      if (ec) {
        accept_timer_->expires_after(kAcceptPause);
        accept_timer_->async_wait([this](const error_code& cancelled) {
          if (!cancelled) Accept();
        });
        return;
      }
      Admit(std::move(socket), loop);
      Accept();
    });
  }

  void Admit(tcp::socket socket, HttpLoop* loop) {
    if (state_->open_connections.fetch_add(1) >= state_->options.max_connections) {
      state_->open_connections.fetch_sub(1);
      return RefuseConnection(HttpSocket(std::move(socket), /*tls=*/nullptr));
    }
    const TlsContext* tls = state_->options.tls;
    auto connection = std::make_shared<HttpConnection>(
        HttpSocket(std::move(socket), tls == nullptr ? nullptr : tls->current()), state_, loop);
    asio::post(loop->context, [connection = std::move(connection)] { connection->Start(); });
  }

  void RefuseConnection(HttpSocket socket) {
    HttpRequest unread;
    unread.peer = socket.Peer();
    HttpResponse response = state_->Refusal(unread, {503, "too many connections are open", 1});
    if (state_->options.tls != nullptr) return;  // no client could read it
    response.headers.insert(response.headers.end(), {{"Content-Type", response.content_type},
                                                     {"Content-Length", absl::StrCat(response.body.size())},
                                                     {"Connection", "close"}});
    const std::string bytes = FormatResponseHead(11, response.status, response.headers) + response.body;
    // A fresh socket has room for this; if not, the client sees a closed connection, which says the same.
    size_t written = 0;
    socket.Write(bytes.data(), bytes.size(), &written);
  }

  const std::shared_ptr<HttpServerState> state_;
  std::vector<asio::executor_work_guard<asio::io_context::executor_type>> guards_;
  std::optional<tcp::acceptor> acceptor_;  // on the first loop
  std::optional<asio::steady_timer> accept_timer_;
  std::vector<std::shared_ptr<std::atomic<int64_t>>> pings_;  // when each loop was asked; 0: it has answered
  size_t next_loop_ = 0;
  uint16_t port_ = 0;
  bool shut_down_ = false;
};

absl::StatusOr<HttpServerOptions> ListenOn(absl::string_view listen) {
  HttpServerOptions options;
  const size_t colon = listen.rfind(':');
  uint32_t port = 0;
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(listen.substr(colon + 1), &port) ||
      port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("listen: found \"", listen, "\", want address:port"));
  }
  absl::string_view address = listen.substr(0, colon);
  if (absl::ConsumePrefix(&address, "[")) absl::ConsumeSuffix(&address, "]");
  options.address = address == "localhost" ? "127.0.0.1" : std::string(address);
  options.port = static_cast<uint16_t>(port);
  return options;
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

// NOLINTNEXTLINE(bugprone-exception-escape): see the header
HttpServer::~HttpServer() { impl_->Shutdown(absl::ZeroDuration()); }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options,
                                                              Handler handler) {
  auto impl = std::make_unique<Impl>(options, std::move(handler));
  if (absl::Status status = impl->Listen(); !status.ok()) return status;
  impl->Run();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

absl::Duration HttpServer::Silence() { return impl_->Silence(); }

uint16_t HttpServer::port() const { return impl_->port(); }
int HttpServer::open_connections() const { return impl_->open_connections(); }
void HttpServer::Shutdown(absl::Duration grace) { impl_->Shutdown(grace); }

}  // namespace aludel
