// Prefill servers that share a remote tier, a real redis-server: what one has computed the other sends, and a remote
// that hangs, dies or comes back costs no request its answer.

#include <functional>
#include <future>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/rpc/cache_salt.h"
#include "tests/e2e/fleet.h"
#include "tests/testing/redis_process.h"
#include "tests/testing/slow_proxy.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

constexpr size_t kPrompts = 4;
constexpr char kHit[] = "aludel_store_lookups_total{result=\"hit\"}";
constexpr char kMiss[] = "aludel_store_lookups_total{result=\"miss\"}";
constexpr char kOpen[] = "aludel_store_open{tier=\"remote\"}";
constexpr char kErrors[] = "aludel_store_remote_failures_total{reason=\"error\"}";
constexpr char kLate[] = "aludel_store_remote_failures_total{reason=\"late\"}";
constexpr char kQueued[] = "aludel_store_remote_queued_bytes";
constexpr char kRemoteLoads[] = "aludel_store_remote_loads_total";
constexpr char kRemoteTokens[] = "aludel_store_hit_tokens_total{tier=\"remote\"}";
constexpr char kComputed[] = "aludel_engine_events_total{event=\"prompt_token\",model=\"base\"}";

class SharedStore : public ::testing::Test {
 protected:
  // A fleet of its own with a memory of its own. Machines that test are busy: a look-up may take long where
  // it is to succeed.
  std::unique_ptr<Fleet> StartFleet(int max_wait_ms, const std::string& address = "") const {
    FleetOptions options;
    options.decode_model = "deploy/demo/chat";
    options.codec = "artifact: 'deploy/demo/codec'";
    options.prefill =
        absl::StrCat("store { remote { address: '", address.empty() ? redis_.address() : address,
                     "' max_wait_ms: ", max_wait_ms, " } }");
    auto fleet = std::make_unique<Fleet>(options);
    EXPECT_TRUE(fleet->Start());
    EXPECT_TRUE(fleet->prefill().WaitMetric(kOpen, 1));
    return fleet;
  }
  static Answer Ask(Fleet& fleet, const std::vector<int32_t>& prompt, const std::string& salt = "",
                    const std::string& format = "aludel-p2") {
    v1::GenerateRequest request = Fleet::Request(prompt, 8, format);
    request.set_cache_salt(salt);
    const Answer answer = fleet.Ask(request);
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.started.plan(), "remote") << answer.started.fallback_reason();
    return answer;
  }

  // A server that has asked for the first `prompts` and found all of them at the remote. A look-up is waited for no longer than
  // computing takes, for which a busy machine may be too slow: then another server is tried.
  std::unique_ptr<Fleet> StartAndHit(size_t prompts, const std::string& tenant,
                                     const std::function<void(size_t, const Answer&)>& check) const {
    std::unique_ptr<Fleet> fleet;
    for (int i = 0; i < 20 && (fleet == nullptr || fleet->prefill().Metric(kHit) < prompts); ++i) {
      fleet = StartFleet(2000);
      for (size_t p = 0; p < prompts; ++p) check(p, Ask(*fleet, prompts_[p], MakeCacheSalt(tenant, "")));
    }
    EXPECT_EQ(fleet->prefill().Metric(kHit), prompts);
    return fleet;
  }

  RedisProcess redis_;
  const std::vector<std::vector<int32_t>> prompts_ = DemoPrompts(kPrompts);
};

