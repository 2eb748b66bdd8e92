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

}  // namespace
}  // namespace aludel
