#include "server/store/prefix_store.h"

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/server/store/store_fixture.h"

namespace aludel {
namespace {

constexpr absl::Duration kAnyAge = absl::InfiniteDuration();

// The tokens found, as text, read from the payloads of layer 0.
std::string Found(PrefixStore& store, const std::string& text, absl::Duration max_age = kAnyAge,
                  const std::string& salt = "") {
  StorePosition at = store.Begin(FakeSpec(), salt);
  std::string found;
  for (const StoredChunk& chunk : store.Find(Letters(text), max_age, &at)) {
    const std::vector<uint8_t>& payload = chunk.frames->front().payload;
    found.append(payload.begin(), payload.end());
    EXPECT_EQ(chunk.end.tokens, static_cast<int64_t>(found.size()));
  }
  EXPECT_EQ(at.tokens, static_cast<int64_t>(found.size()));
  return found;
}

PrefixStore::Options Memory(size_t bytes) { return {.producer = "base", .memory_bytes = bytes}; }
PrefixStore::Options Lru(size_t bytes) {
  return {.producer = "base", .memory_bytes = bytes, .eviction = PrefixStore::Eviction::kLru};
}

TEST(PrefixStore, FindsWholePromptsAndPrefixesAtChunkBoundaries) {
  PrefixStore store(Memory(1 << 20));
  EXPECT_EQ(Found(store, "abcdefghij"), "");
  EXPECT_TRUE(PutLetters(store, "abcdefghij"));  // abcd efgh ij
  EXPECT_EQ(Found(store, "abcdefghij"), "abcdefghij");
  EXPECT_EQ(Found(store, "abcdefghijkl"), "abcdefghij");
  EXPECT_EQ(Found(store, "abcdefghix"), "abcdefgh");
  EXPECT_EQ(Found(store, "abcdefg"), "abcd");
  EXPECT_EQ(Found(store, "xbcdefghij"), "");
  EXPECT_EQ(Found(store, ""), "");
  EXPECT_EQ(store.stats().memory.entries, 3u);
}

TEST(PrefixStore, CountsLookupsByWhatCameOfThem) {
  PrefixStore store(Memory(1 << 20));
  store.CountLookup({}, 10);
  store.CountLookup({.memory_tokens = 4}, 10);
  store.CountLookup({.memory_tokens = 6, .disk_tokens = 4}, 10);
  store.CountLookup({.disk_tokens = 8}, 10);
  const StoreStats stats = store.stats();
  EXPECT_EQ(stats.misses, 1u);
  EXPECT_EQ(stats.partial_hits, 2u);
  EXPECT_EQ(stats.hits, 1u);
  EXPECT_EQ(stats.memory.hits, 2u);
  EXPECT_EQ(stats.disk.hits, 2u);
  EXPECT_EQ(stats.remote.hits, 0u);
  EXPECT_EQ(stats.memory.hit_tokens, 10u);
  EXPECT_EQ(stats.disk.hit_tokens, 12u);
}

TEST(PrefixStore, CountsTheSecondsThatLookupsSave) {
  PrefixStore store(Memory(1 << 20));
  const auto saved = [&store](const PrefixStore::Found& found) {
    const SavedSeconds before = store.stats().saved;
    store.CountLookup(found, 1000);
    const SavedSeconds after = store.stats().saved;
    return std::vector<double>{after.expected - before.expected, after.measured - before.measured,
                               after.lost - before.lost};
  };
  const std::vector<double> nothing = {0, 0, 0};
  EXPECT_EQ(saved({.tokens_per_second = 100}), nothing) << "nothing was found";
  EXPECT_EQ(saved({.memory_tokens = 100}), nothing) << "the speed of computing is not known";
  EXPECT_EQ(saved({.memory_tokens = 100, .tokens_per_second = 100}), std::vector<double>({1, 1, 0}));
  // Nothing was read yet: 1e9 bytes a second from disk, 1e8 from the remote.
  EXPECT_EQ(saved({.memory_tokens = 100,
                   .disk_tokens = 200,
                   .remote_tokens = 100,
                   .disk_bytes = 500'000'000,
                   .remote_bytes = 100'000'000,
                   .waited = absl::Seconds(1),
                   .tokens_per_second = 100}),
            std::vector<double>({2.5, 3, 0}));
  EXPECT_EQ(saved({.disk_tokens = 100, .waited = absl::Seconds(3), .tokens_per_second = 100}),
            std::vector<double>({1, 0, 2}));
}

TEST(PrefixStore, GrowsAConversationFromWhatItHas) {
  PrefixStore store(Memory(1 << 20));
  PutLetters(store, "abcdef");
  PutLetters(store, "abcdefghijk");
  EXPECT_EQ(Found(store, "abcdefghijk"), "abcdefghijk");
  EXPECT_EQ(store.stats().memory.entries, 4u);  // abcd ef ghij k
  PutLetters(store, "abcdefg");
  EXPECT_EQ(store.stats().memory.entries, 5u);
  EXPECT_EQ(Found(store, "abcdefghijk"), "abcdefghijk") << "the longest chunk that fits, not the first";
}

TEST(PrefixStore, LeavesOutWhatIsTooOldUntilItIsMadeAgain) {
  PrefixStore store(Memory(1 << 20));
  PutLetters(store, "abcdefgh");
  EXPECT_EQ(Found(store, "abcdefgh", absl::ZeroDuration()), "");
  absl::SleepFor(absl::Milliseconds(600));
  EXPECT_EQ(Found(store, "abcdefgh", absl::Milliseconds(500)), "");
  const std::vector<int32_t> prompt = Letters("abcd");
  StorePosition at = store.Begin(FakeSpec(), "");
  EXPECT_TRUE(store.Put(prompt, 4, LetterFrames(prompt, 0, 4), &at));
  EXPECT_EQ(Found(store, "abcdefgh", absl::Milliseconds(500)), "abcd");
  EXPECT_EQ(Found(store, "abcdefgh", absl::Hours(1)), "abcdefgh");
}

TEST(PrefixStore, TellsSameTokensBehindDifferentOnesApart) {
  PrefixStore store(Memory(1 << 20));
  PutLetters(store, "abcdwxyz");
  EXPECT_EQ(Found(store, "ABCDwxyz"), "");
  EXPECT_EQ(Found(store, "wxyz"), "");
}

TEST(PrefixStore, NeverSharesAcrossSaltsFormatsAndProducers) {
  PrefixStore store(Memory(1 << 20));
  PutLetters(store, "abcdefgh", "alice");
  EXPECT_EQ(Found(store, "abcdefgh"), "");
  EXPECT_EQ(Found(store, "abcdefgh", kAnyAge, "bob"), "");
  EXPECT_EQ(Found(store, "abcdefgh", kAnyAge, "alice"), "abcdefgh");
  PutLetters(store, "abcdefgh", "bob");
  EXPECT_EQ(store.stats().memory.entries, 4u);

  CodecSpec refitted = FakeSpec();
  refitted.artifact_hash = "ff";
  EXPECT_NE(store.Begin(refitted, "bob").key, store.Begin(FakeSpec(), "bob").key);
  CodecSpec renamed = FakeSpec();
  renamed.name = "fak";
  EXPECT_NE(store.Begin(renamed, "bob").key, store.Begin(FakeSpec(), "bob").key);
  PrefixStore other({.producer = "other", .memory_bytes = 1});
  EXPECT_NE(other.Begin(FakeSpec(), "bob").key, store.Begin(FakeSpec(), "bob").key);
  // Fields do not run into each other.
  EXPECT_NE(RootKey("ab", FakeSpec(), "c"), RootKey("a", FakeSpec(), "bc"));
}

TEST(PrefixStore, StaysWithinItsBytesAndLosesTheEndOfAPromptFirst) {
  PrefixStore store(Lru(5 * 450));  // five chunks of four tokens, roughly
  PutLetters(store, "abcdefghijkl");
  PutLetters(store, "ABCDEFGHIJKL");
  EXPECT_LE(store.stats().memory.bytes, 5u * 450);
  EXPECT_EQ(store.stats().memory.evictions, 1u);
  EXPECT_EQ(Found(store, "abcdefghijkl"), "abcdefgh");
  EXPECT_EQ(Found(store, "ABCDEFGHIJKL"), "ABCDEFGHIJKL");
}

TEST(PrefixStore, LosesWhatWasUsedLeastRecently) {
  PrefixStore store(Lru(4 * 450));
  PutLetters(store, "abcdefgh");
  PutLetters(store, "ABCDEFGH");
  EXPECT_EQ(Found(store, "abcdefgh"), "abcdefgh");
  PutLetters(store, "12345678");
  EXPECT_EQ(Found(store, "ABCDEFGH"), "");
  EXPECT_EQ(Found(store, "abcdefgh"), "abcdefgh");
  EXPECT_EQ(Found(store, "12345678"), "12345678");
}

TEST(PrefixStore, ARefusedChunkLeavesThePositionWhereItWas) {
  PrefixStore store(Lru(450));
  const std::vector<int32_t> prompt(1000, 7);
  StorePosition at = store.Begin(FakeSpec(), "");
  EXPECT_FALSE(store.Put(prompt, 1000, LetterFrames(prompt, 0, 1000), &at)) << "larger than the store";
  EXPECT_EQ(at.tokens, 0);
  EXPECT_TRUE(store.Put(prompt, 4, LetterFrames(prompt, 0, 4), &at));
  StorePosition other = store.Begin(FakeSpec(), "salt");
  EXPECT_TRUE(store.Put(prompt, 4, LetterFrames(prompt, 0, 4), &other));
  EXPECT_FALSE(store.Put(prompt, 8, LetterFrames(prompt, 4, 8), &at)) << "what is in front has gone";
  EXPECT_EQ(at.tokens, 4);
  EXPECT_EQ(store.stats().memory.entries, 1u);
  EXPECT_EQ(store.stats().rejects.too_large, 1u);
  EXPECT_EQ(store.stats().rejects.front_gone, 1u);
}

TEST(PrefixStore, OfNoBytesKeepsNothing) {
  PrefixStore store(Memory(0));
  EXPECT_FALSE(store.enabled());
  EXPECT_FALSE(PutLetters(store, "abcd"));
  EXPECT_EQ(Found(store, "abcd"), "");
  EXPECT_EQ(store.stats().memory.entries, 0u);
  EXPECT_EQ(store.stats().rejects.too_large, 0u);
}

TEST(PrefixStore, AClearEndsWhatWasUnderWay) {
  PrefixStore store(Memory(1 << 20));
  const std::vector<int32_t> prompt = Letters("abcdefgh");
  StorePosition before = store.Begin(FakeSpec(), "");
  PutLetters(store, "abcdefgh");
  StorePosition at = store.Begin(FakeSpec(), "");
  const std::vector<StoredChunk> leased = store.Find(prompt, kAnyAge, &at);
  EXPECT_TRUE(ClearAndWait(store).ok());
  EXPECT_EQ(leased.front().frames->front().payload.front(), 'a');
  EXPECT_EQ(Found(store, "abcdefgh"), "");
  EXPECT_FALSE(store.Put(prompt, 4, LetterFrames(prompt, 0, 4), &before)) << "made before the reset";
  EXPECT_EQ(store.stats().rejects.cleared, 1u);
  EXPECT_TRUE(store.Find(prompt, kAnyAge, &before).empty());
  EXPECT_EQ(store.stats().memory.bytes, 0u);
  EXPECT_TRUE(PutLetters(store, "abcd"));
  EXPECT_EQ(Found(store, "abcdefgh"), "abcd");
}

}  // namespace
}  // namespace aludel
