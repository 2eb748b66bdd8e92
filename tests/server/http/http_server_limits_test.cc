#include "server/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <memory>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/server/gateway/event.h"
#include "tests/server/http/http_server_fixture.h"
#include "tests/server/http/raw_client.h"

namespace aludel {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(HttpServerTest, KeepsNoBuffersOfAConnectionThatHasBecomeIdle) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's allocator does not count";
#endif
  StartServer();
  const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 16; ++i) {
    clients.push_back(std::make_unique<RawClient>(server_->port()));
    clients.back()->Send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
    // Past the client's own buffer, which would count.
    std::string tail;
    for (char bytes[4096]; !absl::EndsWith(tail, "\r\n0\r\n\r\n");) {
      const ssize_t n = recv(clients.back()->fd(), bytes, sizeof(bytes), 0);
      ASSERT_GT(n, 0);
      tail.append(bytes, n);
      tail.erase(0, tail.size() - std::min<size_t>(tail.size(), 16));
    }
    clients.back()->Send(kGet);
    clients.back()->ReadUntil("GET /echo ");
  }
  EXPECT_EQ(server_->open_connections(), 16);
  EXPECT_LT(mallinfo2().uordblks + mallinfo2().hblkhd, before + (2 << 20));
}

TEST_F(HttpServerTest, AnswersMalformedAndOversizedRequestsAndCloses) {
  HttpServerOptions options;
  options.limits = {.max_header_bytes = 1024, .max_body_bytes = 1000};
  StartServer(options);
  const std::pair<std::string, std::string> cases[] = {
      {"garbage\r\n\r\n", "400"},
      {absl::StrCat("GET / HTTP/1.1\r\nHost: x\r\nX: ", std::string(4000, 'x'), "\r\n\r\n"), "431"},
      {absl::StrCat("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n", std::string(100000, 'x')),
       "413"},
  };
  for (const auto& [request, status] : cases) {
    RawClient client(server_->port());
    client.Send(request);
    const std::string answer = client.ReadUntil("\r\n\r\n");
    EXPECT_THAT(answer, StartsWith(absl::StrCat("HTTP/1.1 ", status)));
    EXPECT_THAT(answer, HasSubstr("Connection: close"));
    client.ReadAll();
    EXPECT_TRUE(client.closed());
  }
}

TEST_F(HttpServerTest, ShedsClientsThatSendTooSlowly) {
  HttpServerOptions options;
  options.header_timeout = absl::Milliseconds(500);
  options.body_timeout = absl::Milliseconds(500);
  options.idle_timeout = absl::Milliseconds(500);
  StartServer(options);
  RawClient slow_header(server_->port()), slow_body(server_->port()), silent(server_->port());
  slow_body.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n");
  // A byte now and then must not buy more time: they come until there is an answer.
  std::string header_answer, body_answer;
  for (int i = 0; i < 50 && (header_answer.empty() || body_answer.empty()); ++i) {
    slow_header.Send("G");
    slow_body.Send("x");
    header_answer += slow_header.ReadUntil("\r\n\r\n", absl::Milliseconds(50));
    body_answer += slow_body.ReadUntil("\r\n\r\n", absl::Milliseconds(50));
  }
  EXPECT_THAT(header_answer, StartsWith("HTTP/1.1 408"));
  EXPECT_THAT(body_answer, StartsWith("HTTP/1.1 408"));
  EXPECT_EQ(silent.ReadAll(), "");
  EXPECT_TRUE(silent.closed());
  RawClient idle(server_->port());
  idle.Send(kGet);
  EXPECT_THAT(idle.ReadAll(), EndsWith("GET /echo "));
  EXPECT_TRUE(idle.closed());
}

