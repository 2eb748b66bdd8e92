// A store that places by utility: what is cut, what goes, and whom a cut chunk serves.

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/store/cut_frames.h"
#include "tests/server/store/store_fixture.h"

namespace aludel {
namespace {

constexpr int kPlanes = 4;
constexpr int kManyPlanes = 8;
constexpr int kPlaneBytes = 100;
constexpr size_t kChunkBytes = 256 + 16 + 64 + kPlanes * (kPlaneBytes + 1);  // StoredWeight of four tokens
constexpr absl::Duration kAnyAge = absl::InfiniteDuration();

// "code", or the first so many planes of it.
CodecSpec Format(int planes = 0) {
  CodecSpec spec = FakeSpec();
  spec.name = planes == 0 ? "code" : absl::StrCat("code@", planes);
  spec.kind = FrameKind::kAludel;
  return spec;
}

// One frame, in so many planes, whose bytes say which tokens they are of.
std::vector<StoredFrame> Frames(const std::vector<int32_t>& prompt, int64_t begin, int64_t end, int planes) {
  std::vector<uint8_t> payload;
  for (int plane = 0; plane < planes; ++plane) {
    payload.push_back(kPlaneBytes);
    for (int i = 0; i < kPlaneBytes; ++i)
      payload.push_back(static_cast<uint8_t>(prompt[begin + i % (end - begin)] + plane));
  }
  return {{{0, 2, 0, static_cast<uint32_t>(begin), static_cast<uint32_t>(end - begin)}, payload}};
}

// A request: what is not stored of the prompt is encoded. Returns the tokens that were found in memory or on disk. What
// is found must be what an encoder of the format sends.
int64_t Request(PrefixStore& store, const std::string& text, int planes, int of = kPlanes) {
  const std::vector<int32_t> prompt = Letters(text);
  StorePosition at = store.Begin(Format(planes), "");
  const int sent = planes == 0 ? of : planes;
  for (const StoredChunk& chunk : store.Find(prompt, kAnyAge, &at)) {
    StoredFrames frames = chunk.frames;
    if (frames == nullptr) {
      std::promise<StoredFrames> read;
      store.Load(chunk, prompt, [&read](StoredFrames loaded) { read.set_value(std::move(loaded)); });
      frames = read.get_future().get();
    }
    if (frames == nullptr) {
      ADD_FAILURE() << "could not be read";
      return 0;
    }
    frames = CutFrames(frames, chunk.end.planes);
    EXPECT_EQ(frames->front().payload,
              Frames(prompt, chunk.token_begin, chunk.end.tokens, sent).front().payload);
  }
  const int64_t found = at.tokens;
  while (at.tokens < static_cast<int64_t>(prompt.size())) {
    const int64_t end = std::min<int64_t>(at.tokens + 4, static_cast<int64_t>(prompt.size()));
    if (!store.Put(prompt, end, Frames(prompt, at.tokens, end, sent), &at)) break;
  }
  return found;
}

PrefixStore::Options Memory(size_t chunks) {
  const StoreTag encoder = EncoderTag(Format());
  return {.producer = "base",
          .memory_bytes = chunks * kChunkBytes,
          .eviction = PrefixStore::Eviction::kUtility,
          .cuts = {{encoder, CutPlanes(Format())}, {encoder, CutPlanes(Format(1))}},
          .encoders = {encoder}};
}

std::string Name(int i) { return absl::StrCat(10000 + i).substr(1); }

TEST(UtilityStore, AFormatAndItsCutsAreOneFamily) {
  EXPECT_EQ(CutPlanes(Format()), 0);
  EXPECT_EQ(CutPlanes(Format(3)), 3);
  EXPECT_EQ(EncoderTag(Format()), EncoderTag(Format(3)));
  EXPECT_EQ(RootKey("base", Format(), "salt"), RootKey("base", Format(3), "salt"));
  CodecSpec two_parts = Format();
  two_parts.name = "code@2+";
  two_parts.base_planes = 2;
  EXPECT_EQ(CutPlanes(two_parts), 0) << "whole frames are stored, and split when they are sent";
  EXPECT_EQ(RootKey("base", two_parts, "salt"), RootKey("base", Format(), "salt"));
  EXPECT_EQ(EncoderTag(two_parts), EncoderTag(Format()));
  CodecSpec scd = Format(3);
  scd.kind = FrameKind::kScd;
  EXPECT_EQ(CutPlanes(scd), 0) << "only embedded codes have planes";
  CodecSpec many = Format();
  many.name = "code@9";
  EXPECT_EQ(CutPlanes(many), 0);
  EXPECT_NE(EncoderTag(many), EncoderTag(Format()));
}

TEST(UtilityStore, AWholeChunkServesCutsAndACutOneNeverTheWholeFormat) {
  PrefixStore store(Memory(100));
  EXPECT_EQ(Request(store, "abcdefgh", 0), 0);
  EXPECT_EQ(Request(store, "abcdefgh", 1), 8);
  EXPECT_EQ(Request(store, "ABCDEFGH", 1), 0);
  EXPECT_EQ(Request(store, "ABCDEFGH", 2), 0) << "one plane is not two";
  EXPECT_EQ(Request(store, "ABCDEFGH", 1), 8) << "two are more than one";
  EXPECT_EQ(Request(store, "ABCDEFGH", 0), 0);
  EXPECT_EQ(Request(store, "ABCDEFGH", 0), 8) << "made whole, it took the cut one's place";
  EXPECT_EQ(store.stats().memory.entries, 4u);
}

// Most requests for the format are for one plane of it.
void AskForOnePlane(PrefixStore& store) {
  for (int i = 0; i < 1000; ++i) Request(store, "zzzz", i == 0 ? 0 : 1);
}

TEST(UtilityStore, AFullMemoryIsCutFirstAndThenDropped) {
  PrefixStore store(Memory(40));
  AskForOnePlane(store);
  int stored = 0;
  for (; store.stats().cuts == 0; ++stored) {
    ASSERT_LT(stored, 100);
    Request(store, Name(stored), 0);
  }
  EXPECT_GE(stored, 35);
  EXPECT_EQ(store.stats().memory.evictions, 0u);
  for (; store.stats().memory.evictions == 0; ++stored) {
    ASSERT_LT(stored, 200);
    Request(store, Name(stored), 0);
    ASSERT_LE(store.stats().memory.bytes, 40 * kChunkBytes);
  }
  // Cut ones take three fifths of whole ones.
  EXPECT_GT(store.stats().memory.entries, 50u);
  EXPECT_GT(store.stats().cuts, 45u);
  EXPECT_LT(store.stats().placement_gap, 0.05);
  EXPECT_EQ(Request(store, Name(stored - 30), 0), 0) << "cut, it is no hit of the whole format";
  EXPECT_EQ(Request(store, Name(stored - 29), 1), 4);
}

TEST(UtilityStore, WithoutCutsThatAreOfferedNoneAreMade) {
  PrefixStore::Options options = Memory(20);
  options.cuts.clear();
  PrefixStore store(options);
  for (int i = 0; i < 60; ++i) {
    Request(store, Name(i), 0);
    Request(store, Name(i), 1);
  }
  EXPECT_EQ(store.stats().cuts, 0u);
  EXPECT_GT(store.stats().memory.evictions, 30u);
}

TEST(UtilityStore, WhatIsUsedOftenOutlivesWhatIsUsedOnceMoreRecently) {
  PrefixStore store(Memory(20));
  for (int i = 0; i < 5; ++i) Request(store, "abcd", 0);
  for (int i = 0; i < 100; ++i) Request(store, Name(i), 0);
  EXPECT_EQ(Request(store, "abcd", 0), 4);
}

TEST(UtilityStore, WhatComesBackAgainAndAgainStaysInTheEnd) {
  PrefixStore store(Memory(20));
  int other = 0;
  int64_t found = 0;
  for (int round = 0; round < 10; ++round) {
    found += Request(store, "abcd", 0);
    // More than there is room for, none of them ever again.
    for (int i = 0; i < 40; ++i) Request(store, Name(other++), 0);
  }
  EXPECT_EQ(found, 8 * 4) << "gone once, then known";
}

TEST(UtilityStore, PinnedChunksStayWholeAndTheLimitHolds) {
  PrefixStore::Options options = Memory(40);
  options.pinned_bytes = 10 * kChunkBytes;
  PrefixStore store(options);
  const std::string text = "abcdefghijklmnopqrstuvwx";
  Request(store, text, 0);
  ASSERT_EQ(store.Pin(Letters(text), store.Begin(Format(), ""), absl::Hours(1)).value(), 24);
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    const int which = static_cast<int>(random() % 150);
    Request(store, Name(which), random() % 3 == 0 ? 0 : 1);
    ASSERT_LE(store.stats().memory.bytes, 40 * kChunkBytes);
    ASSERT_GE(store.stats().placement_gap, 0);
    ASSERT_LE(store.stats().placement_gap, 1);
  }
  EXPECT_GT(store.stats().cuts, 0u);
  EXPECT_GT(store.stats().memory.evictions, 0u);
  EXPECT_EQ(Request(store, text, 0), 24);
}

TEST(UtilityStore, ManyPinsDoNotFillWhatIsKeptFree) {
  PrefixStore::Options options = Memory(200);
  options.pinned_bytes = 60 * kChunkBytes;
  PrefixStore store(options);
  for (int i = 0; i < 60; ++i) {
    Request(store, Name(i), 0);
    ASSERT_EQ(store.Pin(Letters(Name(i)), store.Begin(Format(), ""), absl::Hours(1)).value(), 4);
  }
  for (int i = 60; i < 600; ++i) {
    Request(store, Name(i), 0);
    if (i > 250) {
      ASSERT_LE(store.stats().memory.bytes, (MemoryMarks::kHigh * 200 + 1) * kChunkBytes) << i;
    }
  }
  for (int i = 0; i < 60; ++i) EXPECT_EQ(Request(store, Name(i), 0), 4) << i;
  for (int i = 0; i < 60; ++i) {
    EXPECT_EQ(store.Unpin(Letters(Name(i)), store.Begin(Format(), "")), 4);
  }
  for (int i = 600; i < 1800; ++i) {
    for (int use = 0; use < 3; ++use) Request(store, Name(i), 0);
  }
  for (int i = 0; i < 60; ++i) {
    StorePosition at = store.Begin(Format(), "");
    EXPECT_TRUE(store.Peek(Letters(Name(i)), &at).empty()) << "pinned no more, it goes like the others " << i;
  }
}

TEST(UtilityStore, WhatIsPinnedCutGrowsOnlyAsPinsHaveRoom) {
  for (const auto eviction : {PrefixStore::Eviction::kUtility, PrefixStore::Eviction::kLru}) {
    PrefixStore::Options options = Memory(40);
    options.eviction = eviction;
    options.pinned_bytes = 20 * kChunkBytes;
    PrefixStore store(options);
    int pinned = 0;
    for (;; ++pinned) {
      Request(store, Name(pinned), 1);
      const auto tokens = store.Pin(Letters(Name(pinned)), store.Begin(Format(1), ""), absl::Hours(1));
      if (!tokens.ok()) break;
    }
    ASSERT_GT(pinned, 30);
    for (int i = 0; i < pinned; ++i) {
      Request(store, Name(i), 0, kManyPlanes);
      ASSERT_LE(store.stats().memory.bytes, 40 * kChunkBytes) << i;
    }
    int whole = 0;
    for (int i = 0; i < pinned; ++i) {
      EXPECT_EQ(Request(store, Name(i), 1), 4) << i;
      whole += Request(store, Name(i), 0, kManyPlanes) == 4 ? 1 : 0;
    }
    EXPECT_LT(whole, 5);
    EXPECT_GE(store.stats().rejects.pinned, static_cast<uint64_t>(pinned - whole));
    // Where others are pinned no more, there is room.
    for (int i = 0; i < pinned / 2; ++i) {
      EXPECT_EQ(store.Unpin(Letters(Name(i)), store.Begin(Format(), "")), 4) << "in whatever planes";
    }
    EXPECT_EQ(Request(store, Name(pinned - 1), 0, kManyPlanes), 0);
    EXPECT_EQ(Request(store, Name(pinned - 1), 0, kManyPlanes), 4);
  }
}

TEST(UtilityStore, WhoAsksForFewerPlanesGetsALeaseAndNoCopy) {
  PrefixStore store(Memory(100));
  Request(store, "abcd", 0);
  StorePosition whole = store.Begin(Format(), "");
  StorePosition part = store.Begin(Format(1), "");
  const auto all = store.Find(Letters("abcd"), kAnyAge, &whole);
  const auto some = store.Find(Letters("abcd"), kAnyAge, &part);
  ASSERT_EQ(all.size(), 1u);
  ASSERT_EQ(some.size(), 1u);
  EXPECT_EQ(some[0].frames, all[0].frames);
  EXPECT_EQ(some[0].end.planes, 1);
}

// Codes are cut without the lock: meanwhile they are asked for, made again, pinned and cleared.
TEST(UtilityStore, TheLimitHoldsWhileManyThreadsAskPinAndClear) {
  constexpr size_t kChunks = 60;
  PrefixStore::Options options = Memory(kChunks);
  options.pinned_bytes = 10 * kChunkBytes;
  PrefixStore store(options);
  AskForOnePlane(store);
  std::atomic<int> pinned = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&store, &pinned, thread] {
      std::mt19937 random(thread);
      for (int i = 0; i < 3000; ++i) {
        const std::string text = Name(static_cast<int>(random() % 200));
        Request(store, text, random() % 3 == 0 ? 0 : 1);
        EXPECT_LE(store.stats().memory.bytes, kChunks * kChunkBytes);
        const StorePosition begin = store.Begin(Format(1), "");
        if (random() % 50 == 0) pinned += store.Pin(Letters(text), begin, absl::Milliseconds(2)).ok() ? 1 : 0;
        if (random() % 50 == 0) store.Unpin(Letters(text), begin);
        if (random() % 500 == 0) store.ClearSome({.encoder = begin.encoder}, [](const absl::Status&) {});
        if (random() % 1000 == 0) store.Clear([](const absl::Status&) {});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(store.stats().cuts, 100u);
  EXPECT_GT(pinned, 0);
  // No cut is under way: what is freed is counted as it is.
  for (int i = 0; i < 300; ++i) Request(store, Name(i), 0);
  EXPECT_LE(store.stats().memory.bytes, (MemoryMarks::kHigh * kChunks + 1) * kChunkBytes);
  EXPECT_GE(store.stats().memory.bytes, (MemoryMarks::kLow * kChunks - 2) * kChunkBytes);
}

TEST(UtilityStore, MoreMemoryFindsNoLess) {
  int64_t before = 0;
  for (const size_t chunks : {10, 20, 40, 80, 160}) {
    PrefixStore store(Memory(chunks));
    std::mt19937 random(5);
    std::geometric_distribution<int> which(0.02);
    int64_t found = 0;
    for (int i = 0; i < 4000; ++i) {
      const int planes = random() % 4 == 0 ? 0 : 1;
      found += Request(store, Name(which(random)), planes);
    }
    EXPECT_GE(found, before) << chunks;
    before = found;
  }
}

class UtilityStoreOnDisk : public testing::Test {
 protected:
  UtilityStoreOnDisk() : path_(absl::StrCat(testing::TempDir(), "/utility_store_", getpid())) {
    std::filesystem::remove_all(path_);
  }
  ~UtilityStoreOnDisk() override { std::filesystem::remove_all(path_); }
  PrefixStore::Options OnDisk(size_t chunks, uint32_t min_requests) const {
    PrefixStore::Options options = Memory(chunks);
    options.disk = PrefixStore::Disk{.path = path_, .bytes = 16 << 20, .min_requests = min_requests};
    return options;
  }

  const std::string path_;
};

TEST_F(UtilityStoreOnDisk, CutChunksAreCutAfterARestart) {
  std::set<std::string> cut;
  {
    // The disk takes a chunk when it has been asked for six times: by then some are cut.
    PrefixStore store(OnDisk(20, 6));
    AskForOnePlane(store);
    for (int i = 0; i < 30; ++i) Request(store, Name(i), 0);
    ASSERT_GT(store.stats().cuts, 0u);
    for (int i = 0; i < 30; ++i) {
      const std::vector<int32_t> prompt = Letters(Name(i));
      StorePosition whole = store.Begin(Format(), "");
      StorePosition part = store.Begin(Format(1), "");
      store.Peek(prompt, &whole);
      store.Peek(prompt, &part);
      if (whole.tokens > 0 || part.tokens == 0) continue;
      cut.insert(Name(i));
      for (int j = 0; j < 6; ++j) EXPECT_EQ(Request(store, Name(i), 1), 4);
    }
  }
  ASSERT_GT(cut.size(), 5u);
  PrefixStore store(OnDisk(200, 6));
  EXPECT_GE(store.stats().disk.entries, cut.size());
  for (const std::string& text : cut) {
    StorePosition at = store.Begin(Format(), "");
    store.Peek(Letters(text), &at);
    EXPECT_EQ(at.tokens, 0) << text << ": whole";
    EXPECT_EQ(Request(store, text, 1), 4) << text;
  }
}

TEST_F(UtilityStoreOnDisk, WhatMemoryHasCutTheDiskServesWhole) {
  PrefixStore store(OnDisk(20, 1));
  for (int i = 0; i < 60; ++i) {
    Request(store, Name(i), 0);
    for (int j = 0; j < 4; ++j) Request(store, Name(i), 1);
  }
  for (int i = 0; i < 2000 && store.stats().disk.entries < 60; ++i) absl::SleepFor(absl::Milliseconds(5));
  ASSERT_EQ(store.stats().disk.entries, 60u);
  ASSERT_GT(store.stats().cuts, 0u);
  for (int i = 0; i < 60; ++i) EXPECT_EQ(Request(store, Name(i), 0), 4) << i;
}

TEST_F(UtilityStoreOnDisk, WhatWasWrittenCutIsWrittenAgainWhenItIsMadeWhole) {
  {
    PrefixStore store(OnDisk(20, 1));
    Request(store, "abcd", 1);
    for (int i = 0; i < 2000 && store.stats().disk.entries < 1; ++i) absl::SleepFor(absl::Milliseconds(5));
    EXPECT_EQ(Request(store, "abcd", 0), 0);
  }
  PrefixStore store(OnDisk(20, 1));
  EXPECT_EQ(store.stats().disk.entries, 1u);
  EXPECT_EQ(Request(store, "abcd", 0), 4);
}

}  // namespace
}  // namespace aludel
