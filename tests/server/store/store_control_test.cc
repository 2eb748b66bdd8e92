// What an operator does to a prefix store: pins, quotas, and clears of some of it.

#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/server/store/store_fixture.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

class StoreControl : public ::testing::Test {
 protected:
  StoreControl() : directory_(absl::StrCat(testing::TempDir(), "/control-", getpid())) {
    std::filesystem::remove_all(directory_);
  }
  ~StoreControl() override { std::filesystem::remove_all(directory_); }

  static size_t ChunkBytes() { return StoredWeight(4, LetterFrames(Letters("abcd"), 0, 4)); }
  static PrefixStore::Options Memory(size_t chunks, size_t pinned) {
    return {.producer = "base",
            .memory_bytes = chunks * ChunkBytes(),
            .pinned_bytes = pinned * ChunkBytes(),
            .eviction = PrefixStore::Eviction::kLru};
  }
  PrefixStore::Options Disk() const {
    return {.producer = "base",
            .memory_bytes = 1 << 20,
            .disk = PrefixStore::Disk{.path = directory_, .bytes = 16 << 20},
            .pinned_bytes = 1 << 19,
            .encoders = {EncoderTag(FakeSpec())}};
  }
  static int64_t Found(PrefixStore& store, const std::string& text, const std::string& salt = "") {
    StorePosition at = store.Begin(FakeSpec(), salt);
    store.Find(Letters(text), absl::InfiniteDuration(), &at);
    return at.tokens;
  }
  static absl::StatusOr<int64_t> Pin(PrefixStore& store, const std::string& text,
                                     absl::Duration ttl = absl::Hours(1)) {
    return store.Pin(Letters(text), store.Begin(FakeSpec(), ""), ttl);
  }
  static absl::Status ClearSome(PrefixStore& store, const StoreFilter& filter) {
    std::promise<absl::Status> cleared;
    store.ClearSome(filter, [&cleared](const absl::Status& status) { cleared.set_value(status); });
    return cleared.get_future().get();
  }
  // Others, of one chunk each.
  static void Fill(PrefixStore& store, int count) {
    for (int i = 0; i < count; ++i) {
      ASSERT_TRUE(
          PutLetters(store, {static_cast<char>('A' + i % 26), static_cast<char>('A' + i / 26), '.', '.'}));
    }
  }
  static bool AwaitOnDisk(PrefixStore& store, size_t entries) {
    for (int i = 0; i < 2000 && store.stats().disk.entries != entries; ++i) {
      absl::SleepFor(absl::Milliseconds(2));
    }
    return store.stats().disk.entries == entries;
  }
  static bool AwaitInMemory(PrefixStore& store, size_t entries) {
    for (int i = 0; i < 2000 && store.stats().memory.entries != entries; ++i) {
      absl::SleepFor(absl::Milliseconds(2));
    }
    return store.stats().memory.entries == entries;
  }

  const std::string directory_;
};

TEST_F(StoreControl, WhatIsPinnedStaysWhateverElseIsUsed) {
  PrefixStore store(Memory(10, 4));
  ASSERT_TRUE(PutLetters(store, "abcdefghijkl"));
  const auto pinned = Pin(store, "abcdefghijkl");
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_EQ(*pinned, 12);
  Fill(store, 50);
  EXPECT_EQ(store.stats().memory.entries, 10u);
  EXPECT_EQ(Found(store, "abcdefghijkl"), 12);
  EXPECT_EQ(store.Unpin(Letters("abcdefghijkl"), store.Begin(FakeSpec(), "")), 12);
  Fill(store, 50);
  EXPECT_EQ(Found(store, "abcdefghijkl"), 0);
}

TEST_F(StoreControl, PinsHaveABudgetAndAnEnd) {
  PrefixStore store(Memory(10, 4));
  ASSERT_TRUE(PutLetters(store, "abcdefghijkl"));
  ASSERT_TRUE(PutLetters(store, "ABCDEFGH"));
  ASSERT_TRUE(Pin(store, "abcdefghijkl").ok());
  EXPECT_TRUE(Pin(store, "abcdefghijkl").ok()) << "again takes no more";
  EXPECT_TRUE(absl::IsResourceExhausted(Pin(store, "ABCDEFGH").status()));
  EXPECT_EQ(store.Unpin(Letters("abcdefghijkl"), store.Begin(FakeSpec(), "")), 12);
  ASSERT_TRUE(Pin(store, "abcdefghijkl", absl::Milliseconds(1)).ok());
  absl::SleepFor(absl::Milliseconds(2));
  EXPECT_TRUE(Pin(store, "ABCDEFGH").ok());
  Fill(store, 50);
  EXPECT_EQ(Found(store, "abcdefghijkl"), 0);
  EXPECT_EQ(Found(store, "ABCDEFGH"), 8);
}

