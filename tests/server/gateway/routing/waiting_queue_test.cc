#include "server/gateway/routing/waiting_queue.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;
using Entry = WaitingQueue::Entry;

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(1000 + seconds); }

class Waiting : public ::testing::Test {
 protected:
  uint64_t Push(const std::string& tenant, int priority = 0, double deadline = 100, int64_t tokens = 10) {
    queue_.Push({.id = ++last_id_,
                 .tenant = tenant,
                 .tokens = tokens,
                 .priority = priority,
                 .deadline = At(deadline)});
    return last_id_;
  }
  // Gives the next entry a place; its tenant and number.
  std::string Start(double at) {
    const Entry* next = queue_.Next();
    if (next == nullptr) return "none";
    const Entry entry = *next;
    queue_.Remove(entry.id);
    queue_.Started(entry.tenant, entry.places, At(at), /*waited=*/true);
    return absl::StrCat(entry.tenant, entry.id);
  }
  std::string Refusal(const std::string& tenant, double now, double deadline, int64_t tokens = 10) {
    const auto refusal = queue_.Check(tenant, tokens, At(now), At(deadline));
    return refusal ? absl::StrCat(refusal->reason, " ", refusal->retry_after_seconds) : "";
  }

  WaitingQueue queue_{{.max_waiting = 5, .max_waiting_tokens = 100}};
  uint64_t last_id_ = 0;
};

TEST_F(Waiting, OneTenantIsServedInOrderOfPriorityAndArrival) {
  for (int priority : {0, 0, -1}) Push("a", priority);
  EXPECT_EQ(Start(0), "a3");
  EXPECT_EQ(Start(0), "a1");
  EXPECT_EQ(Start(0), "a2");
  EXPECT_EQ(Start(0), "none");
  EXPECT_EQ(queue_.size(), 0);
  EXPECT_EQ(queue_.tokens(), 0);
  EXPECT_EQ(queue_.places_taken(), 3);
}

TEST_F(Waiting, ATenantWithManyRequestsHoldsNoOtherUp) {
  for (int i = 0; i < 3; ++i) Push("a");
  Push("b");
  EXPECT_EQ(Start(0), "a1");
  EXPECT_EQ(Start(0), "b4");
  EXPECT_EQ(Start(0), "a2");
  Push("c");
  EXPECT_EQ(Start(0), "c5");
  queue_.Ended("b", 1, std::nullopt);
  Push("b");
  EXPECT_EQ(Start(0), "b6") << "it has the fewest places again";
  EXPECT_EQ(Start(0), "a3");
}

TEST_F(Waiting, RefusesWhatIsBeyondItsBounds) {
  for (int i = 0; i < 4; ++i) Push("a", 0, 100, 20);
  EXPECT_EQ(Refusal("b", 0, 100, 20), "");
  EXPECT_EQ(Refusal("b", 0, 100, 21), "tokens 1");
  EXPECT_EQ(Refusal("b", 0, 100, 0), "") << "not known yet";
  Push("a");
  EXPECT_EQ(Refusal("b", 0, 100, 0), "full 1");
  WaitingQueue empty({.max_waiting = 5, .max_waiting_tokens = 100});
  EXPECT_FALSE(empty.Check("a", 1000, At(0), At(1))) << "one that is larger than all may wait alone";
  EXPECT_TRUE(WaitingQueue({}).Check("a", 1, At(0), At(1)));
}

TEST_F(Waiting, PredictsTheWaitFromThePlacesGivenSoFarAndRefusesWhatComesTooLate) {
  for (int i = 0; i < 5; ++i) Push("a");
  EXPECT_EQ(queue_.PredictWait("a"), std::nullopt);
  for (double at : {2.0, 4.0, 6.0}) Start(at);  // a place every 2 s
  queue_.Ended("a", 1, absl::Seconds(5));
  EXPECT_EQ(queue_.PredictWait("a"), absl::Seconds(6));  // behind two
  EXPECT_EQ(queue_.PredictWait("b"), absl::Seconds(4));  // in turns with them
  EXPECT_EQ(Refusal("a", 6, 17.1), "");
  EXPECT_EQ(Refusal("a", 6, 16.9), "deadline 1");
  EXPECT_EQ(Refusal("a", 6, 8), "deadline 9");
  EXPECT_THAT(queue_.Check("a", 1, At(6), At(8))->message,
              HasSubstr("the answer is expected in 11.0 s, the deadline is in 2.0 s"));
  while (Start(8) != "none") {
  }
  EXPECT_EQ(queue_.PredictWait("a"), absl::ZeroDuration());
  EXPECT_EQ(Refusal("a", 8, 8.1), "") << "where none waits the decode server says what it expects";
}

