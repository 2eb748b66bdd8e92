// Which decode servers the router uses while probes are not answered.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/gateway/routing/router.h"
#include "tests/server/gateway/fake_decode.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kProbeTimeout = absl::Milliseconds(100);
// Three probes in a row, with what lies between them, have surely ended.
constexpr absl::Duration kThreeProbes = absl::Milliseconds(700);

// A decode server that leaves probes without an answer while it is told to.
class StuckDecode : public FakeDecode {
 public:
  using FakeDecode::FakeDecode;
  ~StuckDecode() override {
    stuck = false;
    Stop();
  }
  grpc::Status Describe(grpc::ServerContext* context, const v1::DescribeRequest* request,
                        v1::DecodeDescription* reply) override {
    ++probes;
    while (stuck && !context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    return FakeDecode::Describe(context, request, reply);
  }
  std::atomic<bool> stuck = false;
  std::atomic<int> probes = 0;
};

class Answer : public GenerateObserver {
 public:
  void OnStarted(const v1::Started&) override {}
  bool OnToken(const v1::Token&) override {
    ++tokens;
    return true;
  }
  void OnFinished(const v1::Finished&) override {}
  void OnEnd(const grpc::Status& end) override {
    status = end;
    done.Notify();
  }
  bool Restart() override { return false; }
  std::atomic<int> tokens = 0;
  grpc::Status status;
  absl::Notification done;
};

class RouterHealth : public ::testing::Test {
 protected:
  void Start(const std::vector<FakeDecode*>& decodes) {
    Router::Model model{.expectation = {.model = "chat", .tokenizer_fingerprint = ""}, .decode_targets = {}};
    for (FakeDecode* decode : decodes) model.decode_targets.push_back(decode->target());
    router_ = std::make_unique<Router>(
        std::vector<Router::Model>{model},
        Router::Timing{.probe_interval = absl::Milliseconds(20), .probe_timeout = kProbeTimeout}, &metrics_);
    for (FakeDecode* decode : decodes) WaitMetric(*decode, 1);
  }
  std::string Metric(const FakeDecode& decode, int ready) {
    return absl::StrCat("aludel_decode_target_ready{model=\"chat\",target=\"", decode.target(), "\"} ",
                        ready);
  }
  void WaitMetric(const FakeDecode& decode, int ready) {
    const absl::Time limit = absl::Now() + absl::Seconds(10);
    while (!absl::StrContains(metrics_.Render(), Metric(decode, ready)) && absl::Now() < limit) {
      absl::SleepFor(absl::Milliseconds(5));
    }
    ASSERT_THAT(metrics_.Render(), HasSubstr(Metric(decode, ready)));
  }
  std::shared_ptr<Answer> Ask() {
    auto answer = std::make_shared<Answer>();
    Router::Request request{.model = "chat", .deadline = MonotonicNow() + absl::Seconds(10)};
    request.message.add_prompt(1);
    router_->Generate(std::move(request), answer);
    return answer;
  }
  grpc::StatusCode Outcome() {
    const auto answer = Ask();
    answer->done.WaitForNotification();
    return answer->status.error_code();
  }

  Metrics metrics_;
  std::unique_ptr<Router> router_;
};

TEST_F(RouterHealth, OneProbeWithoutAnAnswerTakesNoServerOut) {
  StuckDecode decode(FakeDecode::Hello);
  Start({&decode});
  decode.stuck = true;
  const int before = decode.probes;
  while (decode.probes <= before + 1) absl::SleepFor(absl::Milliseconds(1));  // one has surely ended
  EXPECT_THAT(metrics_.Render(), HasSubstr(Metric(decode, 1)));
  EXPECT_EQ(Outcome(), grpc::StatusCode::OK);
}

TEST_F(RouterHealth, ASlowServerIsStillAskedWhereNoOtherIsReady) {
  StuckDecode decode(FakeDecode::Hello);
  Start({&decode});
  decode.stuck = true;
  WaitMetric(decode, 0);
  EXPECT_TRUE(router_->State("chat").ready);
  EXPECT_THAT(router_->State("chat").reason, "") << "no reason to refuse";
  EXPECT_EQ(Outcome(), grpc::StatusCode::OK);
  decode.stuck = false;
  WaitMetric(decode, 1);
}

TEST_F(RouterHealth, AReadyServerIsPreferredToASlowOne) {
  StuckDecode slow(FakeDecode::Hello);
  FakeDecode ready(FakeDecode::Hello);
  Start({&slow, &ready});
  slow.stuck = true;
  WaitMetric(slow, 0);
  const int before = slow.calls();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Outcome(), grpc::StatusCode::OK);
  EXPECT_EQ(slow.calls(), before);
}

