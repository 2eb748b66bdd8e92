// An operator's commands, and hints of workflows, where what they are about is at the remote.

#include <future>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/server/store/store_fixture.h"
#include "tests/testing/redis_process.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

class RemoteControl : public ::testing::Test {
 protected:
  std::unique_ptr<PrefixStore> Open(size_t memory_bytes = 1 << 20) const {
    auto store = std::make_unique<PrefixStore>(PrefixStore::Options{
        .producer = "base",
        .memory_bytes = memory_bytes,
        .remote = PrefixStore::Remote{.address = redis_.address(), .max_wait = absl::Seconds(10)},
        .pinned_bytes = 1 << 20,
        .eviction = PrefixStore::Eviction::kLru});
    EXPECT_TRUE(Await([&] { return store->stats().remote.open; }));
    return store;
  }
  template <typename Condition>
  static bool Await(const Condition& condition) {
    for (int i = 0; i < 4000 && !condition(); ++i) absl::SleepFor(absl::Milliseconds(5));
    return condition();
  }
  static void Share(PrefixStore& store, const std::string& text, const std::string& salt = "") {
    ASSERT_TRUE(PutLetters(store, text, salt));
    ASSERT_TRUE(Await([&] { return store.stats().remote.queued_bytes == 0; }));
  }
  struct Tokens {
    int64_t memory = 0;
    int64_t remote = 0;
  };
  static Tokens LookUp(PrefixStore& store, const std::string& text, const std::string& salt = "") {
    std::promise<Tokens> found;
    const auto count = [&](const std::vector<StoredChunk>& chunks) {
      Tokens tokens;
      for (const StoredChunk& chunk : chunks) {
        (chunk.remote ? tokens.remote : tokens.memory) += chunk.end.tokens - chunk.token_begin;
      }
      found.set_value(tokens);
    };
    store.PeekEverywhere(Letters(text), store.Begin(FakeSpec(), salt), count);
    return found.get_future().get();
  }
  RedisReply Ask(const RedisCommand& command) const {
    const RedisConnection::Limits limits = {absl::Seconds(10), MonotonicNow() + absl::Seconds(10)};
    const auto connection = RedisConnection::Open(ResolveAddress(redis_.address())->front(), "", "", limits);
    return (*connection)->Call(command, limits).value();
  }

  const RedisProcess redis_;
};

TEST_F(RemoteControl, WhatIsAtTheRemoteIsLookedUpPrefetchedAndListed) {
  Share(*Open(), "abcdefghijkl");
  const auto store = Open();
  Share(*store, "abcd");
  EXPECT_EQ(LookUp(*store, "abcdefghijkl").memory, 4);
  EXPECT_EQ(LookUp(*store, "abcdefghijkl").remote, 8);
  EXPECT_EQ(LookUp(*store, "abcdefghijkl", "alice").remote, 0);
  EXPECT_EQ(Prefetch(*store, "abcdefghijkl", "alice"), 0);
  EXPECT_EQ(Prefetch(*store, "abcdefghijkl"), 8);
  ASSERT_TRUE(Await([&] { return LookUp(*store, "abcdefghijkl").memory == 12; }));
  EXPECT_EQ(Prefetch(*store, "abcdefghijkl"), 0);
  const auto listed = store->List({}, 100);
  ASSERT_EQ(listed.size(), 3u);
  for (const StoredChunkReport& chunk : listed) EXPECT_TRUE(chunk.remote);
  Ask({"FLUSHALL"});
  EXPECT_EQ(LookUp(*Open(), "abcdefghijkl").remote, 0);
}

TEST_F(RemoteControl, APinRenewsTheTimeToLiveAtTheRemote) {
  const auto store = Open();
  Share(*store, "abcdefgh");
  const RedisReply names = Ask({"KEYS", "*:chunk:*"});
  ASSERT_EQ(names.list.size(), 2u);
  for (const RedisReply& name : names.list) Ask({"EXPIRE", name.text, "100"});
  EXPECT_EQ(store->Pin(Letters("abcdefgh"), store->Begin(FakeSpec(), ""), absl::Seconds(10)).value(), 8);
  for (const RedisReply& name : names.list) {
    EXPECT_TRUE(Await([&] { return Ask({"TTL", name.text}).integer > 86000; })) << name.text;
  }
  // What is at the remote alone is not pinned.
  const auto other = Open();
  EXPECT_EQ(other->Pin(Letters("abcdefgh"), other->Begin(FakeSpec(), ""), absl::Seconds(10)).value(), 0);
}

TEST_F(RemoteControl, APromptThatOnlyTheRemoteKnowsCanBeCleared) {
  Share(*Open(), "abcdefghijkl");
  const auto store = Open();
  std::promise<StorePosition> last;
  const auto keep_last = [&](const std::vector<StoredChunk>& chunks) { last.set_value(chunks.back().end); };
  store->PeekEverywhere(Letters("abcdefgh"), store->Begin(FakeSpec(), ""), keep_last);
  const StorePosition end = last.get_future().get();
  std::promise<absl::Status> cleared;
  store->ClearSome({.salt = end.salt, .encoder = end.encoder, .from = end.key},
                   [&](const absl::Status& status) { cleared.set_value(status); });
  EXPECT_TRUE(cleared.get_future().get().ok());
  EXPECT_EQ(LookUp(*Open(), "abcdefghijkl").remote, 4) << "it, and what is behind it";
}

TEST_F(RemoteControl, AnAgentsPromptComesFromTheRemoteBeforeItsTurn) {
  constexpr size_t kChunks = 8;
  const size_t chunk_bytes = StoredWeight(4, LetterFrames(Letters("abcd"), 0, 4));
  const auto store = Open(kChunks * chunk_bytes);
  Share(*store, "abcdefgh");
  StorePosition at = store->Begin(FakeSpec(), "");
  store->Find(Letters("abcdefgh"), absl::InfiniteDuration(), &at);
  store->Remember({"flow", "writer", {}}, at);
  for (size_t i = 0; i < kChunks; ++i) Share(*store, absl::StrCat(1000 + i));
  ASSERT_EQ(LookUp(*store, "abcdefgh").memory, 0);
  ASSERT_EQ(LookUp(*store, "abcdefgh").remote, 8);
  store->Expect({"flow", "planner", {"critic", "writer"}}, SaltTag("alice"));
  store->Expect({"flow", "planner", {"a", "b", "writer"}}, SaltTag(""));
  EXPECT_EQ(LookUp(*store, "abcdefgh").memory, 0);
  store->Expect({"flow", "planner", {"critic", "writer"}}, SaltTag(""));
  EXPECT_TRUE(Await([&] { return store->stats().expected.loaded == 2; }));
  EXPECT_EQ(LookUp(*store, "abcdefgh").memory, 8);
  EXPECT_LE(store->stats().memory.bytes, kChunks * chunk_bytes);
}

}  // namespace
}  // namespace aludel
