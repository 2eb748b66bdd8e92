#include <fcntl.h>
#include <grpcpp/alarm.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/gateway/gateway.h"
#include "tests/server/gateway/plain_models.h"
#include "tests/server/gateway/raw_client.h"

namespace aludel {
namespace {

using Clock = std::chrono::steady_clock;

// A decode server whose tokens carry the time they were sent, one every `interval`, `count` of them.
class PacedDecode : public v1::Decode::CallbackService {
 public:
  PacedDecode(std::chrono::milliseconds interval, int count) : interval_(interval), count_(count) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~PacedDecode() override { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string target() const { return absl::StrCat("127.0.0.1:", port_); }

  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context, const v1::DescribeRequest*,
                                     v1::DecodeDescription* reply) override {
    reply->set_protocol_version(kHandoffVersion);
    reply->set_served_model_name("chat");
    reply->set_max_context(64);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerWriteReactor<v1::GenerateEvent>* Generate(grpc::CallbackServerContext*,
                                                        const v1::GenerateRequest*) override {
    return new Stream(this);
  }

 private:
  class Stream : public grpc::ServerWriteReactor<v1::GenerateEvent> {
   public:
    explicit Stream(const PacedDecode* decode) : decode_(decode) {
      event_.mutable_started()->set_plan("local");
      StartWrite(&event_);
    }
    void OnWriteDone(bool ok) override {
      if (!ok || last_) return Finish(ok ? grpc::Status::OK : grpc::Status::CANCELLED);
      alarm_.Set(std::chrono::system_clock::now() + decode_->interval_, [this](bool) { Send(); });
    }
    void OnDone() override { delete this; }

   private:
    void Send() {
      last_ = sent_++ == decode_->count_;
      if (last_) {
        event_.mutable_finished()->set_reason("stop");
      } else {
        event_.mutable_token()->set_text(absl::StrCat("@", Clock::now().time_since_epoch().count(), ";"));
      }
      StartWrite(&event_);
    }
    const PacedDecode* const decode_;
    grpc::Alarm alarm_;
    v1::GenerateEvent event_;
    int sent_ = 0;
    bool last_ = false;
  };

  const std::chrono::milliseconds interval_;
  const int count_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

struct Client {
  std::unique_ptr<RawClient> connection;
  std::string unread;
  int tokens = 0;
  bool done = false;
};

// Takes the tokens out of what has come, and the time that each has travelled.
void Digest(Client* client, std::vector<double>* latency_ms) {
  const int64_t now = Clock::now().time_since_epoch().count();
  size_t from = 0;
  for (size_t at; (at = client->unread.find('@', from)) != std::string::npos;) {
    const size_t end = client->unread.find(';', at);
    if (end == std::string::npos) break;
    int64_t sent = 0;
    EXPECT_TRUE(absl::SimpleAtoi(client->unread.substr(at + 1, end - at - 1), &sent));
    latency_ms->push_back(static_cast<double>(now - sent) * 1e-6);
    ++client->tokens;
    from = end + 1;
  }
  client->done = client->unread.find("[DONE]", from) != std::string::npos;
  client->unread.erase(0, from);
}

double Quantile(std::vector<double>& sorted, double q) {
  return sorted.empty() ? 0 : sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1))];
}

// Streams held at once, one token per stream and interval, for about `seconds`. Larger runs by hand:
//   GATEWAY_STREAMS=2000 GATEWAY_STREAM_SECONDS=60 gateway_streams_test
TEST(GatewayStreams, HoldsManyAtOnceAndLosesNoToken) {
  const char* streams_text = std::getenv("GATEWAY_STREAMS");
  const char* seconds_text = std::getenv("GATEWAY_STREAM_SECONDS");
  const int streams = streams_text != nullptr ? std::atoi(streams_text) : 200;
  const int seconds = seconds_text != nullptr ? std::atoi(seconds_text) : 2;
  const std::chrono::milliseconds interval(streams > 500 ? 500 : 100);
  const int tokens = static_cast<int>(seconds * 1000 / interval.count());
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < static_cast<rlim_t>(3 * streams + 100)) {
    GTEST_SKIP() << "only " << limit.rlim_cur << " open files are allowed, want " << 3 * streams + 100;
  }

  PacedDecode decode(interval, tokens);
  const ServedModels models = PlainModels();
  Metrics metrics;
  Router router(
      {{.expectation = {.model = "chat", .tokenizer_fingerprint = ""}, .decode_targets = {decode.target()}}},
      {.probe_interval = absl::Milliseconds(50), .probe_timeout = absl::Seconds(5)}, &metrics);
  Access access(KeyLimits{});
  Gateway gateway({.completions = {.max_requests = 100000, .request_timeout = absl::Minutes(5)}}, &access,
                  &models, &router, &metrics);
  auto server = HttpServer::Start({}, [&](HttpRequest request, HttpResponder responder) {
    gateway.Handle(std::move(request), std::move(responder));
  });
  ASSERT_TRUE(server.ok());
  while (!router.State("chat").ready) absl::SleepFor(absl::Milliseconds(5));

  const int64_t resident_before = ResidentBytes();
  const std::string body =
      R"({"model": "chat", "stream": true, "messages": [{"role": "user", "content": "hi"}]})";
  const std::string request = absl::StrCat(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
  const int poll_fd = epoll_create1(0);
  std::vector<Client> clients(static_cast<size_t>(streams));
  size_t open = 0;
  int64_t resident = 0;
  std::vector<double> latency_ms;
  size_t done = 0;
  const auto start = Clock::now();
  const auto deadline = start + std::chrono::seconds(3 * seconds + 20);
  while (done < clients.size() && Clock::now() < deadline) {
    // Streams that start together would all speak at the same moment.
    if (open < clients.size() && Clock::now() >= start + open * interval / streams) {
      clients[open].connection = std::make_unique<RawClient>((*server)->port());
      ASSERT_TRUE(clients[open].connection->Send(request));
      epoll_event event = {.events = EPOLLIN, .data = {.u64 = open}};
      ASSERT_EQ(epoll_ctl(poll_fd, EPOLL_CTL_ADD, clients[open].connection->fd(), &event), 0);
      ++open;
    }
    epoll_event events[64];
    const int ready = epoll_wait(poll_fd, events, 64, open < clients.size() ? 0 : 100);
    for (int i = 0; i < ready; ++i) {
      Client& client = clients[events[i].data.u64];
      char bytes[16384];
      const ssize_t n = recv(client.connection->fd(), bytes, sizeof(bytes), MSG_DONTWAIT);
      ASSERT_NE(n, 0) << "the gateway closed a stream";
      if (n < 0) continue;
      client.unread.append(bytes, static_cast<size_t>(n));
      const bool was_done = client.done;
      Digest(&client, &latency_ms);
      done += client.done && !was_done;
    }
    if (resident == 0 && open == clients.size() && latency_ms.size() > 2 * clients.size()) {
      resident = ResidentBytes();
    }
  }
  close(poll_fd);
  EXPECT_EQ(done, clients.size());
  for (const Client& client : clients) EXPECT_EQ(client.tokens, tokens);
  std::sort(latency_ms.begin(), latency_ms.end());
  std::printf(
      "streams %d, tokens %zu, decode server to client: p50 %.2f ms, p99 %.2f ms, max %.2f ms; %.1f KiB "
      "resident per stream, gRPC server and client included\n",
      streams, latency_ms.size(), Quantile(latency_ms, .5), Quantile(latency_ms, .99),
      Quantile(latency_ms, 1), static_cast<double>(resident - resident_before) / 1024.0 / streams);
  clients.clear();
}

}  // namespace
}  // namespace aludel
