#include "server/gateway/routing/model_fleet.h"

#include <atomic>
#include <functional>
#include <numeric>
#include <thread>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

PrefixKeys Prompt(int64_t tokens, int32_t first = 0) {
  std::vector<int32_t> prompt(static_cast<size_t>(tokens));
  std::iota(prompt.begin(), prompt.end(), first);
  return MakePrefixKeys({1}, prompt);
}

class ModelFleetTest : public ::testing::Test {
 protected:
  ModelFleetTest() {
    for (const char* name : {"a:1", "b:1", "c:1"}) fleet_.Add(name);
  }
  static Fleet::Standing AllReady(size_t) { return Fleet::Standing::kReady; }
  // Seconds in its queue, and of its prefill, as a reply says.
  static v1::Started Reply(double queued, double computed, uint32_t cached = 0) {
    v1::Started started;
    started.set_cached_tokens(cached);
    started.mutable_stages()->set_queue(queued);
    started.mutable_stages()->set_ttft(queued + computed);
    return started;
  }
  const ReplicaView View(size_t slot, const PrefixKeys& keys) {
    return fleet_.Explain(keys, AllReady).views[slot];
  }

  Metrics metrics_;
  ModelFleet fleet_{"chat", {.objective_seconds = 1}, &metrics_};
};

TEST_F(ModelFleetTest, RepliesTellWhatPrefillCostsAndHowLongTheQueueWas) {
  const PrefixKeys keys = Prompt(1000);
  const size_t home = fleet_.Pick(keys, AllReady, false)->slot;
  fleet_.Started(home, MonotonicNow(), Reply(30, 2), {1000});
  const ReplicaView view = View(home, keys);
  EXPECT_NEAR(view.costs.per_token, 2e-3, 1e-6);
  EXPECT_NEAR(view.wait_seconds, 32, 1);
  EXPECT_EQ(view.pending, 1);
  fleet_.Ended(home, grpc::Status::OK);
  EXPECT_EQ(View(home, keys).pending, 0);
  // The other one is idle.
  EXPECT_NE(fleet_.Pick(keys, AllReady, false)->slot, home);
}

TEST_F(ModelFleetTest, WhatIsLateIsNotSentWhereCostsWereMeasured) {
  const PrefixKeys keys = Prompt(1000);
  v1::LoadReport report;
  report.set_waiting_seconds(10);
  const auto tell = [&] {
    for (const size_t slot : {0, 1, 2}) fleet_.Reported(slot, report, MonotonicNow());
  };
  tell();
  const auto guessed = fleet_.Pick(keys, AllReady, false, 1, /*max_ttft=*/2);
  EXPECT_FALSE(guessed->late.has_value());
  fleet_.Ended(guessed->slot, grpc::Status::OK);
  report.set_prefill_seconds_per_token(1e-3);
  tell();
  const auto late = fleet_.Pick(keys, AllReady, false, 1, /*max_ttft=*/2);
  ASSERT_TRUE(late->late.has_value());
  EXPECT_NEAR(*late->late, 8.5, 0.6);  // of one that has some of it cached, or of another
  for (const size_t slot : {0, 1, 2}) EXPECT_EQ(View(slot, keys).pending, 0);
  EXPECT_FALSE(fleet_.Pick(keys, AllReady, false, 1, /*max_ttft=*/20)->late.has_value());
  EXPECT_FALSE(fleet_.Pick(keys, AllReady, false)->late.has_value());
}

TEST_F(ModelFleetTest, TheLoadCallsForServers) {
  for (const size_t slot : {0, 1, 2}) {
    v1::LoadReport report;
    report.set_running(12);
    report.set_places(10);
    fleet_.Reported(slot, report, MonotonicNow());
  }
  // 36 requests, at eight a server.
  EXPECT_EQ(fleet_.Desired(AllReady), 5);
  EXPECT_EQ(fleet_.Desired([](size_t) { return Fleet::Standing::kOut; }), 5);
}

TEST_F(ModelFleetTest, WhatWaitsInTheGatewayCallsForServers) {
  for (const size_t slot : {0, 1, 2}) {
    v1::LoadReport report;
    report.set_running(10);  // what a gateway that holds back what is more lets there be
    report.set_places(10);
    fleet_.Reported(slot, report, MonotonicNow());
  }
  EXPECT_EQ(fleet_.Desired(AllReady, /*waiting=*/17), 6);
}

