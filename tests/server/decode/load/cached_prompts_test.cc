#include "server/decode/load/cached_prompts.h"

#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/rpc/cache_events/cache_mirror.h"

namespace aludel {
namespace {

constexpr int kBlock = 16;
using Tokens = std::vector<int32_t>;

// What gateways call the beginning.
uint64_t KeyOf(const std::string& salt, absl::Span<const int32_t> tokens) {
  PromptHash hash(SaltSeed(salt));
  for (const int32_t token : tokens) hash.Add(token);
  return ModelKey(hash.key(), HashTexts({"chat"}));
}

class CachedPromptsTest : public ::testing::Test {
 protected:
  // The engine's part: one block of a prompt comes or goes.
  void Store(const Tokens& prompt, size_t block, const std::string& salt = "a",
             const std::string& format = "") {
    PrefixChain chain({.model_hash = "m", .format = format, .salt = salt}, kBlock);
    const auto hashes = chain.Extend(prompt);
    cached_.OnStored({.hash = hashes[block],
                      .before = block == 0 ? nullptr : &hashes[block - 1],
                      .salt = salt,
                      .tokens = absl::MakeConstSpan(prompt).first((block + 1) * kBlock)});
  }
  void Remove(const Tokens& prompt, size_t block, const std::string& salt = "a",
              const std::string& format = "") {
    PrefixChain chain({.model_hash = "m", .format = format, .salt = salt}, kBlock);
    cached_.OnRemoved(chain.Extend(prompt)[block]);
  }
  std::set<uint64_t> Told() {
    v1::CacheEvent event;
    while (log_.Read(&reader_, &event)) {
      const CacheMirror::Heard heard = mirror_.Hear(event);
      if (heard == CacheMirror::Heard::kSnapshot) told_.clear();
      for (const KeyChange& change : mirror_.changes()) {
        if (change.removed()) {
          EXPECT_TRUE(told_.erase(change.key));
        } else {
          EXPECT_TRUE(told_.insert(change.key).second);
          kinds_[change.key] = change.kind;
        }
      }
    }
    return told_;
  }