TEST_F(SharedStore, ASecondServerHitsWhatTheFirstComputed) {
  std::vector<Answer> fresh;
  {
    const auto first = StartFleet(2000);
    for (const auto& prompt : prompts_) fresh.push_back(Ask(*first, prompt, MakeCacheSalt("alice", "")));
    EXPECT_EQ(first->prefill().Metric(kMiss), kPrompts);
    ASSERT_TRUE(first->prefill().WaitMetric(kQueued, 0));
  }
  const auto second = StartAndHit(kPrompts, "alice", [&](size_t i, const Answer& answer) {
    EXPECT_EQ(answer.tokens, fresh[i].tokens) << i;
    EXPECT_EQ(answer.started.payload_bytes(), fresh[i].started.payload_bytes()) << i;
  });
  size_t tokens = 0;
  for (const auto& prompt : prompts_) tokens += prompt.size() - 1;  // the last one is the decode server's
  EXPECT_EQ(second->prefill().Metric(kComputed), 0) << "a forward pass";
  EXPECT_EQ(second->prefill().Metric(kRemoteTokens), tokens);
  // Another tenant asks the same, and gets nothing of it.
  Ask(*second, prompts_[0], MakeCacheSalt("bob", ""));
  EXPECT_EQ(second->prefill().Metric(kMiss), 1);
  EXPECT_EQ(second->prefill().Metric(kRemoteTokens), tokens);
  EXPECT_TRUE(second->PrefillIsIdle());
}

TEST_F(SharedStore, RequestsGoOnWhileTheRemoteHangsOrIsGone) {
  const auto fleet = StartFleet(10);
  const auto expect_served = [&](const std::string& salt) {
    for (const auto& prompt : prompts_) {
      const Answer answer = Ask(*fleet, prompt, MakeCacheSalt(salt, ""));
      EXPECT_EQ(answer.tokens.size(), 8u);
    }
  };
  expect_served("before");
  // A busy machine's remote may have been silent for 10 ms.
  ASSERT_TRUE(fleet->prefill().WaitMetric(kOpen, 1));
  redis_.Freeze();
  const double errors = fleet->prefill().Metric(kErrors);
  expect_served("frozen");
  EXPECT_EQ(fleet->prefill().Metric(kOpen), 0);
  // One read, or one write that was under way: then the remote is left out.
  EXPECT_GE(fleet->prefill().Metric(kErrors), errors + 1);
  EXPECT_LE(fleet->prefill().Metric(kErrors), errors + 2);
  redis_.Thaw();
  EXPECT_TRUE(fleet->prefill().WaitMetric(kOpen, 1));

  redis_.Kill();
  expect_served("gone");
  EXPECT_TRUE(fleet->prefill().WaitMetric(kOpen, 0));
  redis_.Start();
  ASSERT_TRUE(fleet->prefill().WaitMetric(kOpen, 1, absl::Seconds(20)));
  expect_served("again");
  ASSERT_TRUE(fleet->prefill().WaitMetric(kQueued, 0));
  StartAndHit(1, "again", [](size_t, const Answer&) {});
  EXPECT_TRUE(fleet->PrefillIsIdle());
}

// A prompt of which the remote has two chunks, and a server that reads them through a proxy, which may hold the second.
class SlowSharedStore : public SharedStore {
 protected:
  static constexpr size_t kFirst = 256;  // tokens of a step
  static constexpr size_t kSecond = 100;

  SlowSharedStore() {
    for (const auto& prompt : DemoPrompts(6)) prompt_.insert(prompt_.end(), prompt.begin(), prompt.end());
    prompt_.resize(900);
    fresh_ = Ask(*first_, prompt_, "fresh").tokens;
  }

  // The remote has the two chunks from now on, under this tenant's salt.
  void Store(const std::string& tenant) {
    const std::vector<int32_t> beginning(prompt_.begin(), prompt_.begin() + kFirst + kSecond + 1);
    const Answer answer = Ask(*first_, beginning, tenant);
    second_bytes_ = answer.started.payload_bytes() * (kSecond + 50) / (kFirst + kSecond);
    EXPECT_TRUE(first_->prefill().WaitMetric(kQueued, 0));
  }

