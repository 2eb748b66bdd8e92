#include <atomic>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/gateway/gateway.h"
#include "tests/server/gateway/plain_models.h"
#include "tests/server/http/raw_client.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// A gateway whose handlers can be made to stand still: admitting a request asks for the time.
class GatewayThreads : public ::testing::Test {
 protected:
  std::string Send(const std::string& method, const std::string& path, const std::string& body = "") {
    RawClient client(server_->port());
    client.Send(absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n",
                             "Content-Length: ", body.size(), "\r\n\r\n", body));
    return client.ReadAll(absl::Seconds(30));
  }
  absl::Duration Silence(const std::string& what) {
    for (const Watchdog::Check& check : gateway_.Checks()) {
      if (check.what == what) return check.silence();
    }
    ADD_FAILURE() << what;
    return absl::ZeroDuration();
  }

  std::atomic<bool> hold_ = false;
  absl::Notification let_go_;
  absl::Status health_;  // written while nothing is asked
  ServedModels models_ = PlainModels();
  Metrics metrics_;
  Access access_{KeyLimits{}, [this] {
                   if (hold_) let_go_.WaitForNotification();
                   return absl::Now();
                 }};
  Router router_{{}, {}, &metrics_};
  Gateway gateway_{{.health = [this] { return health_; }}, &access_, &models_, &router_, &metrics_};
  std::unique_ptr<HttpServer> server_ = gateway_.Listen({}).value();
};

TEST_F(GatewayThreads, SaysForHowLongAHandlerStandsStill) {
  EXPECT_EQ(Silence("a handler thread"), absl::ZeroDuration());
  hold_ = true;
  RawClient client(server_->port());
  client.Send("POST /tokenize HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}");
  const absl::Time until = absl::Now() + absl::Minutes(1);
  while (Silence("a handler thread") < absl::Milliseconds(20) && absl::Now() < until) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_GE(Silence("a handler thread"), absl::Milliseconds(20));
  // The I/O threads do not stand still with it.
  server_->Silence();
  absl::SleepFor(absl::Milliseconds(20));
  bool moves = false;
  while (!moves && absl::Now() < until) moves = server_->Silence() == absl::ZeroDuration();
  EXPECT_TRUE(moves);
  let_go_.Notify();
  EXPECT_THAT(client.ReadAll(absl::Seconds(30)), StartsWith("HTTP/1.1 400"));
}

TEST_F(GatewayThreads, MakeItNotReadyWhenOneIsSilent) {
  health_ = absl::UnavailableError("a handler thread has made no progress for 11s");
  EXPECT_EQ(gateway_.CheckReady(), health_);
  EXPECT_THAT(Send("GET", "/ready"), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(Send("GET", "/health"), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(Send("GET", "/health"), HasSubstr("has made no progress for 11s"));
}

}  // namespace
}  // namespace aludel
