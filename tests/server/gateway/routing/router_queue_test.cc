// Requests that wait for a place at a decode server.
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/gateway/routing/router.h"
#include "server/rpc/hopeless.h"
#include "server/rpc/rpc_status.h"
#include "tests/server/gateway/fake_decode.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

constexpr int kPlaces = 8;  // of a FakeDecode

class Answer : public GenerateObserver {
 public:
  void OnStarted(const v1::Started&) override {}
  bool OnToken(const v1::Token&) override { return true; }
  void OnFinished(const v1::Finished&) override {}
  void OnEnd(const grpc::Status& end) override {
    status = end;
    done.Notify();
  }
  bool Restart() override { return false; }
  grpc::StatusCode Wait() {
    done.WaitForNotification();
    return status.error_code();
  }
  grpc::Status status;
  absl::Notification done;
};

// A decode server that answers when it is told to, and remembers the prompts that it was asked in order.
class HeldDecode {
 public:
  HeldDecode()
      : decode_([this](grpc::ServerContext* context, const v1::GenerateRequest& request,
                       FakeDecode::Writer* writer) {
          absl::MutexLock lock(&mutex_);
          asked_.push_back(request.prompt(0));
          if (!refusal_.ok()) return refusal_;
          const auto may_go = [this] { return allowed_ > 0 || end_.has_value(); };
          mutex_.AwaitWithTimeout(absl::Condition(&may_go), absl::Seconds(20));
          if (end_.has_value()) return *std::exchange(end_, std::nullopt);
          --allowed_;
          return FakeDecode::Hello(context, request, writer);
        }) {}
  void Allow(int answers) {
    absl::MutexLock lock(&mutex_);
    allowed_ += answers;
  }
  // One call that is held ends so.
  void EndOne(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    end_ = ToGrpc(status);
  }
  std::vector<int> asked() {
    absl::MutexLock lock(&mutex_);
    return asked_;
  }
  void WaitAsked(size_t calls) {
    const absl::Time limit = absl::Now() + absl::Seconds(10);
    while (asked().size() < calls && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(2));
    ASSERT_EQ(asked().size(), calls);
  }
  void Refuse(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    refusal_ = ToGrpc(status);
  }
  FakeDecode& server() { return decode_; }

 private:
  absl::Mutex mutex_;
  int allowed_ = 0;
  std::optional<grpc::Status> end_;
  grpc::Status refusal_;
  std::vector<int> asked_;
  FakeDecode decode_;
};

class RouterQueue : public ::testing::Test {
 protected:
  void Start(const WaitingQueue::Options& waiting) {
    Router::Model model{.expectation = {.model = "chat", .tokenizer_fingerprint = ""},
                        .decode_targets = {decode_.server().target()}};
    router_ = std::make_unique<Router>(
        std::vector<Router::Model>{model},
        Router::Timing{.probe_interval = absl::Milliseconds(20), .probe_timeout = absl::Seconds(5)},
        &metrics_, grpc::InsecureChannelCredentials(), waiting);
    const absl::Time limit = absl::Now() + absl::Seconds(10);
    while (!router_->State("chat").ready && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(5));
  }
  std::shared_ptr<Answer> Ask(int prompt, const std::string& tenant = "") {
    v1::GenerateRequest message;
    message.add_prompt(prompt);
    return Ask(message, tenant, absl::Seconds(30));
  }
  std::shared_ptr<Answer> Ask(const v1::GenerateRequest& message, const std::string& tenant,
                              absl::Duration patience) {
    auto answer = std::make_shared<Answer>();
    Router::Request request{.model = "chat", .tenant = tenant, .deadline = MonotonicNow() + patience};
    request.message = message;
    calls_.push_back(router_->Generate(std::move(request), answer));
    return answer;
  }
  void WaitWaiting(int requests) {
    const absl::Time limit = absl::Now() + absl::Seconds(10);
    while (router_->Waiting("chat") != requests && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(2));
    ASSERT_EQ(router_->Waiting("chat"), requests);
  }

  Metrics metrics_;
  HeldDecode decode_;
  std::unique_ptr<Router> router_;
  std::vector<std::shared_ptr<GenerateCall>> calls_;
};

TEST_F(RouterQueue, WhatHasNoPlaceWaitsAndIsServedInTurn) {
  Start({.max_waiting = 10, .max_waiting_tokens = 100});
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < kPlaces; ++i) answers.push_back(Ask(i, "a"));
  for (int i = 0; i < 3; ++i) answers.push_back(Ask(100 + i, "a"));
  answers.push_back(Ask(200, "b"));
  decode_.WaitAsked(kPlaces);
  EXPECT_EQ(router_->Waiting("chat"), 4);
  for (int i = 1; i <= 4; ++i) {
    decode_.Allow(1);
    decode_.WaitAsked(kPlaces + i);
  }
  const std::vector<int> asked = decode_.asked();
  EXPECT_EQ(std::vector<int>(asked.begin() + kPlaces, asked.end()), (std::vector<int>{200, 100, 101, 102}))
      << "the key without a place first";
  decode_.Allow(kPlaces);
  for (const auto& answer : answers) EXPECT_EQ(answer->Wait(), grpc::StatusCode::OK);
  EXPECT_EQ(router_->Waiting("chat"), 0);
  EXPECT_THAT(metrics_.Render(), HasSubstr("aludel_request_wait_seconds_count{model=\"chat\"} 4"));
}