TEST_F(StoreControl, AnUnpinReachesWhatIsPinnedBehindTheEnd) {
  PrefixStore store(Memory(10, 5));
  ASSERT_TRUE(PutLetters(store, "abcdefghijkl"));
  ASSERT_TRUE(PutLetters(store, "ABCDEFGH"));
  ASSERT_TRUE(Pin(store, "abcdefghijkl").ok());
  ASSERT_TRUE(Pin(store, "ABCDEFGH").ok());
  EXPECT_EQ(store.Unpin(Letters("abcdefgh"), store.Begin(FakeSpec(), "")), 12);
  EXPECT_EQ(store.Unpin(Letters("none"), store.Begin(FakeSpec(), "")), 0);
  Fill(store, 50);
  EXPECT_EQ(Found(store, "abcdefghijkl"), 0);
  EXPECT_EQ(Found(store, "ABCDEFGH"), 8);
}

TEST_F(StoreControl, AQuotaOfItsOwnHoldsAtOnce) {
  PrefixStore store(Memory(1000, 0));
  ASSERT_TRUE(PutLetters(store, "abcdefgh", "bob"));
  Fill(store, 40);
  ASSERT_EQ(store.stats().memory.entries, 42u);
  const TenantTag tenant = TenantOf(SaltTag(""));
  ASSERT_TRUE(store.SetQuota(tenant, {.memory_bytes = 5 * ChunkBytes()}).ok());
  EXPECT_EQ(store.stats().memory.entries, 7u);
  EXPECT_EQ(Found(store, "abcdefgh", "bob"), 8);
  Fill(store, 40);
  EXPECT_EQ(store.stats().memory.entries, 7u);
  for (const TenantReport& report : store.Tenants()) {
    EXPECT_EQ(report.memory_chunks, report.tenant == tenant ? 5u : 2u);
    EXPECT_EQ(report.quota.memory_bytes == 5 * ChunkBytes(), report.tenant == tenant);
  }
  ASSERT_TRUE(store.SetQuota(tenant, {.disk_bytes = 1}).ok());
  Fill(store, 40);
  EXPECT_EQ(store.stats().memory.entries, 7u) << "the other quota stays";
  ASSERT_TRUE(store.SetQuota(tenant, {.memory_bytes = TenantShares::Quota().memory_bytes}).ok());
  Fill(store, 40);
  EXPECT_EQ(store.stats().memory.entries, 42u);
}

TEST_F(StoreControl, ALookLeavesNoTrace) {
  PrefixStore store(Memory(3, 0));
  ASSERT_TRUE(PutLetters(store, "abcd"));
  ASSERT_TRUE(PutLetters(store, "ABCD"));
  StorePosition at = store.Begin(FakeSpec(), "");
  EXPECT_EQ(store.Peek(Letters("abcdefgh"), &at).size(), 1u);
  EXPECT_EQ(at.tokens, 4);
  Fill(store, 2);
  EXPECT_EQ(Found(store, "abcd"), 0) << "it was the least recently used one all the same";
  EXPECT_EQ(Found(store, "ABCD"), 4);
}

TEST_F(StoreControl, AClearOfASaltOrAPrefixLeavesTheRestAndIsForGood) {
  const auto put = [](PrefixStore& store) {
    ASSERT_TRUE(PutLetters(store, "abcdefghijkl", "alice"));
    ASSERT_TRUE(PutLetters(store, "abcdXYZ1", "alice"));
    ASSERT_TRUE(PutLetters(store, "abcdefghijkl", "bob"));
    ASSERT_TRUE(AwaitOnDisk(store, 7));
  };
  {
    PrefixStore store(Disk());
    put(store);
    // The prompt's second chunk, and what follows it.
    StorePosition at = store.Begin(FakeSpec(), "alice");
    store.Peek(Letters("abcdefgh"), &at);
    ASSERT_EQ(at.tokens, 8);
    ASSERT_TRUE(ClearSome(store, {.salt = at.salt, .encoder = at.encoder, .from = at.key}).ok());
    EXPECT_EQ(Found(store, "abcdefghijkl", "alice"), 4);
    EXPECT_EQ(Found(store, "abcdXYZ1", "alice"), 8);
    EXPECT_EQ(Found(store, "abcdefghijkl", "bob"), 12);
  }
  {
    PrefixStore store(Disk());
    EXPECT_EQ(store.stats().disk.entries, 5u);
    EXPECT_EQ(Found(store, "abcdefghijkl", "alice"), 4);
    EXPECT_EQ(Found(store, "abcdefghijkl", "bob"), 12);
    ASSERT_TRUE(ClearSome(store, {.tenant = TenantOf(SaltTag("bob"))}).ok());
    EXPECT_EQ(Found(store, "abcdefghijkl", "bob"), 0);
    EXPECT_EQ(Found(store, "abcdXYZ1", "alice"), 8);
    // It may be stored again.
    ASSERT_TRUE(PutLetters(store, "abcd", "bob"));
    ASSERT_TRUE(AwaitOnDisk(store, 3));
  }
  PrefixStore store(Disk());
  EXPECT_EQ(Found(store, "abcdefghijkl", "bob"), 4);
  EXPECT_EQ(Found(store, "abcdXYZ1", "alice"), 8);
}

