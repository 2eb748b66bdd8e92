// What hints of workflows do, and what they cannot.

#include <unistd.h>

#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/store/agent_prompts.h"
#include "tests/server/store/store_fixture.h"

namespace aludel {
namespace {

// Of a chunk of four letters, as the store counts it.
const size_t kChunkBytes = StoredWeight(4, LetterFrames(Letters("abcd"), 0, 4));
constexpr size_t kChunks = 8;

class Workflows : public ::testing::Test {
 protected:
  Workflows() { std::filesystem::remove_all(directory_); }
  ~Workflows() override { std::filesystem::remove_all(directory_); }

  using Eviction = PrefixStore::Eviction;
  std::unique_ptr<PrefixStore> Open(bool disk = true, Eviction eviction = Eviction::kLru) const {
    PrefixStore::Options options = {.producer = "base",
                                    .memory_bytes = kChunks * kChunkBytes,
                                    .eviction = eviction,
                                    .encoders = {EncoderTag(FakeSpec())}};
    if (disk) options.disk = PrefixStore::Disk{.path = directory_, .bytes = 1 << 20};
    return std::make_unique<PrefixStore>(options);
  }
  template <typename Condition>
  static bool Await(const Condition& condition) {
    for (int i = 0; i < 2000 && !condition(); ++i) absl::SleepFor(absl::Milliseconds(5));
    return condition();
  }
  static bool AwaitWritten(const PrefixStore& store) {
    return Await([&] { return store.stats().queued_bytes == 0; });
  }
  // As a run of the agent does.
  static void Ask(PrefixStore& store, const std::string& agent, const std::string& text,
                  const std::vector<std::string>& next = {}, const std::string& salt = "") {
    const WorkflowStep step = {"flow", agent, next};
    store.Expect(step, SaltTag(salt));
    ASSERT_TRUE(PutLetters(store, text, salt));
    StorePosition at = store.Begin(FakeSpec(), salt);
    store.Find(Letters(text), absl::InfiniteDuration(), &at);
    store.Remember(step, at);
  }
  // Other prompts, as many as fill the memory.
  static void Fill(PrefixStore& store, int chunks = kChunks, const std::string& salt = "", int first = 1000) {
    for (int i = 0; i < chunks; ++i) ASSERT_TRUE(PutLetters(store, absl::StrCat(first + i), salt));
    ASSERT_TRUE(AwaitWritten(store));
  }
  static int64_t InMemory(PrefixStore& store, const std::string& text, const std::string& salt = "") {
    StorePosition at = store.Begin(FakeSpec(), salt);
    int64_t tokens = 0;
    for (const StoredChunk& chunk : store.Peek(Letters(text), &at)) {
      if (chunk.frames != nullptr) tokens += chunk.end.tokens - chunk.token_begin;
    }
    return tokens;
  }