TEST_F(ModelFleetTest, OnlyWhatWasComputedCounts) {
  const PrefixKeys keys = Prompt(1000);
  const size_t home = fleet_.Pick(keys, AllReady, false)->slot;
  fleet_.Started(home, MonotonicNow(), Reply(0, 0.1, 960), {1000});
  EXPECT_NEAR(View(home, keys).costs.per_token, 0.1 / 40, 1e-6);
  EXPECT_THAT(metrics_.Render(),
              HasSubstr("aludel_routing_hit_tokens_total{kind=\"actual\",model=\"chat\"} 960"));
  // Nonsense is not believed.
  fleet_.Started(home, MonotonicNow(), Reply(-5, 1), {1000});
  fleet_.Started(home, MonotonicNow(), Reply(0, 1, 5000), {1000});
  EXPECT_NEAR(View(home, keys).costs.per_token, 0.1 / 40, 1e-6);
}

TEST_F(ModelFleetTest, ServersThatAreAboutAlikeCountAsAlike) {
  const auto reply = [&](size_t slot, double computed) {
    for (int i = 0; i < 20; ++i) fleet_.Started(slot, MonotonicNow(), Reply(0, computed), {1000});
  };
  const PrefixKeys keys = Prompt(1000);
  reply(0, 0.10);
  // Of the others nothing was heard.
  for (size_t slot = 0; slot < 3; ++slot) EXPECT_NEAR(View(slot, keys).costs.per_token, 1e-4, 1e-6);
  reply(1, 0.12);
  for (size_t slot = 0; slot < 3; ++slot) EXPECT_NEAR(View(slot, keys).costs.per_token, 1.1e-4, 1e-6);
  reply(2, 0.50);
  EXPECT_NEAR(View(2, keys).costs.per_token, 5e-4, 1e-6);
}

TEST_F(ModelFleetTest, AServerThatSeemedSlowIsAskedAgain) {
  const PrefixKeys keys = Prompt(1000);
  const absl::Time begin = MonotonicNow();
  const size_t home = *fleet_.Explain(keys, AllReady).decision.replica;
  const auto tell = [&](absl::Duration later) {
    for (size_t slot = 0; slot < 3; ++slot) {
      v1::LoadReport report;
      report.set_prefill_seconds_per_token(slot == home ? 1e-2 : 1e-4);
      fleet_.Reported(slot, report, begin + later);
    }
  };
  tell(absl::ZeroDuration());
  const size_t other = *fleet_.Explain(keys, AllReady).decision.replica;
  EXPECT_NE(other, home);
  tell(absl::Seconds(25));
  EXPECT_NEAR(View(home, keys).costs.per_token, 1e-2, 1e-6);
  tell(absl::Seconds(35));
  for (size_t slot = 0; slot < 3; ++slot) {
    EXPECT_NEAR(View(slot, keys).costs.per_token, 1e-4, 1e-8) << "those that seem fast are believed";
  }
  const auto picked = fleet_.Pick(keys, AllReady, false);
  EXPECT_EQ(picked->slot, home);
  // A step of few tokens tells nothing of it, and what is late is refused all the same.
  fleet_.Started(home, MonotonicNow(), Reply(0, 0.1), {50});
  EXPECT_NEAR(View(home, keys).costs.per_token, 1e-4, 1e-8);
  v1::LoadReport busy;
  busy.set_waiting_seconds(10);
  for (size_t slot = 0; slot < 3; ++slot) fleet_.Reported(slot, busy, begin + absl::Seconds(36));
  EXPECT_TRUE(fleet_.Pick(keys, AllReady, false, 1, /*max_ttft=*/2)->late.has_value());
  // It is slow, or it is not: what it was is over.
  for (int i = 0; i < 2; ++i) fleet_.Started(other, MonotonicNow(), Reply(0, 0.1), {1000});
  fleet_.Started(home, MonotonicNow(), Reply(0, 3), {1000});
  EXPECT_NEAR(View(home, keys).costs.per_token, 3e-3, 1e-6);
}