TEST_F(RouterQueue, RefusesBeyondItsBoundWithAPredictedWait) {
  Start({.max_waiting = 2, .max_waiting_tokens = 100});
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < kPlaces + 2; ++i) answers.push_back(Ask(i));
  const auto refused = Ask(99);
  EXPECT_EQ(refused->Wait(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused->status.error_message(), HasSubstr("2 requests wait already"));
  EXPECT_EQ(refused->status.error_details(), "1");
  EXPECT_TRUE(router_->CheckRoom("chat", "", MonotonicNow() + absl::Seconds(30), 0).has_value());
  EXPECT_THAT(metrics_.Render(), HasSubstr("aludel_wait_refusals_total{model=\"chat\",reason=\"full\"} 2"));
  decode_.Allow(kPlaces + 2);
  for (const auto& answer : answers) EXPECT_EQ(answer->Wait(), grpc::StatusCode::OK);
  EXPECT_FALSE(router_->CheckRoom("chat", "", MonotonicNow() + absl::Seconds(30), 0).has_value());
}

TEST_F(RouterQueue, AClientThatGoesLeavesTheQueueAtOnce) {
  Start({.max_waiting = 2, .max_waiting_tokens = 100});
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < kPlaces + 1; ++i) answers.push_back(Ask(i));
  WaitWaiting(1);
  calls_.back()->Cancel();
  EXPECT_EQ(answers.back()->Wait(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(router_->Waiting("chat"), 0);
  decode_.Allow(kPlaces);
  for (int i = 0; i < kPlaces; ++i) EXPECT_EQ(answers[i]->Wait(), grpc::StatusCode::OK);
  EXPECT_EQ(decode_.asked().size(), kPlaces) << "it was never asked";
}

TEST_F(RouterQueue, ARefusedRequestWaitsAndIsAskedAgain) {
  Start({.max_waiting = 20, .max_waiting_tokens = 100});
  decode_.Refuse(absl::ResourceExhaustedError("no block is free"));
  // Nothing of this gateway runs: others may hold the server's room.
  std::vector<std::shared_ptr<Answer>> bounced;
  for (int i = 0; i < 12; ++i) bounced.push_back(Ask(i));
  WaitWaiting(12);
  const size_t before = decode_.asked().size();
  absl::SleepFor(absl::Milliseconds(500));
  const size_t asked = decode_.asked().size() - before;
  EXPECT_GE(asked, 1);
  EXPECT_LE(asked, 20) << "one of them at a time";
  decode_.Refuse(absl::OkStatus());
  decode_.Allow(12);
  for (const auto& answer : bounced) EXPECT_EQ(answer->Wait(), grpc::StatusCode::OK);
}

TEST_F(RouterQueue, ARefusedRequestWaitsNoLongerThanItsDeadline) {
  Start({.max_waiting = 2, .max_waiting_tokens = 100});
  v1::GenerateRequest wide;
  wide.add_prompt(1);
  wide.mutable_sampling()->set_choices(kPlaces);
  v1::GenerateRequest urgent;
  urgent.add_prompt(2);
  urgent.set_priority(-1);
  const auto refused = Ask(wide, "", absl::Seconds(3));
  decode_.WaitAsked(1);
  const auto running = Ask(urgent, "", absl::Seconds(30));
  WaitWaiting(1);
  // What is urgent takes a place, so that the refused request, which wants all of them, is not asked again: a call that
  // is under way when the deadline passes would end as gRPC has it.
  decode_.EndOne(absl::ResourceExhaustedError("no block is free"));
  EXPECT_EQ(refused->Wait(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused->status.error_message(),
              HasSubstr("the deadline passed before a decode server had room"));
  EXPECT_EQ(decode_.asked(), (std::vector<int>{1, 2}));
  decode_.Allow(1);
  EXPECT_EQ(running->Wait(), grpc::StatusCode::OK);
}

TEST_F(RouterQueue, WhatWaitsOutlivesTheLossOfItsServer) {
  Start({.max_waiting = 20, .max_waiting_tokens = 100});
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < kPlaces + 4; ++i) answers.push_back(Ask(i));
  WaitWaiting(4);
  // One call is given up by the server, which is taken out until a probe finds it well.
  decode_.EndOne(absl::UnavailableError("reset"));
  decode_.Allow(kPlaces + 4);
  int lost = 0;
  for (const auto& answer : answers) lost += answer->Wait() == grpc::StatusCode::OK ? 0 : 1;
  EXPECT_LE(lost, 1);
}

TEST_F(RouterQueue, ARefusalForTheDeadlineIsFinal) {
  Start({.max_waiting = 2, .max_waiting_tokens = 100});
  const auto running = Ask(1);
  decode_.WaitAsked(1);
  absl::Status hopeless = absl::ResourceExhaustedError("overloaded");
  hopeless.SetPayload(kHopeless, absl::Cord());
  decode_.Refuse(hopeless);
  EXPECT_EQ(Ask(2)->Wait(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  decode_.Allow(1);
  EXPECT_EQ(running->Wait(), grpc::StatusCode::OK);
}

}  // namespace
}  // namespace aludel
