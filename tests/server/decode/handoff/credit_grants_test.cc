#include "server/decode/handoff/credit_grants.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

// A prefill server that answers a grant when it may.
class GrantServer : public v1::Prefill::Service {
 public:
  GrantServer() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    stub_ = v1::Prefill::NewStub(
        grpc::CreateChannel("127.0.0.1:" + std::to_string(port_), grpc::InsecureChannelCredentials()));
  }
  ~GrantServer() override {
    Answer(1000);
    server_->Shutdown();
  }
  grpc::Status Grant(grpc::ServerContext*, const v1::GrantRequest* request, v1::GrantResponse*) override {
    absl::MutexLock lock(&mutex_);
    credits_.push_back(request->credit_bytes());
    ticket_ = request->ticket_id();
    mutex_.Await(absl::Condition(
        +[](int* may_answer) { return *may_answer > 0; }, &may_answer_));
    --may_answer_;
    return status_;
  }
  // The next `calls` of them.
  void Answer(int calls, grpc::Status status = grpc::Status::OK) {
    absl::MutexLock lock(&mutex_);
    may_answer_ += calls;
    status_ = std::move(status);
  }
  std::vector<uint64_t> Await(size_t calls) {
    absl::MutexLock lock(&mutex_);
    wanted_ = calls;
    mutex_.AwaitWithTimeout(
        absl::Condition(
            +[](GrantServer* self) { return self->credits_.size() >= self->wanted_; }, this),
        absl::Seconds(10));
    return credits_;
  }
  v1::Prefill::Stub* stub() { return stub_.get(); }
  std::string ticket() {
    absl::MutexLock lock(&mutex_);
    return ticket_;
  }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Prefill::Stub> stub_;
  absl::Mutex mutex_;
  std::vector<uint64_t> credits_;
  std::string ticket_;
  size_t wanted_ = 0;
  int may_answer_ = 0;
  grpc::Status status_;
};

class CreditGrantsTest : public ::testing::Test {
 protected:
  // The stub must live until the calls have ended, of which each keeps the grants.
  void TearDown() override {
    server_.Answer(1000);
    const std::weak_ptr<CreditGrants> calls = std::exchange(grants_, nullptr);
    const absl::Time give_up = absl::Now() + absl::Seconds(10);
    while (!calls.expired() && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_TRUE(calls.expired());
  }

  GrantServer server_;
  absl::Notification lost_;
  absl::Status why_;
  std::shared_ptr<CreditGrants> grants_ = std::make_shared<CreditGrants>(
      server_.stub(), TicketId{7, 8}, MonotonicNow() + absl::Seconds(20), [this](const absl::Status& status) {
        why_ = status;
        lost_.Notify();
      });
};

TEST_F(CreditGrantsTest, SendsTheLatestFigureOneCallAtATime) {
  grants_->Raise(100);
  EXPECT_THAT(server_.Await(1), ElementsAre(100));
  EXPECT_THAT(server_.ticket(), StartsWith("\x07\x08"));
  for (const uint64_t credit : {150, 300, 200}) grants_->Raise(credit);
  EXPECT_THAT(server_.Await(1), ElementsAre(100));  // while the first is under way
  server_.Answer(2);
  EXPECT_THAT(server_.Await(2), ElementsAre(100, 300));
  grants_->Raise(400);
  EXPECT_THAT(server_.Await(3), ElementsAre(100, 300, 400));
}

TEST_F(CreditGrantsTest, TellsThatAGrantWasLost) {
  grants_->Raise(100);
  server_.Answer(1, grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone"));
  ASSERT_TRUE(lost_.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_EQ(why_.code(), absl::StatusCode::kUnavailable);
}

TEST_F(CreditGrantsTest, ARunThatHasEndedNeedsNoGrant) {
  grants_->Raise(100);
  server_.Answer(1, grpc::Status(grpc::StatusCode::NOT_FOUND, "no such run"));
  server_.Await(1);
  grants_->Raise(200);
  EXPECT_THAT(server_.Await(2), ElementsAre(100, 200));
  EXPECT_FALSE(lost_.HasBeenNotified());
}

TEST_F(CreditGrantsTest, StopsAndTellsNothingMore) {
  grants_->Raise(100);
  server_.Await(1);
  grants_->Raise(200);
  grants_->Stop();
  server_.Answer(1, grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone"));
  grants_->Raise(300);
  EXPECT_FALSE(lost_.WaitForNotificationWithTimeout(absl::Milliseconds(200)));
  EXPECT_THAT(server_.Await(1), ElementsAre(100));
}

}  // namespace
}  // namespace aludel