TEST_F(HttpServerTest, TellsTheHandlerThatItsClientLeft) {
  for (const char* query : {"", "?silent"}) {
    auto holding = std::make_shared<Event>();
    auto gone = std::make_shared<Event>();
    auto server = HttpServer::Start({}, [=](HttpRequest request, HttpResponder responder) {
      responder.OnDisconnect([gone] { gone->Notify(); });
      if (request.query != "silent") responder.StartStream(200, "text/event-stream", {});
      holding->Notify();
      while (!gone->WaitFor(std::chrono::milliseconds(2))) responder.Write(".");
      EXPECT_FALSE(responder.Write("."));
    });
    ASSERT_TRUE(server.ok());
    RawClient client((*server)->port());
    client.Send(absl::StrCat("GET /hold", query, " HTTP/1.1\r\nHost: x\r\n\r\n"));
    holding->Wait();
    const absl::Time left = absl::Now();
    client.Close();
    ASSERT_TRUE(gone->Wait());
    EXPECT_LT(absl::Now() - left, absl::Seconds(2));  // milliseconds on a machine that is not busy
  }
}

TEST_F(HttpServerTest, CutsOffAReaderThatIsSlowerThanItsStream) {
  HttpServerOptions options;
  options.max_queued_bytes = 256 << 10;
  StartServer(options);
  RawClient client(server_->port(), /*receive_buffer_bytes=*/4096);
  client.Send("GET /flood HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(flood_stopped_.Wait());
}

TEST_F(HttpServerTest, WritesAPartThatIsLargerThanTheQueueWhole) {
  HttpServerOptions options;
  options.max_queued_bytes = 64 << 10;
  auto server = HttpServer::Start(options, [](const HttpRequest&, HttpResponder responder) {
    responder.StartStream(200, "text/event-stream", {});
    EXPECT_TRUE(responder.Write("small"));
    EXPECT_TRUE(responder.Write(std::string(4 << 20, 'x')));
    EXPECT_TRUE(responder.Write("end"));
    responder.Finish();
  });
  ASSERT_TRUE(server.ok());
  RawClient client((*server)->port(), /*receive_buffer_bytes=*/4096);
  client.Send(kGet);
  const std::string answer = client.ReadUntil("\r\n0\r\n\r\n", absl::Seconds(20));
  EXPECT_GT(answer.size(), 4 << 20);
  EXPECT_TRUE(absl::EndsWith(answer, "3\r\nend\r\n0\r\n\r\n"));
}

TEST_F(HttpServerTest, ClosesAReaderThatStopsReading) {
  HttpServerOptions options;
  options.write_timeout = absl::Milliseconds(200);
  options.max_queued_bytes = 1 << 30;
  StartServer(options);
  RawClient client(server_->port(), /*receive_buffer_bytes=*/4096);
  client.Send("GET /flood HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(flood_stopped_.Wait());
}

TEST_F(HttpServerTest, AnswersForAHandlerThatDropsItsRequest) {
  StartServer();
  RawClient client(server_->port());
  client.Send("GET /dropped HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("dropped\n"), StartsWith("HTTP/1.1 500"));
}

TEST_F(HttpServerTest, RefusesConnectionsBeyondTheCapAndServesAgainAfterwards) {
  HttpServerOptions options;
  options.max_connections = 2;
  StartServer(options);
  {
    RawClient first(server_->port()), second(server_->port());
    first.Send(kGet);
    second.Send(kGet);
    first.ReadUntil("GET /echo ");
    second.ReadUntil("GET /echo ");
    RawClient third(server_->port());
    EXPECT_THAT(third.ReadAll(), StartsWith("HTTP/1.1 503"));
  }
  std::string answer;
  for (int i = 0; i < 100 && !absl::StartsWith(answer, "HTTP/1.1 200"); ++i) {
    RawClient again(server_->port());
    again.Send(kGet);
    answer = again.ReadUntil("GET /echo ");
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, LetsARunningExchangeEndBeforeItShutsDown) {
  Event started, release;
  auto server = HttpServer::Start({}, [&](HttpRequest, HttpResponder responder) {
    started.Notify();
    release.Wait();
    HttpResponse response;
    response.body = "late";
    responder.Respond(std::move(response));
  });
  ASSERT_TRUE(server.ok());
  const uint16_t port = (*server)->port();
  RawClient idle(port), busy(port);
  busy.Send(kGet);
  started.Wait();
  std::thread shutdown([&] { (*server)->Shutdown(absl::Seconds(10)); });
  EXPECT_EQ(idle.ReadAll(), "");
  EXPECT_TRUE(idle.closed());
  release.Notify();
  EXPECT_THAT(busy.ReadAll(), EndsWith("late"));
  busy.Close();
  shutdown.join();
  EXPECT_EQ((*server)->open_connections(), 0);
}

TEST_F(HttpServerTest, RefusesBodiesThatDoNotFitIntoMemoryTogether) {
  StartServer({.max_total_body_bytes = 1 << 20});
  const std::string head =
      absl::StrCat("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: ", 700 << 10, "\r\n\r\n");
  RawClient first(server_->port()), second(server_->port());
  first.Send(head + std::string(600 << 10, 'a'));
  absl::SleepFor(absl::Milliseconds(100));  // until it has been read
  second.Send(head + std::string(600 << 10, 'b'));
  EXPECT_THAT(second.ReadUntil("\r\n\r\n"), AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("Retry-After: 1\r\n"),
                                                  HasSubstr("Connection: close\r\n")));
  first.Send(std::string(100 << 10, 'a'));
  EXPECT_THAT(first.ReadUntil("aaa"), StartsWith("HTTP/1.1 200"));
  for (int i = 0; i < 5; ++i) {  // what has been answered, refused or left takes no room
    RawClient(server_->port()).Send(head + std::string(600 << 10, 'c'));
    RawClient again(server_->port());
    std::string answer;
    for (int tries = 0; tries < 100 && !absl::StartsWith(answer, "HTTP/1.1 200"); ++tries) {
      RawClient client(server_->port());
      client.Send(head + std::string(700 << 10, 'd'));
      answer = client.ReadUntil("ddd");
    }
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  }
}

TEST_F(HttpServerTest, ReadsOfARefusedClientOnlySoMuch) {
  StartServer();
  RawClient client(server_->port());
  const absl::Time begin = absl::Now();
  client.Send("garbage\r\n\r\n");
  const std::string more(1 << 20, 'x');
  int sent = 0;
  while (sent < 1000 && client.Send(more)) ++sent;
  EXPECT_LT(sent, 100);  // what sockets buffer, and a little
  EXPECT_LT(absl::Now() - begin, absl::Seconds(2));
}

double CpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

TEST_F(HttpServerTest, WaitsQuietlyForADescriptor) {
  StartServer();
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const int next = dup(0);  // the lowest that is free: the client's, and then there is none for the server
  close(next);
  rlimit tight = limit;
  tight.rlim_cur = static_cast<rlim_t>(next) + 1;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  RawClient client(server_->port());
  client.Send(kGet);
  const double before = CpuSeconds();
  EXPECT_EQ(client.ReadUntil("GET /echo ", absl::Milliseconds(500)), "");
  EXPECT_LT(CpuSeconds() - before, 0.1);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_THAT(client.ReadUntil("GET /echo "), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, ServesManyClientsAtOnce) {
  HttpServerOptions options;
  options.io_threads = 2;
  StartServer(options);
  std::atomic<int> good{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 8; ++c) {
    clients.emplace_back([&] {
      RawClient client(server_->port());
      for (int i = 0; i < 100; ++i) {
        client.Send(i % 2 == 0 ? kGet : "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
        const std::string answer = client.ReadUntil(i % 2 == 0 ? "GET /echo " : "0\r\n\r\n");
        good += absl::StartsWith(answer, "HTTP/1.1 200");
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(good, 800);
}

}  // namespace
}  // namespace aludel