TEST_F(RouterHealth, TokensThatComeAreAsGoodAsProbes) {
  std::atomic<bool> stop = false;
  StuckDecode decode(
      [&](grpc::ServerContext*, const v1::GenerateRequest& request, FakeDecode::Writer* writer) {
        writer->Write(FakeDecode::Started());
        while (!stop) {
          writer->Write(FakeDecode::Token("x"));
          absl::SleepFor(absl::Milliseconds(10));
        }
        writer->Write(FakeDecode::Finished(request, 1));
        return grpc::Status::OK;
      });
  Start({&decode});
  const auto answer = Ask();
  while (answer->tokens == 0) absl::SleepFor(absl::Milliseconds(1));
  decode.stuck = true;
  const absl::Time end = absl::Now() + 2 * kThreeProbes;
  while (absl::Now() < end) {
    ASSERT_THAT(metrics_.Render(), HasSubstr(Metric(decode, 1)));
    absl::SleepFor(absl::Milliseconds(10));
  }
  stop = true;
  answer->done.WaitForNotification();
  EXPECT_TRUE(answer->status.ok()) << answer->status.error_message();
  WaitMetric(decode, 0);  // no tokens any more, and no answer to probes
}

TEST_F(RouterHealth, ARefusedConnectionCountsAtOnce) {
  FakeDecode decode(FakeDecode::Hello);
  Start({&decode});
  decode.Stop();
  WaitMetric(decode, 0);
  EXPECT_FALSE(router_->State("chat").ready);
  EXPECT_EQ(Outcome(), grpc::StatusCode::UNAVAILABLE);
}

TEST(RouterLists, EveryServerOfListsThatChangeTogetherIsProbed) {
  constexpr int kModels = 8;
  constexpr int kStaying = 24;
  Metrics metrics;
  std::vector<Router::Model> models(kModels);
  for (int i = 0; i < kModels; ++i) models[i].expectation.model = absl::StrCat("m", i);
  Router router(models, Router::Timing{.probe_interval = absl::Milliseconds(20)}, &metrics);
  // Nothing listens there: a probe is answered at once. Those that stay make the prober's work long, so that threads meet
  // there with lists that they have read before.
  const auto list = [&router](int model, int round) {
    std::vector<ServerName> servers;
    for (int i = 1; i <= kStaying; ++i) {
      servers.push_back(ServerName(absl::StrCat("127.", model + 1, ".1.", i, ":1")));
    }
    servers.push_back(ServerName(absl::StrCat("127.", model + 1, ".0.", round, ":1")));
    router.SetDecodeTargets(absl::StrCat("m", model), servers);
  };
  for (int round = 1; round <= 60; ++round) {
    std::atomic<int> there = 0;
    std::vector<std::thread> threads;
    for (int model = 0; model < kModels; ++model) {
      threads.emplace_back([&, model] {
        for (++there; there < kModels;) std::this_thread::yield();
        list(model, round);
      });
    }
    for (std::thread& thread : threads) thread.join();
    const auto unprobed = [&router] {
      for (int model = 0; model < kModels; ++model) {
        if (absl::StrContains(router.State(absl::StrCat("m", model)).reason, "not probed yet")) return true;
      }
      return false;
    };
    const absl::Time limit = MonotonicNow() + absl::Seconds(20);
    while (unprobed() && MonotonicNow() < limit) absl::SleepFor(absl::Milliseconds(1));
    ASSERT_FALSE(unprobed()) << "round " << round;
  }
}

TEST(RouterLists, AServerThatIsReplacedServesUntilTheNewOneIsKnown) {
  FakeDecode first(FakeDecode::Hello);
  StuckDecode second(FakeDecode::Hello);
  second.stuck = true;
  Metrics metrics;
  Router router(
      {{.expectation = {.model = "chat", .tokenizer_fingerprint = ""}, .decode_targets = {first.target()}}},
      Router::Timing{.probe_interval = absl::Milliseconds(20)}, &metrics);
  const auto await = [](const auto& condition) {
    const absl::Time limit = MonotonicNow() + absl::Seconds(20);
    while (!condition() && MonotonicNow() < limit) absl::SleepFor(absl::Milliseconds(1));
    return condition();
  };
  ASSERT_TRUE(await([&] { return router.State("chat").ready; }));
  router.SetDecodeTargets("chat", {ServerName(second.target())});
  EXPECT_TRUE(router.State("chat").ready);
  second.stuck = false;
  EXPECT_TRUE(await([&] { return !absl::StrContains(metrics.Render(), first.target()); }));
  EXPECT_TRUE(router.State("chat").ready);
}

}  // namespace
}  // namespace aludel
