#include "gtest/gtest.h"
#include "tests/e2e/fleet.h"

namespace aludel {
namespace {

constexpr uint32_t kTokens = 12;
constexpr int64_t kBlockTokens = 16;
constexpr char kQueries[] = "aludel_prefix_cache_queries_total{model=\"demo\"}";
constexpr char kHits[] = "aludel_prefix_cache_hits_total{model=\"demo\"}";

FleetOptions Options(bool prefix_cache) {
  FleetOptions options;
  options.decode_model = "deploy/demo/chat";
  options.codec = "artifact: 'deploy/demo/codec'";
  options.prefix_cache = prefix_cache;
  return options;
}

Answer Ask(Fleet& fleet, const std::vector<int32_t>& prompt, const std::string& format) {
  v1::GenerateRequest request = Fleet::Request(prompt, kTokens, format);
  if (format.empty()) request.set_fidelity(v1::FIDELITY_EXACT);
  Answer answer = fleet.Ask(request);
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  return answer;
}

// Full blocks of everything but the last token.
int64_t Cacheable(const std::vector<int32_t>& prompt) {
  return (static_cast<int64_t>(prompt.size()) - 1) / kBlockTokens * kBlockTokens;
}

TEST(PrefixCache, GivesTheAnswersOfServersWithoutOneAndNeverServesCodesToExactRequests) {
  const std::vector<int32_t> prompt = DemoPrompts(1)[0];
  const std::vector<std::string> formats = {"", "aludel-p0", "paper"};  // "" is exact
  std::vector<Answer> fresh;
  {
    Fleet fleet(Options(false));
    ASSERT_TRUE(fleet.Start());
    for (const std::string& format : formats) {
      fresh.push_back(Ask(fleet, prompt, format));
      const Answer again = Ask(fleet, prompt, format);
      EXPECT_EQ(again.started.plan(), format.empty() ? "local" : "remote");
      EXPECT_EQ(again.started.cached_tokens(), 0u);
      EXPECT_EQ(again.tokens, fresh.back().tokens);
    }
    EXPECT_EQ(fleet.decode().Metric(kQueries), 0);
  }
  Fleet fleet(Options(true));
  ASSERT_TRUE(fleet.Start());
  // Codes first: what follows must not find them.
  for (size_t i = formats.size(); i-- > 0;) {
    const Answer first = Ask(fleet, prompt, formats[i]);
    EXPECT_EQ(first.started.cached_tokens(), 0u) << formats[i];
    EXPECT_EQ(first.tokens, fresh[i].tokens) << formats[i];
  }
  EXPECT_EQ(fleet.decode().Metric(kHits), 0);
  for (size_t i = 0; i < formats.size(); ++i) {
    const Answer again = Ask(fleet, prompt, formats[i]);
    EXPECT_EQ(again.started.plan(), formats[i].empty() ? "local" : "cached");
    EXPECT_EQ(again.started.format(), formats[i]);
    EXPECT_EQ(again.started.cached_tokens(), Cacheable(prompt));
    EXPECT_EQ(again.started.payload_bytes(), 0u);
    EXPECT_EQ(again.tokens, fresh[i].tokens) << formats[i];
  }
  EXPECT_EQ(fleet.decode().Metric(kHits), 3 * Cacheable(prompt));
  EXPECT_EQ(fleet.decode().Metric(kQueries), 6 * prompt.size());
  // Whoever bounds the age of codes gets some that somebody knows the age of.
  v1::GenerateRequest strict = Fleet::Request(prompt, kTokens, "paper");
  strict.set_max_staleness_ms(0);
  const Answer made = fleet.Ask(strict);
  EXPECT_EQ(made.started.plan(), "remote");
  EXPECT_EQ(made.started.cached_tokens(), 0u);
  EXPECT_EQ(made.tokens, fresh.back().tokens);
  EXPECT_TRUE(fleet.DecodeIsIdle());
}

TEST(PrefixCache, SavesThePrefillServerWhatItHasComputedAndSent) {
  Fleet fleet(Options(false));
  ASSERT_TRUE(fleet.Start());
  std::vector<int32_t> prompt;
  for (const auto& part : DemoPrompts(3)) prompt.insert(prompt.end(), part.begin(), part.end());
  prompt.resize(600);
  std::vector<int32_t> other = prompt;
  other[540] = prompt[2];  // behind two whole chunks of 256
  Ask(fleet, prompt, "paper");
  constexpr char kComputed[] = "aludel_engine_events_total{event=\"prompt_token\",model=\"base\"}";
  const double computed = fleet.prefill().Metric(kComputed);
  Ask(fleet, other, "paper");
  EXPECT_EQ(fleet.prefill().Metric(kComputed) - computed, 599 - 512);
  EXPECT_EQ(fleet.prefill().Metric("aludel_prefix_cache_hits_total{model=\"base\"}"), 512);
  EXPECT_TRUE(fleet.PrefillIsIdle());
}

}  // namespace
}  // namespace aludel
