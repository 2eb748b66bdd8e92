// The disk tier of the prefix store: restarts, limits, and whatever a disk does to a file.

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "runtime/codec/store/segment_scan.h"
#include "server/store/prefix_store.h"
#include "tests/server/store/store_fixture.h"

namespace aludel {
namespace {

constexpr absl::Duration kAnyAge = absl::InfiniteDuration();

class DiskStore : public ::testing::Test {
 protected:
  DiskStore() : directory_(absl::StrCat(::testing::TempDir(), "/store-", getpid())) {
    std::filesystem::remove_all(directory_);
  }
  ~DiskStore() override {
    chmod(directory_.c_str(), 0700);
    std::filesystem::remove_all(directory_);
  }

  PrefixStore::Options Options(uint64_t disk_bytes = 64 << 20) const {
    return {.producer = "base",
            .memory_bytes = 1 << 20,
            .disk = PrefixStore::Disk{.path = directory_, .bytes = disk_bytes, .read_threads = 2},
            .encoders = {EncoderTag(FakeSpec())}};
  }
  // The tokens that can be had, as text, by the payloads of layer 0.
  static std::string Found(PrefixStore& store, const std::string& text, absl::Duration max_age = kAnyAge,
                           const std::string& salt = "") {
    const std::vector<int32_t> prompt = Letters(text);
    StorePosition at = store.Begin(FakeSpec(), salt);
    std::string found;
    for (const StoredChunk& chunk : store.Find(prompt, max_age, &at)) {
      StoredFrames frames = chunk.frames;
      if (frames == nullptr) {
        std::promise<StoredFrames> loaded;
        store.Load(chunk, prompt, [&loaded](StoredFrames read) { loaded.set_value(std::move(read)); });
        frames = loaded.get_future().get();
      }
      if (frames == nullptr) break;
      found.append(frames->front().payload.begin(), frames->front().payload.end());
    }
    return found;
  }
  static bool Await(PrefixStore& store, const std::function<bool(const StoreStats&)>& holds) {
    for (int i = 0; i < 2000; ++i) {
      if (holds(store.stats())) return true;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return false;
  }
  static bool AwaitEntries(PrefixStore& store, size_t entries) {
    return Await(store, [entries](const StoreStats& stats) { return stats.disk.entries == entries; });
  }
  std::vector<std::string> Segments() const {
    std::vector<std::string> paths;
    for (const auto& file : std::filesystem::directory_iterator(directory_)) {
      if (SegmentNumber(file.path().filename().string()) >= 0) paths.push_back(file.path().string());
    }
    std::sort(paths.begin(), paths.end());
    return paths;
  }
  uint64_t FileBytes() const {
    uint64_t bytes = 0;
    for (const std::string& path : Segments()) {
      struct stat status = {};
      stat(path.c_str(), &status);
      bytes += std::max<uint64_t>(status.st_blocks * 512, status.st_size);
    }
    return bytes;
  }
  void Flip(size_t offset) const {
    std::fstream file(Segments().at(0), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(byte);
  }
  // As if the first record, of four tokens, had been written at that time by the wall clock: the footer is cut, and the
  // record's time and checksum are made anew.
  void SetAdded(absl::Time time) const {
    CutFooter();
    const int file = open(Segments().at(0).c_str(), O_RDWR);
    std::vector<uint8_t> meta(ChunkMetaBytes(4, 2));
    ASSERT_TRUE(ReadAt(file, kStoreBlock, absl::MakeSpan(meta)).ok());
    const int64_t added = absl::ToUnixMillis(time);
    std::memcpy(meta.data() + 144, &added, sizeof(added));
    std::memset(meta.data() + 156, 0, 4);
    const uint32_t crc = Crc32c(0, meta);
    std::memcpy(meta.data() + 156, &crc, sizeof(crc));
    ASSERT_EQ(pwrite(file, meta.data(), meta.size(), kStoreBlock), static_cast<ssize_t>(meta.size()));
    close(file);
  }
  // A segment whose writer was killed: no footer.
  void CutFooter() const {
    const std::string path = Segments().at(0);
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - kStoreBlock);
  }

  const std::string directory_;
};

TEST_F(DiskStore, FindsAfterARestartWhatItHadBefore) {
  {
    PrefixStore store(Options());
    ASSERT_TRUE(store.stats().disk.open);
    EXPECT_TRUE(PutLetters(store, "abcdefghij"));
    EXPECT_TRUE(PutLetters(store, "abcdxyz", "alice"));
  }
  PrefixStore store(Options());
  EXPECT_EQ(store.stats().disk.entries, 5u);
  EXPECT_EQ(store.stats().memory.entries, 0u);
  EXPECT_EQ(Found(store, "abcdefghijkl"), "abcdefghij");
  EXPECT_EQ(Found(store, "abcdxyz"), "abcd");
  EXPECT_EQ(Found(store, "abcdxyz", kAnyAge, "alice"), "abcdxyz");
  EXPECT_EQ(Found(store, "abcdxyz", kAnyAge, "bob"), "");
  EXPECT_EQ(store.stats().loads, 5u);
  EXPECT_EQ(store.stats().memory.entries, 5u) << "what was read is in memory again";
  // And goes on from there.
  EXPECT_TRUE(PutLetters(store, "abcdefghijkl"));
  EXPECT_TRUE(AwaitEntries(store, 6));
}

TEST_F(DiskStore, ServesWhatMemoryHasNoRoomFor) {
  PrefixStore::Options options = Options();
  options.memory_bytes = 3 * 450;
  PrefixStore store(options);
  for (const char* text : {"abcdefgh", "ABCDEFGH", "12345678"}) {
    EXPECT_TRUE(PutLetters(store, text));
  }
  ASSERT_TRUE(AwaitEntries(store, 6));
  EXPECT_LE(store.stats().memory.entries, 3u);
  for (const char* text : {"abcdefgh", "ABCDEFGH", "12345678"}) EXPECT_EQ(Found(store, text), text);
}

TEST_F(DiskStore, StaysWithinItsBytesAndKeepsWhatIsAskedFor) {
  constexpr uint64_t kLimit = 1 << 20;
  PrefixStore::Options options = Options(kLimit);
  options.memory_bytes = 2048;  // so that it is served from the disk
  PrefixStore store(options);
  PutLetters(store, "favorite");
  for (int i = 0; i < 1000; ++i) {
    PutLetters(store, absl::StrCat("prompt", i));
    EXPECT_LE(store.stats().disk.bytes, kLimit);
    if (i % 20 != 0) continue;
    EXPECT_EQ(Found(store, "favorite"), "favorite") << i;
    // The sum over files is a sum of one moment only while nothing is written.
    ASSERT_TRUE(Await(store, [](const StoreStats& stats) { return stats.queued_bytes == 0; }));
    EXPECT_LE(FileBytes(), kLimit);
  }
  EXPECT_GT(store.stats().disk.evictions, 500u);
  EXPECT_GT(store.stats().rewrites, 1u);
  EXPECT_EQ(store.stats().write_errors, 0u);
}

TEST_F(DiskStore, ALowerLimitHoldsFromTheStart) {
  {
    PrefixStore store(Options());
    for (int i = 0; i < 500; ++i) PutLetters(store, absl::StrCat("prompt", i));
  }
  EXPECT_GT(FileBytes(), 1u << 20);
  PrefixStore store(Options(1 << 20));
  EXPECT_LE(FileBytes(), 1u << 20);
}

TEST_F(DiskStore, AReaderKeepsItsChunkAndItsBytesCount) {
  PrefixStore::Options options = Options(1 << 20);
  options.memory_bytes = 2048;
  PrefixStore store(options);
  PutLetters(store, "abcd");
  ASSERT_TRUE(AwaitEntries(store, 1));
  for (int i = 0; i < 4; ++i) PutLetters(store, absl::StrCat("push", i));  // out of memory
  const std::vector<int32_t> prompt = Letters("abcd");
  StorePosition at = store.Begin(FakeSpec(), "");
  const std::vector<StoredChunk> leased = store.Find(prompt, kAnyAge, &at);
  ASSERT_EQ(leased.size(), 1u);
  ASSERT_EQ(leased[0].frames, nullptr);
  EXPECT_TRUE(ClearAndWait(store).ok());
  EXPECT_EQ(Segments().size(), 0u);
  EXPECT_GT(store.stats().disk.bytes, 0u);
  std::promise<StoredFrames> loaded;
  store.Load(leased[0], prompt, [&](StoredFrames frames) { loaded.set_value(std::move(frames)); });
  const StoredFrames frames = loaded.get_future().get();
  ASSERT_NE(frames, nullptr);
  EXPECT_EQ(frames->front().payload.front(), 'a');
  EXPECT_EQ(store.stats().memory.entries, 0u) << "what was cleared does not come back";
}

TEST_F(DiskStore, AFlippedBitIsAMissNowAndAfterARestart) {
  { PutLetters(*std::make_unique<PrefixStore>(Options()), "abcdefgh"); }
  Flip(kStoreBlock + ChunkMetaBytes(4, 2));  // the first payload
  {
    PrefixStore store(Options());
    EXPECT_EQ(Found(store, "abcdefgh"), "");
    EXPECT_EQ(store.stats().damaged, 1u);
    EXPECT_EQ(store.stats().disk.entries, 1u);
    EXPECT_EQ(Found(store, "abcdefgh"), "");
    EXPECT_EQ(store.stats().damaged, 1u) << "it is not read again";
  }
  PrefixStore store(Options());
  EXPECT_EQ(store.stats().disk.entries, 1u);
  EXPECT_TRUE(PutLetters(store, "abcdefgh")) << "and is made again";
  EXPECT_EQ(Found(store, "abcdefgh"), "abcdefgh");
}

TEST_F(DiskStore, WithoutAFooterRecordsAreFoundByScanningUpToATornOne) {
  { PutLetters(*std::make_unique<PrefixStore>(Options()), "abcdefghijkl"); }
  CutFooter();
  const std::string path = Segments().at(0);
  ASSERT_EQ(std::filesystem::file_size(path), 4 * kStoreBlock);
  std::filesystem::resize_file(path, 4 * kStoreBlock - 1000);
  {
    PrefixStore store(Options());
    EXPECT_EQ(Found(store, "abcdefghijkl"), "abcdefgh");
    EXPECT_EQ(std::filesystem::file_size(path), 3 * kStoreBlock) << "the torn tail takes no room";
    EXPECT_EQ(store.stats().findings.torn, 1u);
  }
  Flip(kStoreBlock + 40);  // the key of the first record
  PrefixStore store(Options());
  EXPECT_EQ(store.stats().disk.entries, 0u) << "nothing is read behind what is damaged";
  EXPECT_TRUE(PutLetters(store, "abcdefghijkl"));
}

TEST_F(DiskStore, AnotherProducersVersionsAndFormatsAreRemoved) {
  { PutLetters(*std::make_unique<PrefixStore>(Options()), "abcd"); }
  PrefixStore::Options other = Options();
  other.producer = "another";
  const auto opened = [&](const PrefixStore::Options& options) {
    const StoreStats stats = std::make_unique<PrefixStore>(options)->stats();
    EXPECT_EQ(stats.disk.entries, 0u);
    EXPECT_EQ(Segments().size(), 0u);
    return stats.findings;
  };
  EXPECT_EQ(opened(other).removed, 1u);

  { PutLetters(*std::make_unique<PrefixStore>(Options()), "abcd"); }
  other = Options();
  other.encoders = {SaltTag("no encoder of ours")};
  EXPECT_EQ(opened(other).foreign, 1u);

  { PutLetters(*std::make_unique<PrefixStore>(Options()), "abcd"); }
  Flip(4);  // the version
  EXPECT_EQ(opened(Options()).removed, 1u);
}

TEST_F(DiskStore, FilesOfOthersStay) {
  std::filesystem::create_directories(directory_);
  std::ofstream(directory_ + "/notes.txt") << "mine";
  std::ofstream(directory_ + "/segment-1") << "not quite a segment's name";
  { PutLetters(*std::make_unique<PrefixStore>(Options()), "abcd"); }
  EXPECT_TRUE(ClearAndWait(*std::make_unique<PrefixStore>(Options())).ok());
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/notes.txt"));
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/segment-1"));
}

TEST_F(DiskStore, AClearIsForGood) {
  {
    PrefixStore store(Options());
    PutLetters(store, "abcdefgh");
    ASSERT_TRUE(AwaitEntries(store, 2));
    StorePosition under_way = store.Begin(FakeSpec(), "");
    EXPECT_TRUE(ClearAndWait(store).ok());
    EXPECT_FALSE(store.Put(Letters("abcd"), 4, LetterFrames(Letters("abcd"), 0, 4), &under_way));
    EXPECT_EQ(Found(store, "abcdefgh"), "");
    EXPECT_EQ(store.stats().disk.bytes, 0u);
    PutLetters(store, "ABCD");
  }
  PrefixStore store(Options());
  EXPECT_EQ(store.stats().disk.entries, 1u);
  EXPECT_EQ(Found(store, "abcdefgh"), "");
  EXPECT_EQ(Found(store, "ABCD"), "ABCD");
}

TEST_F(DiskStore, OneProcessHasADirectoryAndAnotherDoesWithout) {
  PrefixStore store(Options());
  PrefixStore second(Options());
  EXPECT_TRUE(store.stats().disk.open);
  EXPECT_FALSE(second.stats().disk.open);
  EXPECT_TRUE(PutLetters(second, "abcd"));
  EXPECT_EQ(Found(second, "abcd"), "abcd");
}

TEST_F(DiskStore, WhereNothingCanBeMadeMemoryServesAlone) {
  std::ofstream(directory_) << "a file in the way";
  PrefixStore store(Options());
  EXPECT_FALSE(store.stats().disk.open);
  EXPECT_TRUE(PutLetters(store, "abcd"));
  EXPECT_EQ(Found(store, "abcd"), "abcd");
}

TEST_F(DiskStore, ADiskThatTakesNoMoreCostsNothingButItsHits) {
  PrefixStore store(Options());
  PutLetters(store, "abcd");
  ASSERT_TRUE(AwaitEntries(store, 1));
  std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const struct rlimit full = {2 * kStoreBlock + 100, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  PutLetters(store, "efgh");
  EXPECT_TRUE(Await(store, [](const StoreStats& stats) { return stats.write_errors > 0; }));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(std::filesystem::file_size(Segments().at(0)), 2 * kStoreBlock) << "half a record is taken back";
  EXPECT_EQ(Found(store, "efgh"), "efgh");
  absl::SleepFor(absl::Milliseconds(1100));  // it is not asked again at once
  EXPECT_EQ(Found(store, "efgh"), "efgh");
  EXPECT_TRUE(AwaitEntries(store, 2)) << "written when it is asked for again";
}

TEST_F(DiskStore, AClockThatWasSetBackMakesAnAgeUnknown) {
  { PutLetters(*std::make_unique<PrefixStore>(Options()), "abcd"); }
  SetAdded(absl::Now() + absl::Hours(1));
  PrefixStore store(Options());
  EXPECT_EQ(Found(store, "abcd", absl::Hours(24)), "");
  EXPECT_EQ(Found(store, "abcd"), "abcd");
}

// As old as the jump is long, and no older: too old for who bounds the age, never too young.
TEST_F(DiskStore, AClockThatWasSetForwardMakesChunksOlder) {
  { PutLetters(*std::make_unique<PrefixStore>(Options()), "abcd"); }
  SetAdded(absl::Now() - absl::Hours(10));
  {
    PrefixStore store(Options());
    EXPECT_EQ(Found(store, "abcd", absl::Hours(9)), "");
    EXPECT_EQ(Found(store, "abcd", absl::Hours(11)), "abcd");
    EXPECT_EQ(Found(store, "abcd"), "abcd");
    EXPECT_EQ(store.stats().damaged, 0u);
    // What is made since has its own age, beside the other.
    EXPECT_TRUE(PutLetters(store, "efgh"));
    ASSERT_TRUE(AwaitEntries(store, 2));
  }
  PrefixStore store(Options());
  EXPECT_EQ(Found(store, "efgh", absl::Hours(9)), "efgh");
  EXPECT_EQ(Found(store, "abcd", absl::Hours(9)), "");
}

// By more than any clock should: before 1970, and by as much as a record's time may say.
TEST_F(DiskStore, AClockThatIsFarOffCostsNothingButAges) {
  for (const absl::Time time : {absl::UnixEpoch() - absl::Hours(1), absl::FromUnixMillis(INT64_MIN),
                                absl::FromUnixMillis(INT64_MAX)}) {
    std::filesystem::remove_all(directory_);
    { PutLetters(*std::make_unique<PrefixStore>(Options()), "abcd"); }
    SetAdded(time);
    PrefixStore store(Options());
    EXPECT_EQ(Found(store, "abcd", absl::Hours(24 * 365)), "") << time;
    EXPECT_EQ(Found(store, "abcd"), "abcd") << time;
    EXPECT_EQ(store.stats().findings.undated, time > absl::Now() ? 1u : 0u) << time;
  }
}

TEST_F(DiskStore, AgesGoOnOverARestart) {
  { PutLetters(*std::make_unique<PrefixStore>(Options()), "abcd"); }
  absl::SleepFor(absl::Milliseconds(600));
  PrefixStore store(Options());
  EXPECT_EQ(Found(store, "abcd", absl::Milliseconds(500)), "");
  EXPECT_EQ(Found(store, "abcd", absl::Hours(1)), "abcd");
}

TEST_F(DiskStore, AChunkMayWaitForItsSecondRequest) {
  PrefixStore::Options options = Options();
  options.disk->min_requests = 2;
  PrefixStore store(options);
  PutLetters(store, "abcd");
  PutLetters(store, "efgh");
  EXPECT_EQ(store.stats().seldom, 2u);
  EXPECT_EQ(Found(store, "efgh"), "efgh");
  ASSERT_TRUE(AwaitEntries(store, 1));
  EXPECT_EQ(Found(store, "abcd"), "abcd");
  EXPECT_TRUE(AwaitEntries(store, 2));
}

// Memory drops the beginning of a prompt before the disk has it: the rest is stored behind it, and all of it is found.
TEST_F(DiskStore, WhatWaitsForTheDiskIsStoredWhenMemoryHasDroppedIt) {
  const std::string text = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN";
  for (const auto eviction : {PrefixStore::Eviction::kUtility, PrefixStore::Eviction::kLru}) {
    std::filesystem::remove_all(directory_);
    PrefixStore::Options options = Options();
    options.eviction = eviction;
    options.memory_bytes = 2048;  // of some 400 a chunk
    PrefixStore store(options);
    absl::Notification stalled, goes_on;
    store.Clear([&](const absl::Status&) {
      stalled.Notify();
      goes_on.WaitForNotification();
    });
    stalled.WaitForNotification();
    EXPECT_TRUE(PutLetters(store, text));
    EXPECT_LE(store.stats().memory.entries, 5u);
    EXPECT_LE(store.stats().memory.bytes, 2048u);
    EXPECT_EQ(store.stats().disk.entries, 0u);
    EXPECT_EQ(Found(store, text), text);
    EXPECT_EQ(store.stats().rejects.front_gone, 0u);
    goes_on.Notify();
    ASSERT_TRUE(AwaitEntries(store, 10));
    ASSERT_TRUE(Await(store, [](const StoreStats& stats) { return stats.queued_bytes == 0; }));
    EXPECT_EQ(Found(store, text), text);
    EXPECT_GT(store.stats().loads, 0u);
  }
}

// What is cleared while it waits for the disk is not found any more.
TEST_F(DiskStore, WhatIsClearedWhileItWaitsForTheDiskIsGone) {
  PrefixStore::Options options = Options();
  options.memory_bytes = 2048;
  PrefixStore store(options);
  absl::Notification stalled, goes_on;
  store.Clear([&](const absl::Status&) {
    stalled.Notify();
    goes_on.WaitForNotification();
  });
  stalled.WaitForNotification();
  EXPECT_TRUE(PutLetters(store, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN"));
  StorePosition at = store.Begin(FakeSpec(), "");
  store.Peek(Letters("abcdefgh"), &at);
  ASSERT_EQ(at.tokens, 8);
  std::promise<absl::Status> cleared;
  EXPECT_EQ(store.ClearSome({.from = at.key}, [&](const absl::Status& status) { cleared.set_value(status); }),
            9u);
  EXPECT_EQ(Found(store, "abcdefghijklmnop"), "abcd");
  goes_on.Notify();
  EXPECT_TRUE(cleared.get_future().get().ok());
  EXPECT_EQ(Found(store, "abcdefghijklmnop"), "abcd");
}

}  // namespace
}  // namespace aludel
