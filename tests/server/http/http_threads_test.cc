#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/http/http_server.h"
#include "tests/server/http/raw_client.h"

namespace aludel {
namespace {

TEST(HttpThreads, SaysForHowLongAnIoThreadStandsStill) {
  absl::Notification reached;
  absl::Notification let_go;
  HttpServerOptions options;
  options.io_threads = 2;
  options.at_once = [](const HttpRequest&) { return true; };  // handled on the I/O thread
  const auto server = HttpServer::Start(options, [&](HttpRequest, HttpResponder responder) {
                        reached.Notify();
                        let_go.WaitForNotification();
                        responder.Respond({});
                      }).value();
  RawClient client(server->port());
  EXPECT_EQ(server->Silence(), absl::ZeroDuration());
  client.Send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  reached.WaitForNotification();
  const absl::Time until = absl::Now() + absl::Minutes(1);
  while (server->Silence() < absl::Milliseconds(50) && absl::Now() < until) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_GE(server->Silence(), absl::Milliseconds(50));
  let_go.Notify();
  client.ReadAll(absl::Seconds(30));
  bool moves = false;
  while (!moves && absl::Now() < until) moves = server->Silence() == absl::ZeroDuration();
  EXPECT_TRUE(moves);
}

}  // namespace
}  // namespace aludel
