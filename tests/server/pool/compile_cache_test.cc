#include "server/pool/compile_cache.h"

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/files/stop_scope.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;

using Cache = CompileCache<int>;

TextConstraint Schema(absl::string_view text) { return {"", std::string(text), ""}; }

// What becomes of one request.
struct Request {
  Request(Cache& cache, const TextConstraint& constraint, absl::Time deadline = absl::InfiniteFuture()) {
    wait = cache.Make([done = done](absl::StatusOr<int> result) { done->set_value(std::move(result)); });
    cache.Begin(wait, constraint, deadline);
  }
  absl::StatusOr<int> Get() { return done->get_future().get(); }

  const std::shared_ptr<std::promise<absl::StatusOr<int>>> done =
      std::make_shared<std::promise<absl::StatusOr<int>>>();
  std::shared_ptr<Cache::Wait> wait;
};

// Compiles nothing until it is let go, and then to its count of compilations.
class Gate {
 public:
  absl::StatusOr<int> Compile(const TextConstraint& constraint) {
    const int count = ++started_;
    while (!open_) {
      if (absl::Status stop = CheckStop(); !stop.ok()) {
        ++stopped_;
        return stop;
      }
      std::this_thread::yield();
    }
    if (constraint.json_schema == "wrong") return absl::InvalidArgumentError("wrong");
    return count;
  }
  void AwaitStarted(int count) const {
    while (started_ < count) std::this_thread::yield();
  }
  void AwaitStopped(int count) const {
    while (stopped_ < count) std::this_thread::yield();
  }
  void Open() { open_ = true; }
  int started() const { return started_; }
  Cache::Compiler compiler() {
    return [this](const TextConstraint& constraint) { return Compile(constraint); };
  }

 private:
  std::atomic<bool> open_ = false;
  std::atomic<int> started_ = 0;
  std::atomic<int> stopped_ = 0;
};

TEST(CompileCache, CompilesOnceForRequestsThatComeTogether) {
  Gate gate;
  Cache cache({}, gate.compiler());
  std::vector<std::unique_ptr<Request>> requests;
  for (int i = 0; i < 5; ++i) requests.push_back(std::make_unique<Request>(cache, Schema("a")));
  gate.AwaitStarted(1);
  gate.Open();
  for (auto& request : requests) EXPECT_EQ(request->Get().value(), 1);
  EXPECT_EQ(Request(cache, Schema("a")).Get().value(), 1);
  EXPECT_EQ(Request(cache, {"x", "a", ""}).Get().value(), 2);
  EXPECT_EQ(Request(cache, {"", "a", "x"}).Get().value(), 3);
  EXPECT_EQ(gate.started(), 3);
}

TEST(CompileCache, RemembersWhatIsWrong) {
  Gate gate;
  gate.Open();
  Cache cache({}, gate.compiler());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Request(cache, Schema("wrong")).Get().status().message(), "wrong");
  EXPECT_EQ(gate.started(), 1);
}

TEST(CompileCache, ForgetsTheOldest) {
  Gate gate;
  gate.Open();
  Cache cache({.max_entries = 2}, gate.compiler());
  std::vector<int> values;
  for (const char* schema : {"a", "b", "a", "c", "a", "b"}) {
    values.push_back(Request(cache, Schema(schema)).Get().value());
  }
  EXPECT_THAT(values, ElementsAre(1, 2, 1, 3, 1, 4));
  Cache small({.max_entries = 100, .max_bytes = 30}, gate.compiler());
  const std::string text(10, 's');
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Request(small, Schema(absl::StrCat(text, i))).Get().ok());
  const int before = gate.started();
  EXPECT_TRUE(Request(small, Schema(absl::StrCat(text, 0))).Get().ok());
  EXPECT_EQ(gate.started(), before + 1);
}

TEST(CompileCache, EndsAWaitAtItsDeadlineAndGoesOnForTheOthers) {
  Gate gate;
  Cache cache({}, gate.compiler());
  Request patient(cache, Schema("a"));
  Request hasty(cache, Schema("a"), MonotonicNow() + absl::Milliseconds(20));
  EXPECT_TRUE(absl::IsDeadlineExceeded(hasty.Get().status()));
  gate.Open();
  EXPECT_EQ(patient.Get().value(), 1);
}

TEST(CompileCache, StopsACompilationThatNothingWaitsFor) {
  Gate gate;
  Cache cache({}, gate.compiler());
  Request one(cache, Schema("a"));
  Request other(cache, Schema("a"));
  gate.AwaitStarted(1);
  one.wait->Stop(absl::CancelledError("the client has gone"));
  other.wait->Stop(absl::CancelledError("gone, too"));
  EXPECT_EQ(one.Get().status().message(), "the client has gone");
  EXPECT_EQ(other.Get().status().message(), "gone, too");
  gate.AwaitStopped(1);
  gate.Open();
  // It left nothing behind.
  EXPECT_EQ(Request(cache, Schema("a")).Get().value(), 2);
}

TEST(CompileCache, IgnoresAWaitThatWasStoppedBeforeItBegan) {
  Gate gate;
  Cache cache({}, gate.compiler());
  std::promise<absl::StatusOr<int>> done;
  const auto wait = cache.Make([&](absl::StatusOr<int> result) { done.set_value(std::move(result)); });
  wait->Stop(absl::CancelledError("gone"));
  EXPECT_EQ(done.get_future().get().status().message(), "gone");
  cache.Begin(wait, Schema("a"), absl::InfiniteFuture());
  EXPECT_EQ(gate.started(), 0);
}

TEST(CompileCache, RefusesWhatWouldWaitBehindTooMany) {
  Gate gate;
  Cache cache({.max_queue = 1}, gate.compiler());
  Request running(cache, Schema("a"));
  gate.AwaitStarted(1);
  Request waiting(cache, Schema("b"));
  EXPECT_TRUE(absl::IsUnavailable(Request(cache, Schema("c")).Get().status()));
  gate.Open();
  EXPECT_TRUE(running.Get().ok());
  EXPECT_TRUE(waiting.Get().ok());
}

TEST(CompileCache, EndsWaitsAtShutdown) {
  Gate gate;
  Cache cache({}, gate.compiler());
  Request running(cache, Schema("a"));
  gate.AwaitStarted(1);
  Request waiting(cache, Schema("b"));
  cache.Shutdown();
  EXPECT_FALSE(running.Get().ok());
  EXPECT_TRUE(absl::IsUnavailable(waiting.Get().status()));
}

}  // namespace
}  // namespace aludel
