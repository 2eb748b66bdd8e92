// What a store tells of its chunks, against what is found there.

#include <filesystem>
#include <future>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/store/stored_prompts.h"
#include "tests/server/store/store_fixture.h"

namespace aludel {
namespace {

constexpr char kProducer[] = "model";

// Hears of a store.
class Heard : public StoreWatcher {
 public:
  void OnStored(const ChunkKey& key, uint32_t tokens, uint8_t planes) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(keys_.insert(key).second);
    prompts_.Add(ChunkEventKey(key, tokens, planes));
  }
  void OnRemoved(const ChunkKey& key, uint32_t tokens, uint8_t planes) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(keys_.erase(key), 1u);
    prompts_.Remove(ChunkEventKey(key, tokens, planes));
  }
  void OnCleared() override {
    absl::MutexLock lock(&mutex_);
    keys_.clear();
    prompts_ = StoredPrompts(kProducer);
  }
  int64_t Find(const std::string& text, const std::string& salt) const {
    absl::MutexLock lock(&mutex_);
    return prompts_.Find(FakeSpec(), salt, Letters(text));
  }
  size_t chunks() const {
    absl::MutexLock lock(&mutex_);
    return keys_.size();
  }

 private:
  mutable absl::Mutex mutex_;  // one of the store's threads writes
  std::set<ChunkKey> keys_ ABSL_GUARDED_BY(mutex_);
  StoredPrompts prompts_ ABSL_GUARDED_BY(mutex_){kProducer};
};

int64_t Stored(PrefixStore& store, const std::string& text, const std::string& salt) {
  StorePosition at = store.Begin(FakeSpec(), salt);
  store.Peek(Letters(text), &at);
  return at.tokens;
}

TEST(StoredPrompts, ACutChunkIsFoundForItsPlanesAndFewer) {
  CodecSpec spec = FakeSpec();
  spec.kind = FrameKind::kAludel;
  const std::vector<int32_t> prompt = Letters("abcd");
  const ChunkKey key = ChunkHasher().NameOf(RootKey(kProducer, spec, ""), prompt).key;
  StoredPrompts prompts(kProducer);
  prompts.Add(ChunkEventKey(key, 4, 2));
  EXPECT_EQ(prompts.Find(spec, "", prompt), 0);
  for (const auto& [cut, tokens] : {std::pair("fake@1", 4), {"fake@2", 4}, {"fake@3", 0}}) {
    spec.name = cut;
    EXPECT_EQ(prompts.Find(spec, "", prompt), tokens) << cut;
  }
  prompts.Add(ChunkEventKey(key, 4, 0));
  EXPECT_EQ(prompts.Find(spec, "", prompt), 4);
  prompts.Remove(ChunkEventKey(key, 4, 0));
  EXPECT_EQ(prompts.Find(spec, "", prompt), 0);
}

TEST(StoreEvents, AChunkIsToldOfOnceAndWhenItGoes) {
  Heard heard;
  PrefixStore store({.producer = kProducer, .memory_bytes = 1 << 20, .watcher = &heard});
  ASSERT_TRUE(PutLetters(store, "abcdefghij", "a"));
  ASSERT_TRUE(PutLetters(store, "abcdefghij", "a"));
  EXPECT_EQ(heard.chunks(), 3u);
  EXPECT_EQ(heard.Find("abcdefghijklm", "a"), 10);
  EXPECT_EQ(heard.Find("abcdefgx", "a"), 4);
  EXPECT_EQ(heard.Find("abcdefghij", "b"), 0);
  ASSERT_TRUE(ClearAndWait(store).ok());
  EXPECT_EQ(heard.chunks(), 0u);
  EXPECT_EQ(heard.Find("abcdefghij", "a"), 0);
}

TEST(StoreEvents, AStoreThatStartsTellsWhatItHasOnDisk) {
  const std::string path = std::string(::testing::TempDir()) + "/store_events";
  std::filesystem::remove_all(path);
  const auto options = [&path](Heard* heard) {
    return PrefixStore::Options{.producer = kProducer,
                                .memory_bytes = 1 << 20,
                                .disk = PrefixStore::Disk{.path = path, .bytes = 64 << 20},
                                .encoders = {EncoderTag(FakeSpec())},
                                .watcher = heard};
  };
  {
    Heard heard;
    PrefixStore store(options(&heard));
    ASSERT_TRUE(PutLetters(store, "abcdefghij", "a"));
  }
  Heard heard;
  PrefixStore store(options(&heard));
  EXPECT_EQ(heard.chunks(), 3u);
  EXPECT_EQ(heard.Find("abcdefghij", "a"), 10);
  EXPECT_EQ(heard.Find("abcdefghij", "b"), 0);
}

TEST(StoreEvents, ChunksOfTooManyTokensAreNotToldOf) {
  EXPECT_NE(ChunkEventKey({}, 65535, 0), 0u);
  EXPECT_EQ(ChunkEventKey({}, 65536, 0), 0u);
}

// Prompts of a tree that are stored, looked up, evicted, written and cleared over memory and disk that are too small.
TEST(StoreEvents, WhatIsHeardIsWhatIsFound) {
  const std::string path = std::string(::testing::TempDir()) + "/store_events_random";
  std::filesystem::remove_all(path);
  std::mt19937 random(1);
  int64_t found = 0;
  for (int start = 0; start < 4; ++start) {
    Heard heard;
    PrefixStore store({.producer = kProducer,
                       .memory_bytes = 6000,
                       .disk = PrefixStore::Disk{.path = path, .bytes = 2 << 20},
                       .quota = {.memory_bytes = 4000},
                       .encoders = {EncoderTag(FakeSpec())},
                       .watcher = &heard});
    const auto draw = [&random] {
      std::string text;
      for (size_t i = 4 + random() % 40; i > 0; --i)
        text.push_back(static_cast<char>('a' + random() % 8 / 7));
      return text;
    };
    for (int step = 0; step < 1500; ++step) {
      const std::string text = draw(), salt(1, static_cast<char>('a' + random() % 3));
      const uint32_t what = random() % 400;
      if (what == 0) {
        ASSERT_TRUE(ClearAndWait(store).ok());
      } else if (what == 1) {
        std::promise<absl::Status> cleared;
        store.ClearSome({.salt = SaltTag(salt)},
                        [&cleared](const absl::Status& status) { cleared.set_value(status); });
        ASSERT_TRUE(cleared.get_future().get().ok());
      } else {
        PutLetters(store, text, salt);
      }
      // The writer may work between two looks.
      const std::string asked = draw();
      int64_t stored = -1, told = -2;
      for (int look = 0; look < 10 && stored != told; ++look) {
        stored = Stored(store, asked, salt);
        told = heard.Find(asked, salt);
      }
      ASSERT_EQ(told, stored) << step;
      found += stored;
    }
  }
  EXPECT_GT(found, 1000);
}

}  // namespace
}  // namespace aludel
