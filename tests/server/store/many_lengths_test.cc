// Chunks of many lengths behind one root: the longest that a prompt begins with is found, in memory and on disk.

#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/store/store_fixture.h"

namespace aludel {
namespace {

// `shared` tokens that all prompts begin with, and then some that depend on `own`.
std::vector<int32_t> Prompt(int64_t shared, int64_t tokens, int32_t own) {
  std::vector<int32_t> prompt(static_cast<size_t>(tokens));
  std::iota(prompt.begin(), prompt.end(), 0);
  for (int64_t i = shared; i < tokens; ++i) prompt[static_cast<size_t>(i)] = own;
  return prompt;
}

bool PutOneChunk(PrefixStore& store, const std::vector<int32_t>& prompt) {
  StorePosition at = store.Begin(FakeSpec(), "");
  const auto end = static_cast<int64_t>(prompt.size());
  return store.Put(prompt, end, LetterFrames(prompt, 0, end), &at);
}

int64_t FoundTokens(PrefixStore& store, const std::vector<int32_t>& prompt) {
  StorePosition at = store.Begin(FakeSpec(), "");
  store.Find(prompt, absl::InfiniteDuration(), &at);
  return at.tokens;
}

// One of each length, half of which agree with each other up to the middle.
void PutAll(PrefixStore& store, int32_t lengths) {
  for (int32_t length = 1; length <= lengths; ++length) {
    ASSERT_TRUE(PutOneChunk(store, Prompt(length % 2 == 0 ? lengths / 2 : 0, length, -length)));
  }
}

void ExpectAll(PrefixStore& store, int32_t lengths) {
  for (int32_t length = 1; length <= lengths; ++length) {
    std::vector<int32_t> prompt = Prompt(length % 2 == 0 ? lengths / 2 : 0, length, -length);
    EXPECT_EQ(FoundTokens(store, prompt), length);
    prompt.resize(static_cast<size_t>(2 * lengths), 7);
    EXPECT_EQ(FoundTokens(store, prompt), length) << "what follows changes nothing";
  }
}

TEST(ManyLengths, TheLongestIsFoundWhateverOthersThereAre) {
  PrefixStore store({.producer = "base", .memory_bytes = 64 << 20});
  PutAll(store, 300);
  ExpectAll(store, 300);
  const std::vector<int32_t> none = Prompt(0, 300, -1000);
  EXPECT_EQ(FoundTokens(store, none), 0);
  // Nested, with all even lengths up to the middle: of several that a prompt begins with, the longest.
  for (const int64_t length : {63, 65, 127}) {
    ASSERT_TRUE(PutOneChunk(store, Prompt(length, length, 0)));
  }
  EXPECT_EQ(FoundTokens(store, Prompt(129, 300, -2000)), 128);
  EXPECT_EQ(FoundTokens(store, Prompt(130, 300, -2000)), 130);
  EXPECT_EQ(FoundTokens(store, Prompt(64, 300, -2000)), 64);
  EXPECT_EQ(FoundTokens(store, Prompt(71, 300, -2000)), 70);
  EXPECT_EQ(FoundTokens(store, Prompt(65, 300, -2000)), 65);
}

TEST(ManyLengths, AnEvictedLengthLeavesTheOthers) {
  // Room for the last few only.
  PrefixStore store({.producer = "base", .memory_bytes = 20000});
  PutAll(store, 200);
  const size_t left = store.stats().memory.entries;
  ASSERT_GT(left, 1u);
  ASSERT_LT(left, 200u);
  for (int32_t length = 1; length <= 200; ++length) {
    const int64_t want = length > 200 - static_cast<int32_t>(left) ? length : 0;
    EXPECT_EQ(FoundTokens(store, Prompt(length % 2 == 0 ? 100 : 0, length, -length)), want) << length;
  }
}

TEST(ManyLengths, AreFoundAfterARestartWithAndWithoutAFooter) {
  const std::string directory = testing::TempDir() + "/many_lengths_test";
  std::filesystem::remove_all(directory);
  PrefixStore::Options options{.producer = "base", .memory_bytes = 64 << 20};
  options.disk = PrefixStore::Disk{.path = directory, .bytes = 64 << 20};
  options.encoders = {EncoderTag(FakeSpec())};
  {
    PrefixStore store(options);
    PutAll(store, 150);
  }
  {
    PrefixStore store(options);
    ASSERT_EQ(store.stats().disk.entries, 150u);
    ExpectAll(store, 150);
  }
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    if (file.path().filename().string().rfind("segment-", 0) != 0) continue;
    std::filesystem::resize_file(file.path(), file.file_size() - kStoreBlock);
  }
  PrefixStore store(options);
  ASSERT_EQ(store.stats().disk.entries, 150u);
  ExpectAll(store, 150);
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace aludel
