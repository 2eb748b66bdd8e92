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
  const std::vector<std::string> formats = {"", "aludel-p0", "scd"};  // "" is exact
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
  v1::GenerateRequest strict = Fleet::Request(prompt, kTokens, "scd");
  strict.set_max_staleness_ms(0);
  const Answer made = fleet.Ask(strict);
  EXPECT_EQ(made.started.plan(), "remote");
  EXPECT_EQ(made.started.cached_tokens(), 0u);
  EXPECT_EQ(made.tokens, fresh.back().tokens);
  EXPECT_TRUE(fleet.DecodeIsIdle());
}

// Whatever a tenant asked for leaves nothing that another one could see: in the decode server's cache, the
// prefill server's, and its frames.
TEST(PrefixCache, KeepsTenantsApartOnBothServers) {
  Fleet fleet(Options(true));
  ASSERT_TRUE(fleet.Start());
  const std::vector<int32_t> prompt = DemoPrompts(1)[0];
  constexpr char kFrameHits[] = "aludel_store_lookups_total{result=\"hit\"}";
  constexpr char kPrefillHits[] = "aludel_prefix_cache_hits_total{model=\"base\"}";
  const auto ask = [&](const std::string& salt, const std::string& format) {
    v1::GenerateRequest request = Fleet::Request(prompt, kTokens, format);
    if (format.empty()) request.set_fidelity(v1::FIDELITY_EXACT);
    request.set_cache_salt(salt);
    Answer answer = fleet.Ask(request);
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    return answer;
  };
  for (const std::string format : {"", "scd"}) {
    std::vector<int32_t> tokens;
    for (const std::string salt : {"alice", "bob", ""}) {
      const Answer first = ask(salt, format);
      EXPECT_EQ(first.started.plan(), format.empty() ? "local" : "remote") << salt;
      EXPECT_EQ(first.started.cached_tokens(), 0u) << salt;
      if (tokens.empty()) tokens = first.tokens;
      EXPECT_EQ(first.tokens, tokens);
    }
    for (const std::string salt : {"alice", "bob", ""}) {
      const Answer again = ask(salt, format);
      EXPECT_EQ(again.started.plan(), format.empty() ? "local" : "cached") << salt;
      EXPECT_EQ(again.started.cached_tokens(), Cacheable(prompt)) << salt;
      EXPECT_EQ(again.tokens, tokens);
    }
  }
  EXPECT_EQ(fleet.prefill().Metric(kFrameHits), 0);
  EXPECT_EQ(fleet.prefill().Metric(kPrefillHits), 0);
  // The frames of one's own are still found, by another decode server's request, say.
  v1::GenerateRequest request = Fleet::Request(prompt, kTokens, "scd");
  request.set_cache_salt("alice");
  request.set_max_staleness_ms(1 << 30);
  EXPECT_EQ(fleet.Ask(request).started.plan(), "remote");
  EXPECT_EQ(fleet.prefill().Metric(kFrameHits), 1);
}

// Of the prompt, that no server computed for the answer; as the gateway counts it.
uint32_t KnownBefore(const Answer& answer) {
  return answer.started.cached_tokens() + answer.finished.stored_tokens();
}

TEST(PrefixCache, ARequestThatAsksForItLeavesNothingOnEitherServer) {
  Fleet fleet(Options(true));
  ASSERT_TRUE(fleet.Start());
  const auto prompts = DemoPrompts(2);
  constexpr char kStored[] = "aludel_store_entries{tier=\"memory\"}";
  constexpr char kPrefillHits[] = "aludel_prefix_cache_hits_total{model=\"base\"}";
  const auto ask = [&](const std::vector<int32_t>& prompt, const std::string& format, bool no_store) {
    v1::GenerateRequest request = Fleet::Request(prompt, kTokens, format);
    if (format.empty()) request.set_fidelity(v1::FIDELITY_EXACT);
    request.set_no_store(no_store);
    Answer answer = fleet.Ask(request);
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    return answer;
  };
  for (const std::string format : {"scd", ""}) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < 3; ++i) {
      const Answer answer = ask(prompts[0], format, /*no_store=*/true);
      EXPECT_EQ(answer.started.plan(), format.empty() ? "local" : "remote");
      EXPECT_EQ(KnownBefore(answer), 0u);
      if (tokens.empty()) tokens = answer.tokens;
      EXPECT_EQ(answer.tokens, tokens);
    }
  }
  EXPECT_EQ(fleet.prefill().Metric(kStored), 0);
  EXPECT_EQ(fleet.prefill().Metric(kPrefillHits), 0);
  EXPECT_EQ(fleet.decode().Metric(kHits), 0);
  // What another one has left it may use.
  const Answer first = ask(prompts[1], "scd", /*no_store=*/false);
  EXPECT_EQ(KnownBefore(first), 0u);
  EXPECT_GT(fleet.prefill().Metric(kStored), 0);
  const Answer reader = ask(prompts[1], "scd", /*no_store=*/true);
  EXPECT_EQ(reader.started.plan(), "cached");
  EXPECT_EQ(KnownBefore(reader), Cacheable(prompts[1]));
  EXPECT_TRUE(fleet.DecodeIsIdle());
}