TEST_F(ModelFleetTest, AProcessThatStartedAgainHasNothingCached) {
  const PrefixKeys keys = Prompt(640);
  const size_t home = fleet_.Pick(keys, AllReady, false)->slot;
  EXPECT_EQ(View(home, keys).cached_tokens, 640);
  fleet_.SetPlaces(home, 5);
  fleet_.Restarted(home);
  EXPECT_EQ(View(home, keys).cached_tokens, 0);
}

TEST_F(ModelFleetTest, AServerThatFailsRequestsIsLeftOut) {
  const PrefixKeys keys = Prompt(640);
  const size_t home = fleet_.Pick(keys, AllReady, false)->slot;
  fleet_.Ended(home, grpc::Status::OK);
  const auto end = [&](grpc::StatusCode code) {
    for (int i = 0; i < 3; ++i)
      fleet_.Ended(fleet_.Pick(keys, AllReady, false)->slot, grpc::Status(code, "x"));
  };
  // The request's fault, or a full server's, is not the server's.
  end(grpc::StatusCode::INVALID_ARGUMENT);
  end(grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(fleet_.Pick(keys, AllReady, false)->slot, home);
  end(grpc::StatusCode::INTERNAL);
  EXPECT_NE(fleet_.Pick(keys, AllReady, false)->slot, home);
  EXPECT_THAT(metrics_.Render(), HasSubstr("aludel_routing_ejections_total{model=\"chat\"} 1"));
}

TEST_F(ModelFleetTest, ExplainingCountsNothing) {
  const PrefixKeys keys = Prompt(640);
  const ModelFleet::Explanation before = fleet_.Explain(keys, AllReady);
  EXPECT_EQ(before.key_tokens, 64);
  EXPECT_EQ(before.decision.reason, RoutingReason::kFirst);
  EXPECT_EQ(View(*before.decision.replica, keys).pending, 0);
  EXPECT_EQ(fleet_.Pick(keys, AllReady, false)->slot, *before.decision.replica);
  EXPECT_THAT(metrics_.Render(),
              HasSubstr("aludel_routing_decisions_total{model=\"chat\",reason=\"first\"} 1"));
}

// Its own thread tells, as a stream's does; none of the requests meanwhile waits for all of it.
TEST_F(ModelFleetTest, RequestsAreRoutedWhileACacheIsLearnedAndForgotten) {
  std::vector<KeyChange> told;
  for (uint64_t i = 0; i < 200'000; ++i) told.push_back({MixBits(i), KeyChange::kPrefixEnd});
  const PrefixKeys keys = Prompt(640);
  std::atomic<bool> over = false;
  const auto picks_while = [&](const std::function<void()>& change) {
    over = false;
    int picks = 0;
    std::thread stream([&] {
      change();
      over = true;
    });
    for (; !over; ++picks) {
      const auto picked = fleet_.Pick(keys, AllReady, false);
      if (!picked) break;
      fleet_.Ended(picked->slot, grpc::Status::OK);
      absl::SleepFor(absl::Microseconds(100));
    }
    stream.join();
    return picks;
  };
  // 782 steps each.
  EXPECT_GT(picks_while([&] { EXPECT_EQ(fleet_.CacheKnown(0, told, kKeyTokens), 200'000u); }), 100);
  EXPECT_GT(picks_while([&] { fleet_.CacheUnknown(0); }), 100);
  EXPECT_EQ(fleet_.CacheKnown(0, absl::MakeConstSpan(told).first(10), kKeyTokens), 10u);
  std::vector<KeyChange> removed;
  for (uint64_t i = 0; i < 5; ++i) removed.push_back({MixBits(i), KeyChange::kRemoved});
  EXPECT_EQ(fleet_.CacheChanged(0, removed), 5u);
  EXPECT_EQ(fleet_.CacheChanged(1, removed), std::nullopt);
}

TEST_F(ModelFleetTest, ImbalanceIsTheLongestQueueOverTheMean) {
  EXPECT_EQ(fleet_.Imbalance(AllReady), 1);
  const size_t home = fleet_.Pick(Prompt(640), AllReady, false)->slot;
  fleet_.Started(home, MonotonicNow(), Reply(100, 1), {640});
  EXPECT_NEAR(fleet_.Imbalance(AllReady), 3, 0.01);
}

}  // namespace
}  // namespace aludel
