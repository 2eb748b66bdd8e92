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
#include "tests/server/http/raw_client.h"

namespace aludel {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kGet[] = "GET /echo HTTP/1.1\r\nHost: x\r\n\r\n";

// Serves /echo (answers "METHOD PATH BODY"), /number (answers "QUERY!"), /stream (three chunks), /large
// (three large ones) and /flood (as fast as it is let).
class HttpServerTest : public ::testing::Test {
 protected:
  void StartServer(HttpServerOptions options = {}) {
    auto server = HttpServer::Start(options, [this](HttpRequest request, HttpResponder responder) {
      Handle(std::move(request), std::move(responder));
    });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  void Handle(HttpRequest request, HttpResponder responder) {
    if (request.path == "/echo") {
      HttpResponse response;
      response.body = absl::StrCat(request.method, " ", request.path, " ", request.body);
      responder.Respond(std::move(response));
    } else if (request.path == "/number") {
      HttpResponse response;
      response.body = request.query + "!";
      responder.Respond(std::move(response));
    } else if (request.path == "/stream") {
      responder.StartStream(200, "text/event-stream", {});
      for (int i = 0; i < 3; ++i) responder.Write(absl::StrCat("data: ", i, "\n\n"));
      responder.Finish();
    } else if (request.path == "/flood") {
      responder.StartStream(200, "text/event-stream", {});
      const std::string block(64 << 10, 'x');
      while (responder.Write(block)) absl::SleepFor(absl::Milliseconds(1));
      flood_stopped_.Notify();
    } else if (request.path == "/large") {
      responder.StartStream(200, "text/event-stream", {});
      for (int i = 0; i < 3; ++i) {
        Event flushed;
        responder.Write(std::string(512 << 10, 'x'), [&] { flushed.Notify(); });
        flushed.Wait();
      }
      responder.Finish();
    }  // anything else is dropped
  }

  Event flood_stopped_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersSeveralRequestsOnOneConnection) {
  StartServer();
  RawClient client(server_->port());
  for (int i = 0; i < 3; ++i) {
    client.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi");
    EXPECT_THAT(client.ReadUntil("POST /echo hi"), StartsWith("HTTP/1.1 200 OK\r\n"));
  }
  EXPECT_EQ(server_->open_connections(), 1);
}

TEST_F(HttpServerTest, AnswersAtOnceWhatNeedNotWaitForAHandlerThread) {
  StartServer(
      {.handler_threads = 1, .at_once = [](const HttpRequest& request) { return request.path == "/echo"; }});
  RawClient busy(server_->port());
  busy.Send("GET /flood HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(busy.ReadUntil("\r\n"),
              StartsWith("HTTP/1.1 200"));  // the handler thread is taken from here on
  RawClient client(server_->port());
  for (int i = 0; i < 3; ++i) {
    client.Send(kGet);
    EXPECT_THAT(client.ReadUntil("GET /echo "), StartsWith("HTTP/1.1 200"));
  }
  busy.Close();
  EXPECT_TRUE(flood_stopped_.Wait());
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  StartServer();
  RawClient client(server_->port());
  client.Send(
      "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n"
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\na"
      "GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string all = client.ReadAll();
  EXPECT_TRUE(client.closed());
  EXPECT_LT(all.find("data: 2"), all.find("POST /echo a"));
  EXPECT_LT(all.find("POST /echo a"), all.find("GET /echo "));
}

TEST_F(HttpServerTest, StreamsInChunksAndKeepsTheConnection) {
  StartServer();
  RawClient client(server_->port());
  client.Send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string head = client.ReadUntil("\r\n\r\n");
  EXPECT_THAT(head, HasSubstr("Transfer-Encoding: chunked\r\n"));
  EXPECT_THAT(head, HasSubstr("Content-Type: text/event-stream\r\n"));
  EXPECT_THAT(head, HasSubstr("X-Accel-Buffering: no\r\n"));  // nginx passes it on as it comes
  EXPECT_THAT(head, HasSubstr("\r\nDate: "));
  EXPECT_EQ(client.ReadUntil("0\r\n\r\n"),
            "9\r\ndata: 0\n\n\r\n9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n");
  client.Send(kGet);
  EXPECT_THAT(client.ReadUntil("GET /echo "), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, StreamsToHttp10UntilItCloses) {
  StartServer();
  RawClient client(server_->port());
  client.Send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const std::string all = client.ReadAll();
  EXPECT_TRUE(client.closed());
  EXPECT_THAT(all, Not(HasSubstr("chunked")));
  EXPECT_THAT(all, EndsWith("\r\n\r\ndata: 0\n\ndata: 1\n\ndata: 2\n\n"));
}

TEST_F(HttpServerTest, AnswersHeadWithoutABody) {
  StartServer();
  RawClient client(server_->port());
  client.Send("HEAD /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string all = client.ReadAll();
  EXPECT_THAT(all, HasSubstr("Content-Length: 11\r\n"));
  EXPECT_THAT(all, EndsWith("\r\n\r\n"));
}

TEST_F(HttpServerTest, AsksForTheBodyThatAClientHoldsBack) {
  StartServer();
  RawClient client(server_->port());
  client.Send("POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("ok");
  EXPECT_THAT(client.ReadUntil("POST /echo ok"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, AsksForNothingThatHttp10DoesNotKnow) {
  StartServer();
  RawClient client(server_->port());
  client.Send("POST /echo HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nok");
  EXPECT_THAT(client.ReadAll(), AllOf(StartsWith("HTTP/1.0 200"), EndsWith("POST /echo ok")));
}

TEST_F(HttpServerTest, EndsARequestAtItsHeadWhereToldSo) {
  HttpServerOptions options;
  options.check_head = [](const HttpRequest& head) -> std::optional<HttpResponse> {
    EXPECT_THAT(head.peer, StartsWith("127.0.0.1:"));
    if (head.Header("x-let-me") == "in") return std::nullopt;
    HttpResponse response;
    response.status = 401;
    return response;
  };
  StartServer(options);
  RawClient stranger(server_->port());
  stranger.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nsome of it");
  EXPECT_THAT(stranger.ReadAll(), AllOf(StartsWith("HTTP/1.1 401"), HasSubstr("Connection: close\r\n")));
  EXPECT_TRUE(stranger.closed());
  RawClient guest(server_->port());
  guest.Send("POST /echo HTTP/1.1\r\nHost: x\r\nX-Let-Me: in\r\nContent-Length: 2\r\n\r\nhi");
  EXPECT_THAT(guest.ReadUntil("POST /echo hi"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, SaysOfWhatItRefusesAllThatItKnows) {
  HttpServerOptions options;
  options.limits = {.max_header_bytes = 1024, .max_body_bytes = 1000};
  options.header_timeout = absl::Milliseconds(500);
  options.refuse = [](const HttpRequest& request, const HttpError& error) {
    EXPECT_THAT(request.peer, StartsWith("127.0.0.1:"));
    HttpResponse response;
    response.status = error.status;
    response.body = absl::StrCat(request.method, " ", request.path, " ", request.Header("x-request-id"), "!");
    return response;
  };
  StartServer(options);
  const std::string head = "/echo HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine\r\n";
  const std::pair<std::string, std::string> cases[] = {
      {"POST " + head + "Content-Length: 2000\r\n\r\n", "413 POST /echo mine!"},
      {"POST " + head + "Transfer-Encoding: chunked\r\n\r\n800\r\n", "413 POST /echo mine!"},
      {"POST " + head + "Transfer-Encoding: gzip\r\n\r\n", "501 POST /echo mine!"},
      {"garbage\r\n\r\n", "400   !"},
      {"GET /ec", "408   !"},
      {"GET /dropped HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "500   !"},
  };
  for (const auto& [request, wanted] : cases) {
    RawClient client(server_->port());
    client.Send(request);
    EXPECT_THAT(client.ReadAll(),
                AllOf(StartsWith("HTTP/1.1 " + wanted.substr(0, 3)), EndsWith(wanted.substr(4))))
        << request;
  }
}

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

TEST_F(HttpServerTest, NamesTheAddressThatItCannotHave) {
  StartServer();
  HttpServerOptions options;
  options.port = server_->port();
  const auto second = HttpServer::Start(options, [](HttpRequest, HttpResponder) {});
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(absl::StrCat("127.0.0.1:", options.port)));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("in use"));
  options.address = "not an address";
  EXPECT_FALSE(HttpServer::Start(options, [](HttpRequest, HttpResponder) {}).ok());
}

// Reads the answers to `count` requests for /number?I, and says how many came in order before anything else.
int CountNumbers(RawClient& client, int count) {
  for (int i = 0; i < count; ++i) {
    const std::string wanted = absl::StrCat("\n", i, "!");
    if (!absl::EndsWith(client.ReadUntil("!"), wanted)) return i;
  }
  return count;
}

std::string Numbers(int count) {
  std::string requests;
  for (int i = 0; i < count; ++i) {
    absl::StrAppend(&requests, "GET /number?", i, " HTTP/1.1\r\nHost: x\r\n\r\n");
  }
  return requests;
}

TEST_F(HttpServerTest, AnswersEveryPipelinedRequestHoweverManyWait) {
  constexpr int kRequests = 5000;  // 190 kB
  for (const bool at_once : {false, true}) {
    StartServer({.at_once = [at_once](const HttpRequest&) { return at_once; }});
    RawClient client(server_->port());
    std::thread sender([&] { client.Send(Numbers(kRequests)); });
    EXPECT_EQ(CountNumbers(client, kRequests), kRequests);
    sender.join();
    client.Send(kGet);
    EXPECT_THAT(client.ReadUntil("GET /echo "), StartsWith("HTTP/1.1 200"));
  }
}

TEST_F(HttpServerTest, AnswersWhatAClientSentBeforeItEndedItsSide) {
  StartServer();
  for (const int requests : {1, 3, 2000}) {
    RawClient client(server_->port());
    std::thread sender([&] {
      client.Send(Numbers(requests) + "GET /ha");  // the half one goes without an answer
      shutdown(client.fd(), SHUT_WR);
    });
    EXPECT_EQ(CountNumbers(client, requests), requests);
    sender.join();
    EXPECT_EQ(client.ReadAll(), "");
    EXPECT_TRUE(client.closed());
  }
  RawClient refused(server_->port());
  refused.Send("garbage\r\n\r\n");
  shutdown(refused.fd(), SHUT_WR);
  EXPECT_THAT(refused.ReadAll(), StartsWith("HTTP/1.1 400"));
  EXPECT_TRUE(refused.closed());
}

// A pipeline that is deeper than its bound, when the server stops.
TEST_F(HttpServerTest, StopsInTheMiddleOfAPipeline) {
  for (int round = 0; round < 20; ++round) {
    StartServer({.io_threads = 1 + round % 2});
    std::vector<std::unique_ptr<RawClient>> clients;
    std::vector<std::thread> senders;
    for (int c = 0; c < 4; ++c) {
      clients.push_back(std::make_unique<RawClient>(server_->port()));
      senders.emplace_back([&client = *clients.back()] { client.Send(Numbers(4000)); });
    }
    EXPECT_GT(CountNumbers(*clients[0], 1 + round * 10), 0);
    server_->Shutdown(absl::Milliseconds(round % 3));
    EXPECT_EQ(server_->open_connections(), 0);
    for (std::thread& sender : senders) sender.join();
  }
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