TEST(PrefixCache, TellsHowMuchOfAPromptThePrefillServerHad) {
  Fleet fleet(Options(false));
  ASSERT_TRUE(fleet.Start());
  std::vector<int32_t> prompt;
  for (const auto& part : DemoPrompts(3)) prompt.insert(prompt.end(), part.begin(), part.end());
  prompt.resize(600);
  std::vector<int32_t> other = prompt;
  other[540] = prompt[2];  // behind two whole chunks of 256
  const Answer fresh = Ask(fleet, prompt, "scd");
  EXPECT_EQ(fresh.started.handed_over_tokens(), 599u);
  EXPECT_EQ(fresh.finished.stored_tokens(), 0u) << "what was computed for it is not cached";
  EXPECT_EQ(Ask(fleet, other, "scd").finished.stored_tokens(), 512u);
  EXPECT_EQ(Ask(fleet, prompt, "scd").finished.stored_tokens(), 599u);
}

TEST(PrefixCache, ATenantOverItsQuotaCostsNoOther) {
  FleetOptions options = Options(false);
  options.prefill = "store { memory_bytes: 67108864 tenant_memory_bytes: 2500000 }";
  Fleet fleet(options);
  ASSERT_TRUE(fleet.Start());
  const auto ask = [&](const std::vector<int32_t>& prompt, const std::string& salt) {
    v1::GenerateRequest request = Fleet::Request(prompt, 2, "raw");
    request.set_cache_salt(salt);
    const Answer answer = fleet.Ask(request);
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    return answer.finished.stored_tokens();
  };
  const auto prompts = DemoPrompts(12);
  ask(prompts[0], "alice");
  for (const auto& prompt : prompts) ask(prompt, "bob");
  EXPECT_GT(fleet.prefill().Metric("aludel_store_over_quota_total{tier=\"memory\"}"), 0);
  EXPECT_EQ(fleet.prefill().Metric("aludel_store_evictions_total{tier=\"memory\"}"), 0);
  EXPECT_LE(fleet.prefill().Metric("aludel_store_bytes{tier=\"memory\"}"), 2 * 2500000);
  EXPECT_EQ(ask(prompts[0], "alice"), prompts[0].size() - 1);
  EXPECT_EQ(ask(prompts[0], "bob"), 0u);
}

TEST(PrefixCache, RefusesAWorkflowThatIsNone) {
  Fleet fleet(Options(true));
  ASSERT_TRUE(fleet.Start());
  v1::GenerateRequest request = Fleet::Request({1, 2, 3}, 1, "");
  v1::Workflow& workflow = *request.mutable_workflow();
  EXPECT_EQ(fleet.Ask(request).status,
            absl::InvalidArgumentError("workflow.id: found 0 bytes, want 1 to 64"));
  workflow.set_id("w");
  workflow.set_agent(std::string(65, 'x'));
  EXPECT_EQ(fleet.Ask(request).status,
            absl::InvalidArgumentError("workflow.agent: found 65 bytes, want 1 to 64"));
  workflow.set_agent("a");
  for (int i = 0; i < 16; ++i) workflow.add_next("b");
  EXPECT_TRUE(fleet.Ask(request).status.ok());
  workflow.set_next(15, "");
  EXPECT_EQ(fleet.Ask(request).status,
            absl::InvalidArgumentError("workflow.next: found 0 bytes, want 1 to 64"));
  workflow.set_next(15, "b");
  workflow.add_next("b");
  EXPECT_EQ(fleet.Ask(request).status,
            absl::InvalidArgumentError("workflow.next: found 17 agents, want at most 16"));
}

TEST(PrefixCache, RefusesASaltOrARequestIdThatIsNone) {
  Fleet fleet(Options(true));
  ASSERT_TRUE(fleet.Start());
  v1::GenerateRequest request = Fleet::Request({1, 2, 3}, 1, "");
  request.set_cache_salt(std::string(65, 'x'));
  EXPECT_EQ(fleet.Ask(request).status,
            absl::InvalidArgumentError("cache_salt: found 65 bytes, want at most 64"));
  request.set_cache_salt(std::string(64, '\0'));
  EXPECT_TRUE(fleet.Ask(request).status.ok());
  for (const std::string& id : {std::string("a\nforged=line"), std::string("\x1b[2J"), std::string("a b")}) {
    request.set_request_id(id);
    EXPECT_EQ(fleet.Ask(request).status,
              absl::InvalidArgumentError("request_id: found a byte that is no visible ASCII character"));
  }
  request.set_request_id(std::string(129, 'x'));
  EXPECT_EQ(fleet.Ask(request).status,
            absl::InvalidArgumentError("request_id: found 129 bytes, want at most 128"));
}

TEST(PrefixCache, SavesThePrefillServerWhatItHasComputedAndSent) {
  Fleet fleet(Options(false));
  ASSERT_TRUE(fleet.Start());
  std::vector<int32_t> prompt;
  for (const auto& part : DemoPrompts(3)) prompt.insert(prompt.end(), part.begin(), part.end());
  prompt.resize(600);
  std::vector<int32_t> other = prompt;
  other[540] = prompt[2];  // behind two whole chunks of 256
  Ask(fleet, prompt, "scd");
  constexpr char kComputed[] = "aludel_engine_events_total{event=\"prompt_token\",model=\"base\"}";
  const double computed = fleet.prefill().Metric(kComputed);
  Ask(fleet, other, "scd");
  EXPECT_EQ(fleet.prefill().Metric(kComputed) - computed, 599 - 512);
  EXPECT_EQ(fleet.prefill().Metric("aludel_prefix_cache_hits_total{model=\"base\"}"), 512);
  EXPECT_TRUE(fleet.PrefillIsIdle());
}

}  // namespace
}  // namespace aludel
