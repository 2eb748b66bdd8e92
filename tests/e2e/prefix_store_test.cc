#include <thread>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/e2e/fleet.h"

namespace aludel {
namespace {

constexpr size_t kPrompts = 4;
constexpr char kHit[] = "aludel_store_lookups_total{result=\"hit\"}";
constexpr char kPartial[] = "aludel_store_lookups_total{result=\"partial\"}";
constexpr char kMiss[] = "aludel_store_lookups_total{result=\"miss\"}";
constexpr char kComputed[] = "aludel_engine_events_total{event=\"prompt_token\",model=\"base\"}";

FleetOptions Consumer(const std::string& model, int prefill_port = 0) {
  FleetOptions options;
  options.decode_model = absl::StrCat("deploy/demo/", model);
  options.codec = "artifact: 'deploy/demo/codec'";
  options.prefill_port = prefill_port;
  return options;
}

Answer Ask(Fleet& fleet, const std::vector<int32_t>& prompt, const std::string& format) {
  const Answer answer = fleet.Ask(Fleet::Request(prompt, 12, format));
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.started.plan(), "remote") << answer.started.fallback_reason();
  return answer;
}

// One prefill server for two fine-tunes: what chat asked for, json gets without a forward pass, and answers
// as if it had been computed for it.
TEST(PrefixStore, ServesASecondConsumerFromTheFirstOnesFrames) {
  const auto prompts = DemoPrompts(kPrompts);
  std::vector<Answer> fresh;
  {
    Fleet json(Consumer("json"));
    ASSERT_TRUE(json.Start());
    for (const auto& prompt : prompts) fresh.push_back(Ask(json, prompt, "aludel-p0"));
    EXPECT_EQ(json.prefill().Metric(kHit), 0);
  }
  Fleet chat(Consumer("chat"));
  ASSERT_TRUE(chat.Start());
  Fleet json(Consumer("json", chat.prefill_port()));
  ASSERT_TRUE(json.Start());
  for (const auto& prompt : prompts) Ask(chat, prompt, "aludel-p0");
  const double computed = chat.prefill().Metric(kComputed);
  for (size_t i = 0; i < kPrompts; ++i) {
    const Answer answer = Ask(json, prompts[i], "aludel-p0");
    EXPECT_EQ(answer.tokens, fresh[i].tokens) << i;
    EXPECT_EQ(answer.started.payload_bytes(), fresh[i].started.payload_bytes()) << i;
  }
  EXPECT_EQ(chat.prefill().Metric(kHit), kPrompts);
  EXPECT_EQ(chat.prefill().Metric(kMiss), kPrompts);
  EXPECT_EQ(chat.prefill().Metric(kComputed), computed);  // no forward pass since
  EXPECT_GT(chat.prefill().Metric("aludel_store_bytes{tier=\"memory\"}"), 0);

  // Another format's frames are others.
  Ask(json, prompts[0], "aludel-p2");
  EXPECT_EQ(chat.prefill().Metric(kMiss), kPrompts + 1);
  EXPECT_TRUE(chat.PrefillIsIdle());
}

TEST(PrefixStore, SendsAKnownBeginningAndEncodesTheRest) {
  Fleet fleet(Consumer("chat"));
  ASSERT_TRUE(fleet.Start());
  std::vector<int32_t> prompt;
  for (const auto& part : DemoPrompts(3)) prompt.insert(prompt.end(), part.begin(), part.end());
  prompt.resize(600);  // two whole chunks of 256, and a rest
  std::vector<int32_t> other = prompt;
  other[540] = prompt[2];
  const Answer fresh = Ask(fleet, prompt, "scd");
  const Answer answer = Ask(fleet, other, "scd");  // shares the two whole chunks
  EXPECT_EQ(fleet.prefill().Metric(kPartial), 1);
  EXPECT_EQ(fleet.prefill().Metric("aludel_store_hit_tokens_total{tier=\"memory\"}"), 512);
  EXPECT_EQ(answer.started.payload_bytes(), fresh.started.payload_bytes());
  // The whole of it is known now; what was put together from both answers alike.
  const Answer again = Ask(fleet, other, "scd");
  EXPECT_EQ(fleet.prefill().Metric(kHit), 1);
  EXPECT_EQ(again.tokens, answer.tokens);
  // Unless the client wants nothing from a cache.
  v1::GenerateRequest strict = Fleet::Request(other, 12, "scd");
  strict.set_max_staleness_ms(0);
  EXPECT_EQ(fleet.Ask(strict).tokens, answer.tokens);
  EXPECT_EQ(fleet.prefill().Metric(kHit), 1);
  EXPECT_EQ(fleet.prefill().Metric(kMiss), 2);
  Fleet uncached(Consumer("chat"));
  ASSERT_TRUE(uncached.Start());
  EXPECT_EQ(Ask(uncached, other, "scd").tokens, answer.tokens);
}

// Nine wait for the first one's chunks, and each adds what only its own prompt has.
TEST(PrefixStore, ParallelRequestsOfOneNewPrefixEncodeItOnce) {
  constexpr size_t kParallel = 10;
  FleetOptions options = Consumer("chat");
  options.engine = "prefix_cache: false";
  options.max_num_seqs = 16;
  Fleet fleet(options);
  ASSERT_TRUE(fleet.Start());
  std::vector<int32_t> prompt;
  for (const auto& part : DemoPrompts(3)) prompt.insert(prompt.end(), part.begin(), part.end());
  prompt.resize(550);
  std::vector<std::vector<int32_t>> prompts(kParallel, prompt);
  for (size_t i = 0; i < kParallel; ++i) prompts[i][540] = prompt[2 + i];
  std::vector<Answer> answers(kParallel);
  const auto ask_all = [&] {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < kParallel; ++i) {
      threads.emplace_back([&, i] { answers[i] = Ask(fleet, prompts[i], "scd"); });
    }
    for (std::thread& thread : threads) thread.join();
  };
  ask_all();
  EXPECT_EQ(fleet.prefill().Metric(kMiss), 1);
  EXPECT_EQ(fleet.prefill().Metric(kPartial), kParallel - 1);
  EXPECT_EQ(fleet.prefill().Metric("aludel_store_hit_tokens_total{tier=\"memory\"}"), (kParallel - 1) * 512);
  const std::vector<Answer> shared = answers;
  // All of them are there now.
  ask_all();
  EXPECT_EQ(fleet.prefill().Metric(kHit), kParallel);
  for (size_t i = 0; i < kParallel; ++i) EXPECT_EQ(answers[i].tokens, shared[i].tokens) << i;
  EXPECT_TRUE(fleet.PrefillIsIdle());
}

}  // namespace
}  // namespace aludel
