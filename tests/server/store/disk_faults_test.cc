// Faults of the disk tier that must neither lose what is stored nor keep what was dropped.

#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "runtime/codec/store/segment_scan.h"
#include "tests/server/store/store_fixture.h"

namespace aludel {
namespace {

class DiskFaults : public ::testing::Test {
 protected:
  DiskFaults() : directory_(absl::StrCat(::testing::TempDir(), "/faults-", getpid())) {
    std::filesystem::remove_all(directory_);
  }
  ~DiskFaults() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<PrefixStore> Open(size_t max_entries = PrefixStore::kMaxDiskEntries) const {
    return std::make_unique<PrefixStore>(PrefixStore::Options{
        .producer = "base",
        .memory_bytes = 1 << 20,
        .disk = PrefixStore::Disk{.path = directory_, .bytes = 1 << 20, .max_entries = max_entries},
        .encoders = {EncoderTag(FakeSpec())}});
  }
  static bool AwaitWritten(PrefixStore& store) {
    for (int i = 0; i < 2000 && store.stats().queued_bytes > 0; ++i) absl::SleepFor(absl::Milliseconds(5));
    return store.stats().queued_bytes == 0;
  }

  const std::string directory_;
  const std::string first_ = absl::StrCat(directory_, "/", SegmentName(1));
  const std::string aside_ = directory_ + "/aside";
};

TEST_F(DiskFaults, AClearThatCannotRemoveAFileSaysSoAndCountsItsBytes) {
  const auto store = Open();
  PutLetters(*store, "abcd");
  ASSERT_TRUE(AwaitWritten(*store));
  const uint64_t bytes = store->stats().disk.bytes;
  std::filesystem::rename(first_, aside_);
  std::filesystem::create_directory(first_);  // which unlink does not remove
  EXPECT_TRUE(absl::IsUnavailable(ClearAndWait(*store)));
  EXPECT_EQ(store->stats().disk.bytes, bytes);
  EXPECT_EQ(store->stats().disk.entries, 0u);
  PutLetters(*store, "efgh");  // into another segment
  ASSERT_TRUE(AwaitWritten(*store));
  EXPECT_EQ(store->stats().disk.entries, 1u);
  std::filesystem::remove(first_);
  EXPECT_TRUE(ClearAndWait(*store).ok());
  EXPECT_EQ(store->stats().disk.bytes, 0u);
}

// However long the call takes that asked for it.
TEST_F(DiskFaults, AClearCountsNoFileThatNothingReads) {
  constexpr int kChunks = 3000;
  const PrefixStore::Options options = {.producer = "base",
                                        .memory_bytes = 64 << 20,
                                        .disk = PrefixStore::Disk{.path = directory_, .bytes = 64 << 20},
                                        .encoders = {EncoderTag(FakeSpec())}};
  PrefixStore store(options);
  for (int turn = 0; turn < 5; ++turn) {
    for (int i = 0; i < kChunks; ++i) ASSERT_TRUE(PutLetters(store, absl::StrCat(1000 + i)));
    ASSERT_TRUE(AwaitWritten(store));
    ASSERT_EQ(store.stats().disk.entries, kChunks);
    ASSERT_TRUE(ClearAndWait(store).ok());
    ASSERT_EQ(store.stats().disk.bytes, 0u) << turn;
  }
}

TEST_F(DiskFaults, ASegmentThatCannotBeOpenedNowIsLeftAloneAndCounts) {
  PutLetters(*Open(), "abcd");
  const uint64_t bytes = std::filesystem::file_size(first_);
  std::filesystem::rename(first_, aside_);
  std::filesystem::create_symlink(aside_, first_);  // which open refuses
  {
    const auto store = Open();
    EXPECT_TRUE(store->stats().disk.open);
    EXPECT_EQ(store->stats().disk.entries, 0u);
    EXPECT_EQ(store->stats().disk.bytes, bytes);
    EXPECT_EQ(store->stats().findings.unread, 1u);
  }
  ASSERT_TRUE(std::filesystem::is_symlink(first_));
  std::filesystem::rename(aside_, first_);
  EXPECT_EQ(Open()->stats().disk.entries, 1u);

  std::filesystem::rename(first_, aside_);
  std::filesystem::create_symlink(aside_, first_);
  const auto store = Open();
  EXPECT_TRUE(ClearAndWait(*store).ok());
  EXPECT_FALSE(std::filesystem::is_symlink(first_)) << "a clear is for what was not read, too";
  EXPECT_EQ(store->stats().disk.bytes, 0u);
}

TEST_F(DiskFaults, ABoundOnEntriesHoldsAndHoldsFromTheStart) {
  constexpr size_t kEntries = 40;
  {
    const auto store = Open(kEntries);
    for (int i = 0; i < 200; ++i) {
      PutLetters(*store, absl::StrCat(1000 + i));
      ASSERT_LE(store->stats().disk.entries, kEntries);
    }
    ASSERT_TRUE(AwaitWritten(*store));
    EXPECT_GT(store->stats().disk.entries, kEntries / 4);
  }
  EXPECT_LT(Open(kEntries / 2)->stats().disk.entries, kEntries / 2);
}

TEST(WriteBehindTest, OneChunkFitsWhateverItsSize) {
  std::vector<uint64_t> written;
  {
    WriteBehind writer(1, [&](const DiskWrite& write) { written.push_back(write.generation); });
    EXPECT_TRUE(writer.Push({.generation = 7}));
  }
  EXPECT_EQ(written, std::vector<uint64_t>({7}));
}

TEST(WriteBehindTest, ATenantThatWritesMuchLeavesRoomForOthers) {
  absl::Mutex held;
  held.Lock();
  {
    const auto weight = [](const char* tenant) {
      DiskWrite write{.frames = std::make_shared<std::vector<StoredFrame>>(1)};
      write.meta.entry.salt = SaltTag(tenant);
      return write;
    };
    const size_t bytes = weight("").weight();
    WriteBehind writer(
        8 * bytes, [&](const DiskWrite&) { const absl::MutexLock lock(&held); }, /*shared=*/true);
    const auto push = [&](const char* tenant) {
      int pushed = 0;
      while (writer.Push(weight(tenant))) ++pushed;
      return pushed;
    };
    EXPECT_EQ(push("alice"), 4) << "as much as it leaves free";
    EXPECT_EQ(push("bob"), 2);
    EXPECT_EQ(push("carol"), 1);
    EXPECT_EQ(push("dave"), 1);
    EXPECT_EQ(push("eve"), 0);
    held.Unlock();
    for (int i = 0; i < 2000 && writer.bytes() > 0; ++i) absl::SleepFor(absl::Milliseconds(5));
    EXPECT_GT(push("eve"), 0) << "all of it is written";
  }
}

}  // namespace
}  // namespace aludel