TEST_F(Waiting, TimeInWhichNoneWaitedIsNoWait) {
  Push("a");
  Start(0);
  Push("a");
  Push("a");
  Start(50);
  Start(51);
  Push("a");
  EXPECT_EQ(queue_.PredictWait("a"), absl::Seconds(2));
}

TEST_F(Waiting, WhatCannotBeInTimeAnyMoreIsRefusedWhereItWaits) {
  const uint64_t early = Push("a", 0, 10);
  Push("a", 0, 20);
  EXPECT_TRUE(queue_.RemoveHopeless(At(9.9)).empty()) << "nothing was measured";
  queue_.Started("b", 1, At(0), /*waited=*/false);
  queue_.Ended("b", 1, absl::Seconds(4));
  EXPECT_TRUE(queue_.RemoveHopeless(At(5.9)).empty());
  const auto hopeless = queue_.RemoveHopeless(At(6.1));
  ASSERT_EQ(hopeless.size(), 1);
  EXPECT_EQ(hopeless[0].first, early);
  EXPECT_STREQ(hopeless[0].second.reason, "deadline");
  EXPECT_EQ(queue_.size(), 1);
  EXPECT_FALSE(queue_.Remove(early));
}

TEST_F(Waiting, WhatHasPassedItsDeadlineIsRefusedWithoutAnyFigures) {
  Push("a", 0, 10);
  const auto hopeless = queue_.RemoveHopeless(At(10));
  ASSERT_EQ(hopeless.size(), 1);
  EXPECT_THAT(hopeless[0].second.message, HasSubstr("the deadline passed"));
}

TEST_F(Waiting, TenantsTakeTurnsAtOnePlace) {
  for (int i = 0; i < 3; ++i) Push("a");
  EXPECT_EQ(Start(0), "a1");
  Push("b");
  Push("b");
  for (const char* next : {"b4", "a2", "b5", "a3"}) {
    queue_.Ended(next[0] == 'b' ? "a" : "b", 1, std::nullopt);
    EXPECT_EQ(Start(1), next);
  }
}

TEST_F(Waiting, PlacesThatEndTogetherAreOneEventOfItsTime) {
  WaitingQueue queue({.max_waiting = 1000, .max_waiting_tokens = 10000});
  for (uint64_t id = 1; id <= 200; ++id)
    queue.Push({.id = id, .tenant = "a", .tokens = 1, .deadline = At(1000)});
  const auto batch = [&queue](double at) {
    for (int i = 0; i < 16; ++i) {
      const Entry next = *queue.Next();
      queue.Remove(next.id);
      queue.Started("a", 1, At(at), /*waited=*/true);
    }
  };
  for (double at : {0.0, 8.0, 16.0, 24.0}) batch(at);
  const double expected = 8.0 / 16 * (queue.size() + 1);
  EXPECT_NEAR(absl::ToDoubleSeconds(*queue.PredictWait("a")), expected, .25 * expected);
  // What came back was no place.
  batch(24.1);
  for (int i = 0; i < 16; ++i) queue.Returned("a", 1);
  EXPECT_NEAR(absl::ToDoubleSeconds(*queue.PredictWait("a")), 8.0 / 16 * (queue.size() + 1), .25 * expected);
}

TEST_F(Waiting, OneThatGoesFirstIsPredictedToGoFirst) {
  for (int i = 0; i < 5; ++i) Push("a");
  for (double at : {0.0, 1.0}) Start(at);
  EXPECT_EQ(queue_.PredictWait("a", /*priority=*/0), absl::Seconds(4));
  EXPECT_EQ(queue_.PredictWait("a", /*priority=*/-1), absl::Seconds(1));
}

TEST_F(Waiting, RequestsOfSeveralChoicesTakeAsManyPlaces) {
  queue_.Push({.id = 1, .tenant = "a", .tokens = 1, .places = 4, .deadline = At(9)});
  queue_.Push({.id = 2, .tenant = "a", .tokens = 1, .deadline = At(9)});
  EXPECT_EQ(queue_.waiting_places(), 5);
  EXPECT_EQ(queue_.Next()->places, 4);
  EXPECT_EQ(Start(0), "a1");
  EXPECT_EQ(queue_.places_taken(), 4);
  EXPECT_EQ(queue_.waiting_places(), 1);
  EXPECT_EQ(Start(3), "a2");
  queue_.Ended("a", 4, absl::Seconds(1));
  EXPECT_EQ(queue_.places_taken(), 1);
}

}  // namespace
}  // namespace aludel
