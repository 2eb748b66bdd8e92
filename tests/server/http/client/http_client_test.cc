// The client against servers that do as they are told.
#include "server/http/client/http_client.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/http/http_server.h"
#include "server/http/tls_context.h"
#include "tests/server/http/http_client_fixture.h"
#include "tests/server/http/make_certificate.h"

namespace aludel::http_client_testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(HttpClient, SendsAWholeRequest) {
  std::promise<std::string> request;
  ScriptedServer server({[&](Peer* peer) {
    request.set_value(peer->ReadRequest());
    peer->Send(kFine);
  }});
  HttpClient client({.url = server.url(), .headers = {{"Authorization", "Bearer key"}}});
  EXPECT_EQ(Ask(&client, "{\"a\": 1}").status, 200);
  EXPECT_EQ(request.get_future().get(),
            absl::StrCat("POST /v1 HTTP/1.1\r\nHost: 127.0.0.1:", server.url().port,
                         "\r\nAuthorization: Bearer key\r\nContent-Type: application/json\r\n"
                         "Content-Length: 8\r\n\r\n{\"a\": 1}"));
}

TEST(HttpClient, GetsWithoutABody) {
  std::promise<std::string> request;
  ScriptedServer server({[&](Peer* peer) {
    request.set_value(peer->ReadRequest());
    peer->Send(kFine);
  }});
  HttpClient client({.url = server.url()});
  Result result;
  client.Get(
      absl::Seconds(10),
      [&result](absl::string_view bytes) {
        result.body.append(bytes.data(), bytes.size());
        return absl::OkStatus();
      },
      [&result](int status, const absl::Status& error) {
        result.ended = true;
        result.status = status;
        result.error = error;
      });
  while (!result.ended) client.RunFor(absl::Seconds(1));
  EXPECT_EQ(result.error, absl::OkStatus());
  EXPECT_EQ(result.body, "fine");
  EXPECT_EQ(request.get_future().get(),
            absl::StrCat("GET /v1 HTTP/1.1\r\nHost: 127.0.0.1:", server.url().port, "\r\n\r\n"));
}

TEST(HttpClient, TakesEveryFraming) {
  for (const std::string answer : {
           "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine",
           "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nfi\r\n2\r\nne\r\n0\r\nA: b\r\n\r\n",
           "HTTP/1.0 200 OK\r\n\r\nfine",
           "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"
           "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine",
       }) {
    const Result result = AnsweredWith(answer);
    EXPECT_TRUE(result.error.ok()) << result.error << "\n" << answer;
    EXPECT_EQ(result.status, 200);
    EXPECT_EQ(result.body, "fine") << answer;
  }
  const Result empty = AnsweredWith("HTTP/1.1 204 No Content\r\n\r\n");
  EXPECT_TRUE(empty.error.ok());
  EXPECT_EQ(empty.status, 204);
  EXPECT_EQ(AnsweredWith("HTTP/1.1 429 Slow\r\nContent-Length: 2\r\n\r\nno").status, 429);
}

TEST(HttpClient, HandsOutPiecesAsTheyArrive) {
  std::promise<void> first;
  ScriptedServer server({[&](Peer* peer) {
    peer->ReadRequest();
    peer->Send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n");
    first.get_future().wait();  // the rest comes when this has been seen
    peer->Send("3\r\ntw");
    peer->Send("o\r\n0\r\n\r\n");
  }});
  HttpClient client({.url = server.url()});
  std::string body;
  bool ended = false;
  client.Post(
      "{}", absl::Seconds(10),
      [&](absl::string_view bytes) {
        if (body.empty()) first.set_value();
        absl::StrAppend(&body, bytes);
        return absl::OkStatus();
      },
      [&](int, const absl::Status& error) { ended = error.ok(); });
  client.RunFor(absl::Seconds(10));
  EXPECT_TRUE(ended);
  EXPECT_EQ(body, "onetwo");
}

TEST(HttpClient, KeepsItsConnection) {
  ScriptedServer server({Answers({kFine, kFine, kFine})});  // accepts one only
  HttpClient client({.url = server.url()});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Ask(&client).body, "fine");
}