  // Large chunks, which a record's other bytes do not matter for.
  static Answer Ask(Fleet& fleet, const std::vector<int32_t>& prompt, const std::string& tenant = "alice") {
    return SharedStore::Ask(fleet, prompt, MakeCacheSalt(tenant, ""), "raw");
  }
  static bool AwaitAbove(Fleet& fleet, const char* metric, double value, absl::Duration limit) {
    const absl::Time until = MonotonicNow() + limit;
    while (fleet.prefill().Metric(metric) <= value) {
      if (MonotonicNow() > until) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return true;
  }
  // Asks for what is stored now, and while the second chunk is held runs `meanwhile`.
  Answer AskWhileHeld(Fleet& fleet, const std::function<void()>& meanwhile,
                      const std::string& tenant = "alice") {
    Store(tenant);
    proxy_.HoldValuesBelow(second_bytes_);
    std::future<Answer> answer = std::async(std::launch::async, [&] { return Ask(fleet, prompt_, tenant); });
    const absl::Time until = MonotonicNow() + absl::Seconds(20);
    while (proxy_.held() == 0 && MonotonicNow() < until) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_GE(proxy_.held(), 1);
    meanwhile();
    Answer answered = answer.get();
    proxy_.LetThrough();
    return answered;
  }

  SlowProxy proxy_{redis_.port()};
  const std::unique_ptr<Fleet> first_ = StartFleet(2000);  // stores what others read
  std::vector<int32_t> prompt_;
  size_t second_bytes_ = 0;  // more than it has, and less than the first
  std::vector<int32_t> fresh_;
};

// By events: the second chunk is held back until the engine has begun. A machine that is so busy that the read is given
// up before that gets another try: with another salt, since what it computed is stored.
TEST_F(SlowSharedStore, TheRestIsComputedWhileTheRemoteIsRead) {
  bool overlapped = false;
  for (int i = 0; i < 20 && !overlapped; ++i) {
    const auto fleet = StartFleet(10000, proxy_.address());
    const double computed = fleet->prefill().Metric(kComputed);
    const auto meanwhile = [&] {
      const bool began = AwaitAbove(*fleet, kComputed, computed, absl::Milliseconds(700));
      overlapped = began && fleet->prefill().Metric(kLate) == 0;
      proxy_.LetThrough();
    };
    const Answer answer = AskWhileHeld(*fleet, meanwhile, absl::StrCat("try", i));
    EXPECT_EQ(answer.tokens, fresh_);
    const bool late = fleet->prefill().Metric(kLate) > 0;
    EXPECT_EQ(fleet->prefill().Metric(kRemoteTokens), late ? kFirst : kFirst + kSecond);
    EXPECT_TRUE(fleet->PrefillIsIdle());
  }
  EXPECT_TRUE(overlapped);
}

TEST_F(SlowSharedStore, WhatTheRemoteWithholdsIsComputedAfterAll) {
  const auto fleet = StartFleet(10000, proxy_.address());
  const Answer answer = AskWhileHeld(*fleet, [] {});
  EXPECT_EQ(answer.tokens, fresh_);
  EXPECT_EQ(fleet->prefill().Metric(kRemoteTokens), kFirst);
  EXPECT_EQ(fleet->prefill().Metric(kLate), 1);
  // And kept: the next one finds all of it here.
  const double computed = fleet->prefill().Metric(kComputed);
  EXPECT_EQ(Ask(*fleet, prompt_).tokens, fresh_);
  EXPECT_EQ(fleet->prefill().Metric(kComputed), computed);
  EXPECT_TRUE(fleet->PrefillIsIdle());
}

TEST_F(SlowSharedStore, ARemoteThatDiesWhileItIsReadCostsNoAnswer) {
  const auto fleet = StartFleet(10000, proxy_.address());
  const Answer answer = AskWhileHeld(*fleet, [&] {
    EXPECT_TRUE(AwaitAbove(*fleet, kRemoteLoads, 0, absl::Seconds(20)));  // the first chunk
    redis_.Kill();
    proxy_.CutHeld();
  });
  EXPECT_EQ(answer.tokens, fresh_);
  EXPECT_EQ(fleet->prefill().Metric(kRemoteTokens), kFirst);
  EXPECT_TRUE(fleet->PrefillIsIdle());
}

}  // namespace
}  // namespace aludel
