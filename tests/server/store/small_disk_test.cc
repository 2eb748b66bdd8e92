// A file system that is really full, or really read-only, below a disk tier: a miss and a count, and never a wrong byte.

#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/server/store/store_fixture.h"

namespace aludel {
namespace {

constexpr size_t kFileSystemBytes = 256 << 10;

// A tmpfs of its own for each test, in a mount namespace of this process; without the right to mount one, skipped.
class SmallDisk : public ::testing::Test {
 protected:
  SmallDisk()
      : mounted_(absl::StrCat(::testing::TempDir(), "/small-", getpid())), directory_(mounted_ + "/store") {}
  void SetUp() override {
    std::filesystem::create_directories(mounted_);
    is_mounted_ =
        unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
        mount("tmpfs", mounted_.c_str(), "tmpfs", 0, absl::StrCat("size=", kFileSystemBytes).c_str()) == 0;
    if (!is_mounted_) GTEST_SKIP() << "no right to mount a file system";
  }
  void TearDown() override {
    if (is_mounted_) umount2(mounted_.c_str(), MNT_DETACH);
    std::filesystem::remove_all(mounted_);
  }
  void Remount(bool read_only) const {
    const unsigned long flags = MS_REMOUNT | (read_only ? MS_RDONLY : 0);
    ASSERT_EQ(
        mount("tmpfs", mounted_.c_str(), "tmpfs", flags, absl::StrCat("size=", kFileSystemBytes).c_str()), 0);
  }
  // Memory for a few chunks only: what is found comes from disk.
  std::unique_ptr<PrefixStore> Open(size_t memory_bytes = 4096) const {
    return std::make_unique<PrefixStore>(
        PrefixStore::Options{.producer = "base",
                             .memory_bytes = memory_bytes,
                             .disk = PrefixStore::Disk{.path = directory_, .bytes = 64 << 20},
                             .encoders = {EncoderTag(FakeSpec())}});
  }
  static std::string Text(int i) { return absl::StrCat(1000 + i); }  // four letters, one chunk
  static bool AwaitWritten(PrefixStore& store) {
    for (int i = 0; i < 2000 && store.stats().queued_bytes > 0; ++i) absl::SleepFor(absl::Milliseconds(5));
    return store.stats().queued_bytes == 0;
  }
  // Whether the prompt's chunk can be had; what there is must be right.
  static bool Has(PrefixStore& store, const std::string& text) {
    const std::vector<int32_t> prompt = Letters(text);
    StorePosition at = store.Begin(FakeSpec(), "");
    const std::vector<StoredChunk> chunks = store.Find(prompt, absl::InfiniteDuration(), &at);
    if (chunks.empty()) return false;
    StoredFrames frames = chunks[0].frames;
    if (frames == nullptr) {
      std::promise<StoredFrames> loaded;
      store.Load(chunks[0], prompt, [&loaded](StoredFrames read) { loaded.set_value(std::move(read)); });
      frames = loaded.get_future().get();
    }
    if (frames == nullptr) return false;
    EXPECT_EQ(frames->front().payload, LetterFrames(prompt, 0, 4).front().payload);
    return true;
  }
  void Fill() const { std::ofstream(mounted_ + "/others") << std::string(kFileSystemBytes, 'x'); }
  void Empty() const { std::filesystem::remove(mounted_ + "/others"); }

  const std::string mounted_;
  const std::string directory_;
  bool is_mounted_ = false;
};

TEST_F(SmallDisk, WhereTheDiskIsSmallerThanTheLimitNothingIsWrong) {
  constexpr int kPrompts = 200;  // a block each: more than three times what there is room for
  int found = 0;
  {
    const auto store = Open();
    for (int i = 0; i < kPrompts; ++i) {
      ASSERT_TRUE(PutLetters(*store, Text(i)));
      ASSERT_TRUE(AwaitWritten(*store));
    }
    EXPECT_GT(store->stats().write_errors, 0u);
    for (int i = 0; i < kPrompts; ++i) found += Has(*store, Text(i)) ? 1 : 0;
    EXPECT_GT(found, 10);
    EXPECT_EQ(store->stats().damaged + store->stats().read_errors, 0u);
  }
  // The last segment's end may have had no room: its records are found without.
  const auto store = Open();
  EXPECT_TRUE(store->stats().disk.open);
  int found_again = 0;
  for (int i = 0; i < kPrompts; ++i) found_again += Has(*store, Text(i)) ? 1 : 0;
  EXPECT_GT(found_again, 10);
  EXPECT_EQ(store->stats().damaged + store->stats().read_errors, 0u);
}

TEST_F(SmallDisk, ADiskThatOthersFillIsWrittenToAgainOnceThereIsRoom) {
  const auto store = Open();
  ASSERT_TRUE(PutLetters(*store, Text(0)));
  ASSERT_TRUE(AwaitWritten(*store));
  Fill();
  for (int i = 1; i < 20; ++i) EXPECT_TRUE(PutLetters(*store, Text(i))) << "memory takes it";
  ASSERT_TRUE(AwaitWritten(*store));
  EXPECT_GT(store->stats().write_errors, 0u);
  EXPECT_TRUE(Has(*store, Text(0)));
  Empty();
  absl::SleepFor(absl::Milliseconds(1100));  // a disk that failed is not asked again at once
  const size_t entries = store->stats().disk.entries;
  ASSERT_TRUE(PutLetters(*store, Text(30)));
  ASSERT_TRUE(AwaitWritten(*store));
  EXPECT_EQ(store->stats().disk.entries, entries + 1);
}

TEST_F(SmallDisk, OneThatIsReadOnlyIsDoneWithoutAndReadAgainOnceItIsNot) {
  {
    const auto store = Open();
    for (int i = 0; i < 30; ++i) {
      ASSERT_TRUE(PutLetters(*store, Text(i)));
      ASSERT_TRUE(AwaitWritten(*store));
    }
  }
  Remount(true);
  {
    const auto store = Open();  // which cannot take its lock
    EXPECT_FALSE(store->stats().disk.open);
    EXPECT_TRUE(store->stats().disk.configured);
    EXPECT_TRUE(PutLetters(*store, Text(0)));
    EXPECT_TRUE(Has(*store, Text(0)));
    EXPECT_TRUE(ClearAndWait(*store).ok());
  }
  Remount(false);
  const auto store = Open();
  EXPECT_EQ(store->stats().disk.entries, 30u);
  for (int i = 0; i < 30; ++i) EXPECT_TRUE(Has(*store, Text(i))) << i;
}

}  // namespace
}  // namespace aludel
