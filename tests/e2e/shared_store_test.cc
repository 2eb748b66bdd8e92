// Prefill servers that share a remote tier, a real redis-server: what one has computed the other sends, and a remote
// that hangs, dies or comes back costs no request its answer.

#include <memory>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/rpc/cache_salt.h"
#include "tests/e2e/fleet.h"
#include "tests/testing/redis_process.h"

namespace aludel {
namespace {

constexpr size_t kPrompts = 4;
constexpr char kHit[] = "aludel_store_lookups_total{result=\"hit\"}";
constexpr char kMiss[] = "aludel_store_lookups_total{result=\"miss\"}";
constexpr char kOpen[] = "aludel_store_open{tier=\"remote\"}";
constexpr char kErrors[] = "aludel_store_remote_failures_total{reason=\"error\"}";
constexpr char kQueued[] = "aludel_store_remote_queued_bytes";
constexpr char kRemoteTokens[] = "aludel_store_hit_tokens_total{tier=\"remote\"}";
constexpr char kComputed[] = "aludel_engine_events_total{event=\"prompt_token\",model=\"base\"}";

class SharedStore : public ::testing::Test {
 protected:
  // A fleet of its own with a memory of its own. Machines that test are busy: a look-up may take long where
  // it is to succeed.
  std::unique_ptr<Fleet> StartFleet(int max_wait_ms, const std::string& store = "") const {
    FleetOptions options;
    options.decode_model = "deploy/demo/chat";
    options.codec = "artifact: 'deploy/demo/codec'";
    options.prefill = absl::StrCat("store { remote { address: '", redis_.address(),
                                   "' max_wait_ms: ", max_wait_ms, " } ", store, " }");
    auto fleet = std::make_unique<Fleet>(options);
    EXPECT_TRUE(fleet->Start());
    EXPECT_TRUE(fleet->prefill().WaitMetric(kOpen, 1));
    return fleet;
  }
  static Answer Ask(Fleet& fleet, const std::vector<int32_t>& prompt, const std::string& salt = "") {
    v1::GenerateRequest request = Fleet::Request(prompt, 8, "aludel-p2");
    request.set_cache_salt(salt);
    const Answer answer = fleet.Ask(request);
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.started.plan(), "remote") << answer.started.fallback_reason();
    return answer;
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
  const auto second = StartFleet(2000);
  const double computed = second->prefill().Metric(kComputed);
  size_t tokens = 0;
  for (size_t i = 0; i < kPrompts; ++i) {
    const Answer answer = Ask(*second, prompts_[i], MakeCacheSalt("alice", ""));
    EXPECT_EQ(answer.tokens, fresh[i].tokens) << i;
    EXPECT_EQ(answer.started.payload_bytes(), fresh[i].started.payload_bytes()) << i;
    tokens += prompts_[i].size() - 1;  // the last one is the decode server's
  }
  EXPECT_EQ(second->prefill().Metric(kHit), kPrompts);
  EXPECT_EQ(second->prefill().Metric(kComputed), computed) << "a forward pass";
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
  const auto second = StartFleet(2000);
  Ask(*second, prompts_[0], MakeCacheSalt("again", ""));
  EXPECT_EQ(second->prefill().Metric(kHit), 1);
  EXPECT_TRUE(fleet->PrefillIsIdle());
}

}  // namespace
}  // namespace aludel