  std::string gone_salt_;  // what is cached under it is found no more
  KeyLog log_{{.epoch = 1}};
  CachedPrompts cached_{"chat",
                        [this](absl::string_view salt) -> std::optional<absl::string_view> {
                          if (salt == gone_salt_) return std::nullopt;
                          return salt;
                        },
                        &log_};
  KeyLog::Reader reader_;
  CacheMirror mirror_{1 << 20};
  std::set<uint64_t> told_;
  std::map<uint64_t, uint8_t> kinds_;
};

Tokens Prompt(int blocks, int32_t first = 0) {
  Tokens tokens(static_cast<size_t>(blocks * kBlock));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = first + static_cast<int32_t>(i);
  return tokens;
}

TEST_F(CachedPromptsTest, TellsBeginningsByTheKeysThatGatewaysRouteBy) {
  const Tokens prompt = Prompt(5);
  std::set<uint64_t> expected;
  for (size_t block = 0; block < 5; ++block) {
    Store(prompt, block);
    expected.insert(KeyOf("a", absl::MakeConstSpan(prompt).first((block + 1) * kBlock)));
  }
  EXPECT_EQ(Told(), expected);
  for (size_t block = 0; block < 5; ++block) {
    const uint64_t key = KeyOf("a", absl::MakeConstSpan(prompt).first((block + 1) * kBlock));
    EXPECT_EQ(kinds_[key] == KeyChange::kPrefixEnd, block == 3) << "requests are routed by 64 tokens";
  }
}

TEST_F(CachedPromptsTest, WhatIsBehindAHoleIsNotThere) {
  const Tokens prompt = Prompt(4);
  for (size_t block = 0; block < 4; ++block) Store(prompt, block);
  EXPECT_EQ(Told().size(), 4u);
  Remove(prompt, 1);
  EXPECT_EQ(Told().size(), 1u);
  Store(prompt, 1);
  EXPECT_EQ(Told().size(), 4u);
}

TEST_F(CachedPromptsTest, BlocksWhoseFrontComesLaterCountFromThenOn) {
  const Tokens prompt = Prompt(3);
  Store(prompt, 2);
  Store(prompt, 1);
  EXPECT_TRUE(Told().empty());
  Store(prompt, 0);
  EXPECT_EQ(Told(),
            std::set<uint64_t>({KeyOf("a", absl::MakeConstSpan(prompt).first(16)),
                                KeyOf("a", absl::MakeConstSpan(prompt).first(32)), KeyOf("a", prompt)}));
}

TEST_F(CachedPromptsTest, TwoSaltsShareNothing) {
  Store(Prompt(1), 0, "a");
  const std::set<uint64_t> first = Told();
  Store(Prompt(1), 0, "b");
  EXPECT_EQ(Told().size(), 2u);
  Remove(Prompt(1), 0, "b");
  EXPECT_EQ(Told(), first);
}

TEST_F(CachedPromptsTest, TwoFormatsAreOneKeyUntilBothHaveGone) {
  Store(Prompt(1), 0, "a", "");
  Store(Prompt(1), 0, "a", "int8");
  EXPECT_EQ(Told().size(), 1u);
  Remove(Prompt(1), 0, "a", "");
  EXPECT_EQ(Told().size(), 1u);
  Remove(Prompt(1), 0, "a", "int8");
  EXPECT_TRUE(Told().empty());
}

TEST_F(CachedPromptsTest, AResetForgetsAll) {
  Store(Prompt(2), 0);
  EXPECT_EQ(Told().size(), 1u);
  cached_.Clear([this] { gone_salt_ = std::string("a"); });
  EXPECT_TRUE(Told().empty());
  // A request that began before it still leaves blocks, and the old ones go.
  Store(Prompt(2), 1);
  Remove(Prompt(2), 0);
  EXPECT_TRUE(Told().empty());
  Store(Prompt(2), 0, "b");
  EXPECT_EQ(Told().size(), 1u);
}

// Blocks of a tree of prompts, in two formats and under two salts, that come and go in any order: told is what a look-up from
// a prompt's start finds.
TEST_F(CachedPromptsTest, WhatIsToldIsWhatALookUpFinds) {
  std::mt19937 random(1);
  std::vector<Tokens> prompts;
  for (int i = 0; i < 12; ++i) {
    Tokens tokens;
    for (int block = 0; block < 6; ++block) {
      const auto branch = static_cast<int32_t>(random() % 2);
      for (int token = 0; token < kBlock; ++token) tokens.push_back(100 * block + 50 * branch + token);
    }
    prompts.push_back(std::move(tokens));
  }
  const std::vector<std::string> formats = {"", "int8"}, salts = {"a", "b"};
  std::set<std::pair<std::pair<std::string, std::string>, Tokens>> stored;
  for (int step = 0; step < 20'000; ++step) {
    const Tokens& prompt = prompts[random() % prompts.size()];
    const size_t block = random() % 6;
    const std::pair<std::string, std::string> of = {salts[random() % 2], formats[random() % 2]};
    const Tokens beginning(prompt.begin(), prompt.begin() + static_cast<int64_t>(block + 1) * kBlock);
    if (stored.contains({of, beginning})) {
      Remove(prompt, block, of.first, of.second);
      stored.erase({of, beginning});
    } else {
      Store(prompt, block, of.first, of.second);
      stored.insert({of, beginning});
    }
    if (step % 50 != 0) continue;
    std::set<uint64_t> expected;
    for (const auto& [origin, tokens] : stored) {
      bool whole = true;
      for (size_t end = kBlock; end < tokens.size(); end += kBlock) {
        const Tokens front(tokens.begin(), tokens.begin() + static_cast<int64_t>(end));
        whole = whole && stored.contains({origin, front});
      }
      if (whole) expected.insert(KeyOf(origin.first, tokens));
    }
    ASSERT_EQ(Told(), expected) << step;
  }
}

}  // namespace
}  // namespace aludel
