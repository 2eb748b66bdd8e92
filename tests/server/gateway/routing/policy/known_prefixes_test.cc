#include "server/gateway/routing/policy/known_prefixes.h"

#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace aludel {
namespace {

PrefixKeys KeysOf(absl::Span<const int32_t> prompt) {
  return MakePrefixKeys({1}, prompt, /*with_blocks=*/true);
}
PrefixKeys Prompt(int64_t tokens, int32_t first = 0) {
  std::vector<int32_t> prompt(static_cast<size_t>(tokens));
  std::iota(prompt.begin(), prompt.end(), first);
  return KeysOf(prompt);
}
// The first `tokens` of a prompt, as a server tells of them.
std::vector<KeyChange> Told(const PrefixKeys& keys, int64_t tokens, int64_t step = kKeyTokens) {
  std::vector<KeyChange> told;
  for (int64_t end = step; end <= tokens; end += step) {
    told.push_back({keys.blocks[static_cast<size_t>(end / kKeyTokens - 1)],
                    IsPrefixEnd(end) ? KeyChange::kPrefixEnd : uint8_t{0}});
  }
  return told;
}

TEST(KnownPrefixes, IsExactToTheServersStep) {
  KnownPrefixes known;
  const PrefixKeys prompt = Prompt(5000);
  for (const int64_t step : {16, 32, 128}) {
    for (int64_t cached = 0; cached <= 5000; cached += step) {
      ASSERT_TRUE(known.Replace(0, Told(prompt, cached, step), step));
      ASSERT_EQ(known.Cached(0, prompt), std::min<int64_t>(cached, 4999 / step * step)) << step;
    }
  }
}

TEST(KnownPrefixes, TheLastTokenIsAlwaysComputed) {
  KnownPrefixes known;
  const PrefixKeys prompt = Prompt(128);
  known.Replace(0, Told(prompt, 128), 16);
  EXPECT_EQ(known.Cached(0, prompt), 112);
  std::vector<int64_t> tokens(1);
  known.Match(prompt, &tokens);
  EXPECT_EQ(tokens[0], 112);
  EXPECT_EQ(known.Cached(0, Prompt(0)), 0);
}

TEST(KnownPrefixes, OfServersThatAreNotKnownItSaysNothing) {
  KnownPrefixes known;
  known.Replace(1, {}, 16);
  std::vector<int64_t> tokens = {640, 640, 640};
  known.Match(Prompt(1000), &tokens);
  EXPECT_EQ(tokens, std::vector<int64_t>({640, 0, 640}));
  EXPECT_FALSE(known.Apply(0, Told(Prompt(64), 64)));
  known.Forget(1);
  EXPECT_FALSE(known.knows(1));
}

TEST(KnownPrefixes, WhatIsTooMuchIsNotKnown) {
  KnownPrefixes known(/*max_keys=*/10);
  EXPECT_TRUE(known.Replace(0, Told(Prompt(96), 96), 16));
  EXPECT_TRUE(known.Replace(1, Told(Prompt(64, 1000), 64), 16));
  EXPECT_FALSE(known.Apply(1, Told(Prompt(80, 9000), 80)));
  known.Forget(1);
  EXPECT_FALSE(known.Replace(1, Told(Prompt(96, 9000), 96), 16));
  EXPECT_FALSE(known.knows(1));
  EXPECT_TRUE(known.knows(0));
  EXPECT_EQ(known.keys(), 6u);
}

// As ModelFleet does it: between the steps others ask.
TEST(KnownPrefixes, AServerThatIsLinkedInStepsIsKnownAtTheLast) {
  KnownPrefixes known;
  const PrefixKeys prompt = Prompt(640);
  auto cache = std::make_unique<KnownCache>(Told(prompt, 640), kKeyTokens);
  const std::vector<uint64_t> ends = cache->Ends();
  ASSERT_EQ(ends.size(), 10u);
  ASSERT_TRUE(known.Replace(1, Told(prompt, 64), kKeyTokens));
  const auto matched = [&] {
    std::vector<int64_t> tokens = {-1, -1};
    known.Match(prompt, &tokens);
    return tokens;
  };
  for (const uint64_t& end : ends) {
    known.Link(0, {&end, 1});
    EXPECT_EQ(matched(), std::vector<int64_t>({-1, 64}));
  }
  known.Put(0, &cache);
  EXPECT_EQ(cache, nullptr);
  EXPECT_EQ(matched(), std::vector<int64_t>({624, 64}));
  cache = known.Take(0);
  for (const uint64_t& end : ends) {
    EXPECT_EQ(matched(), std::vector<int64_t>({-1, 64}));
    known.Unlink(0, {&end, 1});
  }
  EXPECT_EQ(matched(), std::vector<int64_t>({-1, 64}));
}

// Prompts of a tree that come and go at servers, against a look at all of them.
TEST(KnownPrefixes, MatchesAsALookAtEveryServerDoes) {
  std::mt19937 random(1);
  std::vector<std::vector<int32_t>> prompts;
  for (int i = 0; i < 30; ++i) {
    std::vector<int32_t> prompt;
    while (prompt.size() < 1500) {
      const auto branch = static_cast<int32_t>(random() % 2);
      for (int token = 0; token < 160; ++token) prompt.push_back(branch + 2 * token);
    }
    prompt.resize(random() % 1500);
    prompts.push_back(std::move(prompt));
  }
  constexpr size_t kServers = 5;
  KnownPrefixes known;
  std::vector<std::set<uint64_t>> held(kServers);
  std::vector<bool> knows(kServers);
  for (int step = 0; step < 3000; ++step) {
    const size_t slot = random() % kServers;
    const PrefixKeys keys = KeysOf(prompts[random() % prompts.size()]);
    std::vector<KeyChange> told = Told(keys, static_cast<int64_t>(keys.blocks.size()) * kKeyTokens);
    if (random() % 50 == 0) {
      known.Forget(slot);
      held[slot].clear();
      knows[slot] = false;
    } else if (!knows[slot] || random() % 40 == 0) {
      ASSERT_TRUE(known.Replace(slot, told, kKeyTokens));
      held[slot].clear();
      for (const KeyChange& change : told) held[slot].insert(change.key);
      knows[slot] = true;
    } else {
      // A prompt grows, or its end goes, with that of those which begin alike.
      if (random() % 2 == 0) {
        ASSERT_TRUE(known.Apply(slot, told));
        for (const KeyChange& change : told) held[slot].insert(change.key);
      } else {
        std::vector<KeyChange> removed;
        for (const std::vector<int32_t>& other : prompts) {
          const PrefixKeys others = KeysOf(other);
          bool shared = false;
          for (const KeyChange& change :
               Told(others, static_cast<int64_t>(others.blocks.size()) * kKeyTokens)) {
            shared = shared || (!told.empty() && change.key == told[told.size() / 2].key);
            if (shared && held[slot].erase(change.key) > 0) {
              removed.push_back({change.key, static_cast<uint8_t>(change.kind | KeyChange::kRemoved)});
            }
          }
        }
        ASSERT_TRUE(known.Apply(slot, removed));
      }
    }
    const PrefixKeys asked = KeysOf(prompts[random() % prompts.size()]);
    std::vector<int64_t> tokens(kServers, -1);
    known.Match(asked, &tokens);
    for (size_t server = 0; server < kServers; ++server) {
      if (!knows[server]) {
        EXPECT_EQ(tokens[server], -1);
        continue;
      }
      int64_t cached = 0, routed = 0;
      for (const uint64_t key : asked.blocks) {
        if (!held[server].contains(key)) break;
        cached += kKeyTokens;
        if (IsPrefixEnd(cached)) routed = cached;
      }
      const int64_t most = std::max<int64_t>(0, asked.tokens - 1) / kKeyTokens * kKeyTokens;
      ASSERT_EQ(known.Cached(server, asked), std::min(cached, most)) << step;
      ASSERT_EQ(tokens[server], std::min(routed, most)) << step;
    }
  }
  for (size_t slot = 0; slot < kServers; ++slot) known.Forget(slot);
  EXPECT_EQ(known.keys(), 0u);
}

TEST(PromptsUnderWay, CountUntilTheirTimeOrUntilTheyAreDropped) {
  PromptsUnderWay prompts;
  prompts.Add(Prompt(640), /*until=*/10, /*now=*/1);
  prompts.Add(Prompt(640), /*until=*/20, /*now=*/1);
  EXPECT_EQ(prompts.Match(Prompt(1000), 2), 640);
  EXPECT_EQ(prompts.Match(Prompt(1000, 5000), 2), 0);
  prompts.Drop(Prompt(640));
  EXPECT_EQ(prompts.Match(Prompt(1000), 9), 640);
  EXPECT_EQ(prompts.Match(Prompt(1000), 10), 0);
  prompts.Add(Prompt(128), /*until=*/20, /*now=*/11);
  prompts.Clear();
  EXPECT_EQ(prompts.Match(Prompt(1000), 12), 0);
}

TEST(PromptsUnderWay, OneThatWaitsLongKeepsNoOtherOne) {
  PromptsUnderWay prompts;
  prompts.Add(Prompt(640), /*until=*/600, /*now=*/0);
  prompts.Add(Prompt(640, 5000), /*until=*/2, /*now=*/1);
  EXPECT_EQ(prompts.Match(Prompt(1000, 5000), 1), 640);
  EXPECT_EQ(prompts.Match(Prompt(1000, 5000), 3), 0);
  EXPECT_EQ(prompts.Match(Prompt(1000), 3), 640);
  // The server has told that its queue is short.
  prompts.Shorten(5);
  EXPECT_EQ(prompts.Match(Prompt(1000), 4), 640);
  EXPECT_EQ(prompts.Match(Prompt(1000), 5), 0);
}

TEST(PromptsUnderWay, AreBounded) {
  PromptsUnderWay prompts;
  for (size_t i = 0; i <= PromptsUnderWay::kMaxPrompts; ++i) {
    prompts.Add(Prompt(64, static_cast<int32_t>(i) * 1000), 100, 0);
  }
  EXPECT_EQ(prompts.Match(Prompt(64, 0), 1), 0);
  EXPECT_EQ(prompts.Match(Prompt(64, 1000), 1), 64);
}

}  // namespace
}  // namespace aludel