  const std::string directory_ = absl::StrCat(::testing::TempDir(), "/workflows-", getpid());
};

TEST_F(Workflows, WhatWentToDiskIsInMemoryBeforeItsAgentAsks) {
  const auto store = Open();
  Ask(*store, "writer", "abcdefgh");
  Fill(*store);
  ASSERT_EQ(InMemory(*store, "abcdefgh"), 0);
  // Three steps away it is not read, one or two away it is.
  Ask(*store, "planner", "plan", {"a", "b", "writer"});
  EXPECT_EQ(InMemory(*store, "abcdefgh"), 0);
  Ask(*store, "planner", "plan", {"a", "writer"});
  EXPECT_TRUE(Await([&] { return store->stats().expected.loaded == 2; }));
  EXPECT_EQ(InMemory(*store, "abcdefgh"), 8);
  EXPECT_LE(store->stats().memory.bytes, kChunks * kChunkBytes);
}

TEST_F(Workflows, WithoutAHintItStaysOnDisk) {
  const auto store = Open();
  Ask(*store, "writer", "abcdefgh");
  Fill(*store);
  Ask(*store, "planner", "plan");
  Ask(*store, "planner", "plan", {"critic"});
  absl::SleepFor(absl::Milliseconds(100));
  EXPECT_EQ(InMemory(*store, "abcdefgh"), 0);
  EXPECT_EQ(store->stats().loads, 0u);
}

TEST_F(Workflows, WhatIsExpectedOutlivesOthersOfItsTenantUntilItsAgentAsks) {
  const auto store = Open(/*disk=*/false);
  Ask(*store, "writer", "abcdefgh");
  Ask(*store, "planner", "plan", {"critic", "a", "b", "c", "writer"});
  EXPECT_EQ(store->stats().expected.kept, 2u);
  Fill(*store, 3 * kChunks);
  EXPECT_EQ(InMemory(*store, "abcdefgh"), 8);
  Ask(*store, "writer", "abcdefgh");  // its turn
  Fill(*store, 3 * kChunks, "", 2000);
  EXPECT_EQ(InMemory(*store, "abcdefgh"), 0);
}

TEST_F(Workflows, ByUtilityToo) {
  for (const bool hinted : {false, true}) {
    const auto store = Open(/*disk=*/false, Eviction::kUtility);
    Ask(*store, "writer", "abcdefgh");
    Ask(*store, "planner", "plan", {hinted ? "writer" : "critic"});
    for (int i = 0; i < 3 * static_cast<int>(kChunks); ++i) {
      // Each is used more often than what is expected.
      for (int uses = 0; uses < 5; ++uses) Fill(*store, 1, "", 1000 + i);
      EXPECT_LE(store->stats().memory.bytes, kChunks * kChunkBytes);
    }
    EXPECT_EQ(InMemory(*store, "abcdefgh"), hinted ? 8 : 0);
  }
}

TEST_F(Workflows, AnotherTenantsChunksAreNotEvictedForHints) {
  const auto store = Open();
  // Alice's agents have all been to disk; bob fills the memory.
  for (int i = 0; i < 8; ++i) Ask(*store, absl::StrCat("agent", i), absl::StrCat("abc", i), {}, "alice");
  Fill(*store, kChunks, "bob");
  ASSERT_EQ(store->stats().memory.entries, kChunks);
  const WorkflowStep hostile = {"flow", "none", {"agent0", "agent1", "agent2", "agent3"}};
  for (int i = 0; i < 20; ++i) store->Expect(hostile, SaltTag("alice"));
  EXPECT_TRUE(Await([&] { return store->stats().expected.no_room > 0; }));
  for (int i = 0; i < static_cast<int>(kChunks); ++i) {
    EXPECT_EQ(InMemory(*store, absl::StrCat(1000 + i), "bob"), 4) << i;
  }
  EXPECT_EQ(store->stats().expected.loaded, 0u);
}

TEST_F(Workflows, AnExpectedChunkGoesBeforeAnotherTenantsYoungerOne) {
  const auto store = Open(/*disk=*/false);
  Ask(*store, "writer", "abcd", {}, "alice");
  Ask(*store, "planner", "plan", {"writer"}, "alice");
  ASSERT_TRUE(PutLetters(*store, "wxyz", "bob"));
  Fill(*store, kChunks - 1, "carol");
  // Alice's two are the oldest: first the one that nothing expects went, then the other.
  EXPECT_EQ(InMemory(*store, "plan", "alice"), 0);
  EXPECT_EQ(InMemory(*store, "abcd", "alice"), 0);
  EXPECT_EQ(InMemory(*store, "wxyz", "bob"), 4);
}

TEST_F(Workflows, TwoSaltsKnowNothingOfEachOthersAgents) {
  const auto store = Open();
  Ask(*store, "writer", "abcd", {}, "alice");
  Fill(*store, kChunks, "alice");
  Ask(*store, "planner", "plan", {"writer"}, "bob");
  absl::SleepFor(absl::Milliseconds(100));
  EXPECT_EQ(InMemory(*store, "abcd", "alice"), 0);
  const ExpectedStats expected = store->stats().expected;
  EXPECT_EQ(expected.kept + expected.loaded + expected.no_room + expected.lost, 0u);
}

TEST_F(Workflows, ATenantExpectsAQuarterOfTheMemoryAtMost) {
  const auto store = Open(/*disk=*/false);
  Ask(*store, "big", "abcdefghijkl");  // three of eight chunks
  Ask(*store, "small", "ABCD");
  Ask(*store, "planner", "plan", {"big", "small"});
  EXPECT_EQ(store->stats().expected.no_room, 3u);
  EXPECT_EQ(store->stats().expected.kept, 1u);
  Fill(*store, 2 * kChunks);
  EXPECT_EQ(InMemory(*store, "abcdefghijkl"), 0);
  EXPECT_EQ(InMemory(*store, "ABCD"), 4);
}

TEST_F(Workflows, AClearForgetsAgents) {
  const auto store = Open();
  Ask(*store, "writer", "abcd");
  ASSERT_TRUE(ClearAndWait(*store).ok());
  Ask(*store, "planner", "plan", {"writer"});
  EXPECT_EQ(store->stats().expected.lost, 0u);
}

AgentPrompts::Prompt PromptOf(uint8_t first, size_t chunks) {
  AgentPrompts::Prompt prompt;
  for (size_t i = 0; i < chunks; ++i) {
    AgentPrompts::Chunk chunk;
    chunk.key[0] = first;
    chunk.key[1] = static_cast<uint8_t>(i);
    chunk.key[2] = static_cast<uint8_t>(i >> 8);
    prompt.chunks.push_back(chunk);
  }
  return prompt;
}

TEST(AgentPromptsTest, IsBoundedInAgentsChunksTenantsAndTime) {
  AgentPrompts agents(1 << 20);
  const absl::Time now = absl::UnixEpoch();
  const StoreTag alice = SaltTag("alice");
  const auto known = [&](const StoreTag& salt, int agent, absl::Time at) {
    return agents.Find(salt, "flow", absl::StrCat(agent), at).chunks.size();
  };
  for (size_t i = 0; i <= AgentPrompts::kMaxAgents; ++i) {
    agents.Remember(alice, "flow", absl::StrCat(i), PromptOf(1, 1), now);
  }
  EXPECT_EQ(known(alice, 0, now), 0u);
  EXPECT_EQ(known(alice, 1, now), 1u);
  EXPECT_EQ(agents.Find(alice, "flow1", "", now).chunks.size(), 0u) << "names do not run together";
  // Long prompts: the beginning counts, and few of them fit.
  constexpr size_t kLong = AgentPrompts::kMaxOfAll / AgentPrompts::kMaxChunks;
  for (size_t i = 0; i < kLong; ++i) {
    agents.Remember(alice, "flow", absl::StrCat(1000 + i), PromptOf(2, AgentPrompts::kMaxChunks + 9), now);
  }
  EXPECT_EQ(known(alice, 1000, now), AgentPrompts::kMaxChunks);
  EXPECT_EQ(known(alice, AgentPrompts::kMaxAgents, now), 0u);
  EXPECT_EQ(known(alice, 1000, now + AgentPrompts::kKept + absl::Seconds(1)), 0u);
  // The tenant that gave hints least recently goes.
  for (size_t i = 0; i < AgentPrompts::kMaxTenants; ++i) {
    const absl::Time later = now + absl::Seconds(static_cast<double>(1 + i));
    agents.Remember(SaltTag(absl::StrCat("tenant", i)), "flow", "1", PromptOf(3, 1), later);
  }
  EXPECT_EQ(known(alice, 1000, now), 0u);
  EXPECT_EQ(known(SaltTag("tenant0"), 1, now), 1u);
}

TEST(AgentPromptsTest, ExpectationsHaveABudgetAndEnd) {
  AgentPrompts agents(100);
  const absl::Time now = absl::UnixEpoch();
  const absl::Time until = now + absl::Minutes(1);
  const ChunkKey key = {1};
  const ChunkKey other = {2};
  EXPECT_TRUE(agents.Expect(1, {{key, 60}}, until, now));
  EXPECT_TRUE(agents.Expect(1, {{key, 60}}, until, now)) << "the same one";
  EXPECT_FALSE(agents.Expect(1, {{other, 60}}, until, now));
  EXPECT_TRUE(agents.Expect(2, {{other, 60}}, until, now)) << "another tenant's budget";
  agents.EndExpecting(1, key);
  EXPECT_TRUE(agents.Expect(1, {{other, 60}}, until, now));
  EXPECT_TRUE(agents.Expect(1, {{key, 60}}, until + absl::Minutes(1), until)) << "the first has ended";
}

}  // namespace
}  // namespace aludel