// What a quota took out of the index is on disk still, and no tombstone says that it went.
TEST_F(StoreControl, AClearForgetsWhatWentForAQuota) {
  PrefixStore::Options options = Disk();
  {
    options.quota.disk_bytes = 2 * kStoreBlock;
    PrefixStore store(options);
    ASSERT_TRUE(PutLetters(store, "abcdefghijkl", "alice"));
    for (int i = 0; i < 2000 && store.stats().disk.over_quota == 0; ++i)
      absl::SleepFor(absl::Milliseconds(2));
    ASSERT_TRUE(AwaitOnDisk(store, 2));
    ASSERT_TRUE(ClearSome(store, {.tenant = TenantOf(SaltTag("alice"))}).ok());
  }
  options.quota = {};
  PrefixStore store(options);
  EXPECT_EQ(store.stats().disk.entries, 0u);
}

TEST_F(StoreControl, AClearDoesNotRepeatWhatEarlierOnesNoted) {
  PrefixStore store(Disk());
  ASSERT_TRUE(PutLetters(store, "abcdefghijkl", "alice"));
  ASSERT_TRUE(PutLetters(store, "abcd", "bob"));
  ASSERT_TRUE(AwaitOnDisk(store, 4));
  ASSERT_TRUE(ClearSome(store, {.tenant = TenantOf(SaltTag("alice"))}).ok());
  const uint64_t bytes = store.stats().disk.bytes;
  ASSERT_TRUE(ClearSome(store, {.tenant = TenantOf(SaltTag("carol"))}).ok());
  EXPECT_EQ(store.stats().disk.bytes, bytes);
  ASSERT_TRUE(ClearSome(store, {.tenant = TenantOf(SaltTag("bob"))}).ok());
  EXPECT_EQ(store.stats().disk.bytes, bytes + kStoreBlock);
}

TEST_F(StoreControl, ARunThatWasUnderWayStoresNothingOfWhatWasCleared) {
  PrefixStore store(Memory(100, 0));
  const std::vector<int32_t> prompt = Letters("abcdefgh");
  StorePosition at = store.Begin(FakeSpec(), "alice");
  ASSERT_TRUE(store.Put(prompt, 4, LetterFrames(prompt, 0, 4), &at));
  ASSERT_TRUE(ClearSome(store, {.salt = SaltTag("alice")}).ok());
  EXPECT_FALSE(store.Put(prompt, 8, LetterFrames(prompt, 4, 8), &at));
  EXPECT_EQ(store.stats().memory.entries, 0u);
  EXPECT_TRUE(PutLetters(store, "abcdefgh", "alice"));
}

TEST_F(StoreControl, PrefetchesAndPinsWhatIsOnDiskAlone) {
  {
    PrefixStore store(Disk());
    ASSERT_TRUE(PutLetters(store, "abcdefghijkl"));
    ASSERT_TRUE(PutLetters(store, "ABCDEFGH"));
  }
  PrefixStore store(Disk());
  ASSERT_EQ(store.stats().memory.entries, 0u);
  StorePosition last = store.Begin(FakeSpec(), "");
  store.Peek(Letters("ABCDEFGH"), &last);
  const std::vector<StoredChunkReport> youngest = store.List({}, 1);
  ASSERT_EQ(youngest.size(), 1u);
  EXPECT_EQ(youngest[0].key, last.key);
  EXPECT_EQ(Prefetch(store, "abcdefghijkl"), 12);
  EXPECT_TRUE(AwaitInMemory(store, 3));
  EXPECT_EQ(Prefetch(store, "abcdefghijkl"), 0);
  ASSERT_TRUE(Pin(store, "ABCDEFGH").ok());
  EXPECT_TRUE(AwaitInMemory(store, 5));
  size_t pinned = 0;
  for (const StoredChunkReport& chunk : store.List({}, 100)) {
    EXPECT_GT(chunk.memory_bytes, 0u);
    EXPECT_EQ(chunk.disk_bytes, kStoreBlock);
    pinned += chunk.pinned > absl::ZeroDuration() ? 1 : 0;
  }
  EXPECT_EQ(pinned, 2u);
  EXPECT_EQ(store.List({}, 3).size(), 3u);
  EXPECT_EQ(store.List({.tenant = TenantOf(SaltTag("bob"))}, 3).size(), 0u);
}

}  // namespace
}  // namespace aludel
