// Quotas of tenants in both tiers of the prefix store.

#include <unistd.h>

#include <filesystem>
#include <future>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/server/store/store_fixture.h"

namespace aludel {
namespace {

// As a gateway makes them: 16 bytes of the tenant, 16 of the salt.
std::string Salt(char tenant, char own) { return std::string(16, tenant) + std::string(16, own); }

int64_t FoundTokens(PrefixStore& store, const std::string& text, const std::string& salt) {
  StorePosition at = store.Begin(FakeSpec(), salt);
  store.Find(Letters(text), absl::InfiniteDuration(), &at);
  return at.tokens;
}

// Prompts of one chunk with nothing in common.
std::string Text(int i) {
  return {static_cast<char>('a' + i % 26), static_cast<char>('a' + i / 26), 'x', 'y'};
}

class Tenants : public ::testing::Test {
 protected:
  Tenants() : directory_(absl::StrCat(testing::TempDir(), "/tenants-", getpid())) {
    std::filesystem::remove_all(directory_);
  }
  ~Tenants() override { std::filesystem::remove_all(directory_); }

  static PrefixStore::Options Memory(size_t quota) {
    return {.producer = "base", .memory_bytes = 1 << 20, .quota = {.memory_bytes = quota}};
  }
  PrefixStore::Options Disk(uint64_t quota) const {
    return {.producer = "base",
            .memory_bytes = 1 << 20,
            .disk = PrefixStore::Disk{.path = directory_, .bytes = 16 << 20},
            .quota = {.disk_bytes = quota},
            .encoders = {EncoderTag(FakeSpec())}};
  }
  static size_t ChunkBytes() { return StoredWeight(4, LetterFrames(Letters("abcd"), 0, 4)); }
  static int Found(PrefixStore& store, const std::string& salt, int begin, int end) {
    int found = 0;
    for (int i = begin; i < end; ++i) found += FoundTokens(store, Text(i), salt) == 4 ? 1 : 0;
    return found;
  }

  const std::string directory_;
};

TEST(SaltTag, NamesTheTenantInItsFirstHalf) {
  EXPECT_EQ(TenantOf(SaltTag(Salt('a', '1'))), TenantOf(SaltTag(Salt('a', '2'))));
  EXPECT_NE(SaltTag(Salt('a', '1')), SaltTag(Salt('a', '2')));
  EXPECT_NE(TenantOf(SaltTag(Salt('a', '1'))), TenantOf(SaltTag(Salt('b', '1'))));
  // Without a key: one tenant with and without a salt of the request's.
  EXPECT_EQ(TenantOf(SaltTag(Salt('\0', '1'))), TenantOf(SaltTag("")));
  EXPECT_NE(SaltTag(Salt('\0', '1')), SaltTag(""));
  // Of other lengths each is a tenant.
  EXPECT_NE(TenantOf(SaltTag("alice")), TenantOf(SaltTag("alicf")));
}

TEST_F(Tenants, OverItsQuotaATenantLosesItsOwnAndLeastRecentlyUsed) {
  PrefixStore store(Memory(10 * ChunkBytes()));
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(PutLetters(store, Text(i), Salt('b', '1')));
  // Two salts of one tenant share its quota.
  for (int i = 0; i < 30; ++i) {
    ASSERT_TRUE(PutLetters(store, Text(i), Salt('a', i % 2 == 0 ? '1' : '2')));
    FoundTokens(store, Text(0), Salt('a', '1'));  // used again and again
  }
  const StoreStats stats = store.stats();
  EXPECT_EQ(stats.memory.entries, 18u);
  EXPECT_EQ(stats.memory.over_quota, 20u);
  EXPECT_EQ(stats.memory.evictions, 0u);
  EXPECT_EQ(Found(store, Salt('b', '1'), 0, 8), 8) << "another tenant's stay";
  EXPECT_EQ(FoundTokens(store, Text(0), Salt('a', '1')), 4);
  EXPECT_EQ(Found(store, Salt('a', '1'), 0, 30) + Found(store, Salt('a', '2'), 0, 30), 10);
  EXPECT_EQ(FoundTokens(store, Text(0), Salt('a', '2')), 0) << "two salts share nothing";
}

TEST_F(Tenants, AQuotaOfTheDiskHoldsAndHoldsAfterARestart) {
  const auto await = [](PrefixStore& store, size_t entries) {
    for (int i = 0; i < 2000 && store.stats().disk.entries != entries; ++i) {
      absl::SleepFor(absl::Milliseconds(2));
    }
    return store.stats().disk.entries;
  };
  {
    PrefixStore store(Disk(10 * kStoreBlock));
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(PutLetters(store, Text(i), Salt('b', '1')));
    ASSERT_EQ(await(store, 5), 5u);
    for (int i = 0; i < 30; ++i) ASSERT_TRUE(PutLetters(store, Text(i), Salt('a', '1')));
    EXPECT_EQ(await(store, 15), 15u);
  }
  {
    PrefixStore store(Disk(10 * kStoreBlock));
    EXPECT_EQ(store.stats().disk.entries, 15u);
    EXPECT_EQ(Found(store, Salt('b', '1'), 0, 5), 5);
    EXPECT_EQ(Found(store, Salt('a', '1'), 20, 30), 10) << "the youngest";
    EXPECT_EQ(Found(store, Salt('a', '1'), 0, 20), 0);
  }
  PrefixStore store(Disk(3 * kStoreBlock));  // and so does a lower one
  EXPECT_EQ(store.stats().disk.entries, 6u);
  EXPECT_EQ(Found(store, Salt('a', '1'), 27, 30), 3);
}

TEST_F(Tenants, AHitDoesNotWriteAgainWhatWentFromDiskForAQuota) {
  PrefixStore store(Disk(10 * kStoreBlock));
  // Behind all that waits for the disk.
  const auto written = [&store] {
    std::promise<absl::Status> ended;
    store.ClearSome({.tenant = TenantTag{1}},
                    [&ended](const absl::Status& status) { ended.set_value(status); });
    EXPECT_TRUE(ended.get_future().get().ok());
  };
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(PutLetters(store, Text(i), Salt('a', '1')));
  written();
  ASSERT_EQ(store.stats().disk.over_quota, 10u);
  EXPECT_EQ(Found(store, Salt('a', '1'), 0, 20), 20) << "in memory they all are";
  written();
  EXPECT_EQ(store.stats().disk.over_quota, 10u);
}

}  // namespace
}  // namespace aludel