TEST(HttpClient, SendsAgainWhereAKeptConnectionHasEnded) {
  // Closed in between, then under the request.
  ScriptedServer server({Answers({kFine}),
                         [](Peer* peer) {
                           peer->ReadRequest();
                           peer->Send(kFine);
                           peer->ReadRequest();
                         },
                         Answers({kFine, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfi"})});
  HttpClient client({.url = server.url()});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Ask(&client).body, "fine") << i;
    absl::SleepFor(absl::Milliseconds(20));
  }
  const Result begun = Ask(&client);  // an answer has begun: not again
  EXPECT_EQ(begun.message(), "the connection ended in the middle of the answer");
  EXPECT_EQ(begun.status, 200);
}

TEST(HttpClient, DoesNotKeepWhatTheServerClosesOrTalksOn) {
  for (const std::string answer :
       {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nfine",
        "HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nfine",
        "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfineHTTP/1.1 200 OK\r\n\r\n"}) {
    ScriptedServer server({AnswersAndStays(answer), Answers({kFine})});
    HttpClient client({.url = server.url()});
    EXPECT_EQ(Ask(&client).body, "fine") << answer;
    EXPECT_EQ(Ask(&client).body, "fine") << answer;
  }
}

TEST(HttpClient, SaysWhatWasWrong) {
  EXPECT_EQ(AnsweredWith("").message(), "the connection ended without an answer");
  for (const std::string answer :
       {"HTTP/1.1 200 OK\r\nContent-Le", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfine",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfine\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfine"}) {
    EXPECT_EQ(AnsweredWith(answer).message(), "the connection ended in the middle of the answer") << answer;
  }
  EXPECT_THAT(AnsweredWith("SSH-2.0-x\r\n\r\n").message(), StartsWith("malformed HTTP answer: "));
  EXPECT_THAT(AnsweredWith("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n").message(),
              StartsWith("malformed HTTP answer: "));
  EXPECT_EQ(AnsweredWith(absl::StrCat("HTTP/1.1 200 OK\r\nA: ", std::string(20000, 'a'))).message(),
            "the answer's header is longer than 16384 bytes");
  EXPECT_EQ(AnsweredWith(absl::StrCat("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;",
                                      std::string(200000, 'a')))
                .message(),
            "the answer's header is longer than 16384 bytes");

  HttpUrl url = ParseHttpUrl("http://127.0.0.1:1/").value();
  EXPECT_EQ(AskOnce(url).message(), "connect to 127.0.0.1:1: Connection refused");
  url.host = std::string(64, 'a') + ".invalid";  // no name system knows so long a label
  EXPECT_THAT(AskOnce(url).message(), StartsWith(absl::StrCat("look up ", url.host, ": ")));
}

TEST(HttpClient, BoundsAHeaderThatIsCutJustBehindItsLines) {
  ScriptedServer server({[](Peer* peer) {
    peer->ReadRequest();
    peer->Send("HTTP/1.1 200 OK\r\nA");
    for (int i = 0; i < 10000; ++i) peer->Send(": b\r\nA");
    peer->WaitForEnd();
  }});
  EXPECT_EQ(AskOnce(server.url(), absl::Seconds(5)).message(),
            "the answer's header is longer than 16384 bytes");
}

TEST(HttpClient, EndsWithTheErrorOfItsReader) {
  ScriptedServer server({AnswersAndStays(kFine), Answers({kFine})});
  HttpClient client({.url = server.url()});
  Result result;
  client.Post(
      "{}", absl::Seconds(10), [](absl::string_view) { return absl::AbortedError("no more"); },
      [&](int status, const absl::Status& error) {
        result = {.ended = true, .status = status, .error = error};
      });
  while (!result.ended) client.RunFor(absl::Seconds(1));
  EXPECT_EQ(result.error, absl::AbortedError("no more"));
  EXPECT_EQ(result.status, 200);
  EXPECT_EQ(Ask(&client).body, "fine");
}

TEST(HttpClient, TimesOutSayingWhatWasUnderWay) {
  constexpr absl::Duration kTimeout = absl::Milliseconds(100);
  ScriptedServer silent({[](Peer* peer) { peer->WaitForEnd(); }});
  EXPECT_EQ(AskOnce(silent.url(), kTimeout).message(), "timed out after 100ms waiting for an answer");
  ScriptedServer slow(
      {AnswersAndStays("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfine"), Answers({kFine})});
  HttpClient client({.url = slow.url()});
  const Result cut = Ask(&client, "{}", kTimeout);
  EXPECT_EQ(cut.message(), "timed out after 100ms in the middle of the answer");
  EXPECT_EQ(cut.status, 200);
  EXPECT_EQ(cut.body, "fine");
  EXPECT_EQ(Ask(&client).body, "fine");  // on another connection

  HttpUrl tls = ParseHttpUrl("https://127.0.0.1/").value();
  ScriptedServer no_tls({[](Peer* peer) { peer->WaitForEnd(); }});
  tls.port = no_tls.url().port;
  EXPECT_EQ(AskOnce(tls, kTimeout).message(), "timed out after 100ms in the TLS handshake");
}

TEST(HttpClient, WaitsForAConnection) {
  ScriptedServer server({[](Peer* peer) {
    peer->ReadRequest();
    absl::SleepFor(absl::Milliseconds(300));
    peer->Send(kFine);
    peer->ReadRequest();
    peer->Send(kFine);
  }});
  HttpClient client({.url = server.url()});
  Result first, second, third;
  Post(&client, &first);
  Post(&client, &second, "{}", absl::Milliseconds(100));
  Post(&client, &third);
  while (!third.ended) client.RunFor(absl::Seconds(1));
  EXPECT_EQ(first.body, "fine");
  EXPECT_EQ(second.message(), "timed out after 100ms waiting for a connection");
  EXPECT_EQ(third.body, "fine");
}

TEST(HttpClient, EndsAll) {
  ScriptedServer server({[](Peer* peer) { peer->WaitForEnd(); }});
  HttpClient client({.url = server.url()});
  Result first, second;
  Post(&client, &first);
  Post(&client, &second);
  client.RunFor(absl::Milliseconds(50));
  client.EndAll(absl::CancelledError("stopped"));
  EXPECT_EQ(first.message(), "stopped");
  EXPECT_EQ(second.message(), "stopped");
}

TEST(HttpClient, ReadsAnAnswerThatComesBeforeTheRequestHasGone) {
  ScriptedServer server({[](Peer* peer) {
    peer->Send("HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig");
    absl::SleepFor(absl::Milliseconds(200));
    peer->WaitForEnd();
  }});
  HttpClient client({.url = server.url()});
  const Result result = Ask(&client, std::string(32 << 20, 'x'));
  EXPECT_EQ(result.error, absl::OkStatus());
  EXPECT_EQ(result.status, 413);
  EXPECT_EQ(result.body, "big");
}

TEST(HttpClient, ConnectsToIpv6) {
  ScriptedServer server({Answers({kFine})}, /*ipv6=*/true);
  if (!server.listens()) GTEST_SKIP() << "no IPv6 loopback";
  EXPECT_EQ(AskOnce(server.url()).body, "fine");
}

}  // namespace
}  // namespace aludel::http_client_testing
