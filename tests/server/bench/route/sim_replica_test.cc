#include "server/bench/route/sim_replica.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::UnorderedElementsAre;

PrefixKeys Keys(std::vector<uint64_t> blocks) {
  PrefixKeys keys{.keys = std::move(blocks)};
  for (size_t i = 0; i < keys.size(); ++i) keys.ends.push_back(static_cast<int64_t>(512 * (i + 1)));
  keys.tokens = static_cast<int64_t>(512 * keys.size());
  return keys;
}

// Steps of 10 ms, and a chunk of prefill takes 100 ms more.
constexpr SimCosts kCosts = {.step = 0.01,
                             .per_token = 0.1 / 512,
                             .per_pair = 0,
                             .per_sequence = 0.001,
                             .chunk_tokens = 512,
                             .max_sequences = 2,
                             .cache_tokens = 100'000};

class SimReplicaTest : public ::testing::Test {
 protected:
  // When each request had its first token, its last one, and what was cached.
  void Run() {
    while (replica_.next() != SimReplica::kNever) {
      const double now = replica_.next();
      std::vector<SimReplica::Event> events;
      replica_.Step(&events);
      for (const auto& event : events) {
        (event.first_token ? first_ : last_)[event.request] = now;
        if (event.first_token) cached_[event.request] = event.cached_tokens;
      }
    }
  }

  SimReplica replica_{kCosts};
  std::map<size_t, double> first_, last_;
  std::map<size_t, int64_t> cached_;
};

TEST_F(SimReplicaTest, APromptTakesItsChunksAndAnAnswerItsSteps) {
  const PrefixKeys keys = Keys({1, 2, 3});
  replica_.Arrive(7, keys, 5, 1.0);
  Run();
  EXPECT_NEAR(first_[7], 1 + 3 * 0.11, 1e-9);
  EXPECT_NEAR(last_[7], first_[7] + 4 * 0.011, 1e-9);
}

TEST_F(SimReplicaTest, WhatIsCachedIsNotComputed) {
  const PrefixKeys keys = Keys({1, 2, 3}), longer = Keys({1, 2, 3, 4});
  replica_.Arrive(0, keys, 1, 0);
  Run();
  EXPECT_EQ(replica_.Match(longer), 3 * 512);
  replica_.Arrive(1, longer, 1, 10);
  EXPECT_NEAR(replica_.Report(10, 0).waiting_seconds, 0.11, 1e-9);
  Run();
  EXPECT_EQ(cached_[1], 3 * 512);
  EXPECT_NEAR(first_[1], 10.11, 1e-9);
}

TEST_F(SimReplicaTest, FirstComeFirstServedAsFarAsPlacesGo) {
  const PrefixKeys a = Keys({1}), b = Keys({2}), c = Keys({3});
  replica_.Arrive(0, a, 100, 0);
  replica_.Arrive(1, b, 1, 0);
  replica_.Arrive(2, c, 1, 0);
  EXPECT_EQ(replica_.running(), 3);
  EXPECT_NEAR(replica_.Report(0, 0).waiting_seconds, 3 * 0.11, 1e-9);
  Run();
  EXPECT_NEAR(first_[0], 0.11, 1e-9);
  EXPECT_NEAR(first_[1], first_[0] + 0.111, 1e-9);
  EXPECT_NEAR(first_[2], first_[1] + 0.111, 1e-9);
  EXPECT_EQ(replica_.running(), 0);
}

TEST_F(SimReplicaTest, AFailureLosesRequestsAndCache) {
  const PrefixKeys a = Keys({1}), b = Keys({2, 3});
  replica_.Arrive(0, a, 100, 0);
  std::vector<SimReplica::Event> events;
  replica_.Step(&events);
  replica_.Arrive(1, b, 1, 0.2);
  EXPECT_THAT(replica_.Fail(), UnorderedElementsAre(0u, 1u));
  EXPECT_EQ(replica_.next(), SimReplica::kNever);
  EXPECT_EQ(replica_.Match(a), 0);
  EXPECT_EQ(replica_.Report(1, 0).waiting_seconds, 0);
}

TEST_F(SimReplicaTest, WhatHasNotBegunMayLeaveAndOthersMoveUp) {
  const PrefixKeys a = Keys({1, 2}), b = Keys({3, 4}), c = Keys({5});
  replica_.Arrive(0, a, 1, 0);
  replica_.Arrive(1, b, 1, 0);
  replica_.Arrive(2, c, 1, 0);
  EXPECT_FALSE(replica_.Remaining(0, 0)) << "it is being computed";
  EXPECT_FALSE(replica_.Remaining(7, 0)) << "it is not here";
  // The running step, the other chunk of the first one, two chunks and one.
  EXPECT_NEAR(*replica_.Remaining(1, 0), 0.44, 1e-9);
  EXPECT_NEAR(*replica_.Remaining(2, 0), 0.55, 1e-9);
  const double before = replica_.Report(0, 0).waiting_seconds;
  replica_.Withdraw(1);
  EXPECT_NEAR(replica_.Report(0, 0).waiting_seconds, before - 0.22, 1e-9);
  EXPECT_NEAR(*replica_.Remaining(2, 0), 0.33, 1e-9);
  replica_.Withdraw(0);
  replica_.Withdraw(7);
  EXPECT_EQ(replica_.running(), 2) << "what has begun stays";
  Run();
  EXPECT_EQ(first_.count(1), 0u);
  EXPECT_NEAR(first_[2], 0.33, 1e-9);
}

}  // namespace
}  // namespace aludel
