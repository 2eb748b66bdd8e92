// What stores that share a remote find of each other's.

#include <future>
#include <memory>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/server/store/remote_fixture.h"

namespace aludel {
namespace {

TEST_F(RemoteStore, ASecondServerFindsWhatTheFirstStored) {
  const auto first = Open(redis_);
  Share(*first, "abcdefghijkl");
  const auto second = Open(redis_);
  EXPECT_EQ(InMemory(*second, "abcdefghijkl"), 0);
  EXPECT_EQ(FetchTokens(*second, "abcdefghijkl"), 12);
  EXPECT_EQ(InMemory(*second, "abcdefghijkl"), 12) << "from now on it is in memory";
  EXPECT_EQ(second->stats().remote.loads, 3u);
  // A prompt that begins alike, and one that does not.
  const auto third = Open(redis_);
  EXPECT_EQ(FetchTokens(*third, "abcdefgX"), 4);
  EXPECT_EQ(FetchTokens(*third, "Xbcdefgh"), 0);
  EXPECT_EQ(third->stats().remote.errors, 0u);
}

TEST_F(RemoteStore, ChunksOfAnyLengthAreFound) {
  const auto first = Open(redis_);
  ASSERT_TRUE(AwaitOpen(*first));
  std::string text;
  for (int i = 0; i < 300; ++i) text.push_back(static_cast<char>('a' + i * i % 26));
  const std::vector<int32_t> prompt = Letters(text);
  StorePosition at = first->Begin(FakeSpec(), "");
  for (const int64_t end : {100, 101, 165, 293, 300}) {
    ASSERT_TRUE(first->Put(prompt, end, LetterFrames(prompt, at.tokens, end), &at));
  }
  ASSERT_TRUE(AwaitWritten(*first));
  const auto second = Open(redis_);
  EXPECT_EQ(FetchTokens(*second, text), 300);
  EXPECT_EQ(second->stats().remote.loads, 5u);
}

TEST_F(RemoteStore, AWholeChunkTakesThePlaceOfACutOneInMemory) {
  CodecSpec format = FakeSpec();
  format.kind = FrameKind::kAludel;
  format.name = "code";
  CodecSpec cut = format;
  cut.name = "code@1";
  const std::vector<int32_t> prompt = Letters("abcd");
  const StoredFrame whole = {{0, 1, 0, 0, 4}, {1, 10, 1, 11}};
  const StoredFrame part = {{0, 1, 0, 0, 4}, {1, 10}};
  const auto first = Open(redis_);
  ASSERT_TRUE(AwaitOpen(*first));
  StorePosition at = first->Begin(format, "");
  ASSERT_TRUE(first->Put(prompt, 4, {whole}, &at));
  ASSERT_TRUE(AwaitWritten(*first));
  const auto second = Open(redis_);
  ASSERT_TRUE(AwaitOpen(*second));
  at = second->Begin(cut, "");
  ASSERT_TRUE(second->Put(prompt, 4, {part}, &at));
  const StorePosition begin = second->Begin(format, "");
  at = begin;
  EXPECT_TRUE(second->Find(prompt, absl::InfiniteDuration(), &at).empty());
  std::promise<std::vector<StoredChunk>> found;
  ASSERT_TRUE(
      second->FindRemote(prompt, absl::InfiniteDuration(), begin,
                         [&](std::vector<StoredChunk> chunks) { found.set_value(std::move(chunks)); }));
  const std::vector<StoredChunk> chunks = found.get_future().get();
  ASSERT_EQ(chunks.size(), 1u);
  const StoredFrames frames = Load(*second, chunks[0], "abcd");
  ASSERT_NE(frames, nullptr);
  EXPECT_EQ(frames->front().payload, whole.payload);
  at = begin;
  EXPECT_EQ(second->Find(prompt, absl::InfiniteDuration(), &at).size(), 1u) << "read once, not each time";
}

TEST_F(RemoteStore, ACutChunkDoesNotTakeThePlaceOfAWholeOneThere) {
  CodecSpec format = FakeSpec();
  format.kind = FrameKind::kAludel;
  format.name = "code";
  CodecSpec cut = format;
  cut.name = "code@1";
  const std::vector<int32_t> prompt = Letters("abcd");
  const StoredFrame whole = {{0, 1, 0, 0, 4}, {1, 10, 1, 11}};
  const auto find = [&](PrefixStore& store, const StorePosition& begin, absl::Duration max_age) {
    std::promise<std::vector<StoredChunk>> found;
    EXPECT_TRUE(store.FindRemote(prompt, max_age, begin, [&](std::vector<StoredChunk> chunks) {
      found.set_value(std::move(chunks));
    }));
    std::vector<StoredChunk> chunks = found.get_future().get();
    return chunks.empty() ? nullptr : Load(store, chunks[0], "abcd");
  };
  const auto first = Open(redis_);
  ASSERT_TRUE(AwaitOpen(*first));
  StorePosition at = first->Begin(format, "");
  ASSERT_TRUE(first->Put(prompt, 4, {whole}, &at));
  ASSERT_TRUE(AwaitWritten(*first));
  const auto second = Open(redis_);
  ASSERT_TRUE(AwaitOpen(*second));
  absl::SleepFor(absl::Milliseconds(5));
  at = second->Begin(cut, "");
  EXPECT_EQ(find(*second, at, absl::Milliseconds(1)), nullptr) << "too old";
  ASSERT_TRUE(second->Put(prompt, 4, {{{0, 1, 0, 0, 4}, {1, 10}}}, &at));
  ASSERT_TRUE(AwaitWritten(*second));
  const auto third = Open(redis_);
  ASSERT_TRUE(AwaitOpen(*third));
  const StoredFrames frames = find(*third, third->Begin(format, ""), absl::InfiniteDuration());
  ASSERT_NE(frames, nullptr);
  EXPECT_EQ(frames->front().payload, whole.payload);
}

TEST_F(RemoteStore, TwoTenantsShareNothing) {
  const auto first = Open(redis_);
  Share(*first, "abcdefgh", "alice");
  const auto second = Open(redis_);
  EXPECT_EQ(FetchTokens(*second, "abcdefgh", "bob"), 0);
  EXPECT_EQ(FetchTokens(*second, "abcdefgh"), 0);
  EXPECT_EQ(FetchTokens(*second, "abcdefgh", "alice"), 8);
}

TEST_F(RemoteStore, AnotherModelFindsNothing) {
  Share(*Open(redis_), "abcdefgh");
  EXPECT_EQ(FetchTokens(*Open(redis_, kPatience, "another"), "abcdefgh"), 0);
}

TEST_F(RemoteStore, WhatIsTooOldForARequestIsNotSent) {
  const auto first = Open(redis_);
  Share(*first, "abcd");
  absl::SleepFor(absl::Milliseconds(30));
  const auto second = Open(redis_);
  const auto chunks = FindChunks(*second, "abcd", "", absl::Milliseconds(20));
  ASSERT_EQ(chunks.size(), 1u);
  EXPECT_EQ(Load(*second, chunks[0], "abcd"), nullptr);
  EXPECT_FALSE(second->FindRemote(Letters("abcd"), absl::ZeroDuration(), second->Begin(FakeSpec(), ""),
                                  [](const std::vector<StoredChunk>&) { FAIL(); }));
  EXPECT_EQ(FetchTokens(*second, "abcd"), 4);
}

TEST_F(RemoteStore, WhatWasTooOldIsReplacedByWhatIsMadeInItsPlace) {
  Share(*Open(redis_), "abcd");
  const std::string name = Ask(redis_, {"KEYS", "*:chunk:*"}).list[0].text;
  const std::string old = Ask(redis_, {"GET", name}).text;
  absl::SleepFor(absl::Milliseconds(30));
  const auto second = Open(redis_);
  const auto chunks = FindChunks(*second, "abcd", "", absl::Milliseconds(20));
  ASSERT_EQ(chunks.size(), 1u);
  ASSERT_EQ(Load(*second, chunks[0], "abcd"), nullptr);
  Share(*second, "abcd");
  EXPECT_NE(Ask(redis_, {"GET", name}).text, old);
}

TEST_F(RemoteStore, ReadingHasAChunkLiveOn) {
  Share(*Open(redis_), "abcd");
  const RedisReply names = Ask(redis_, {"KEYS", "*:*:*:*"});
  ASSERT_EQ(names.list.size(), 3u);
  for (const RedisReply& name : names.list) Ask(redis_, {"EXPIRE", name.text, "100"});
  EXPECT_EQ(FetchTokens(*Open(redis_), "abcd"), 4);
  for (const RedisReply& name : names.list) {
    EXPECT_GT(Ask(redis_, {"TTL", name.text}).integer, 86000) << name.text;
  }
}

TEST_F(RemoteStore, ALookUpDoesNotWaitForReads) {
  Share(*Open(redis_), "abcd");
  const auto store = Open(redis_);
  const auto chunks = FindChunks(*store, "abcd");
  ASSERT_EQ(chunks.size(), 1u);
  std::promise<void> release;
  const auto released = release.get_future().share();
  constexpr int kReads = 16;
  std::vector<std::promise<void>> read(kReads);
  for (auto& one : read) {
    store->Load(
        chunks[0], Letters("abcd"), [&one](const StoredFrames&) { one.set_value(); },
        [released] {
          released.wait();
          return true;
        });
  }
  auto found = std::async(std::launch::async, [&] { return FindChunks(*store, "abcd").size(); });
  const bool in_time = found.wait_for(std::chrono::seconds(5)) == std::future_status::ready;
  release.set_value();
  EXPECT_TRUE(in_time);
  EXPECT_EQ(found.get(), 1u);
  for (auto& one : read) one.get_future().wait();
}

TEST_F(RemoteStore, AChunkThatWentSinceItWasFoundIsAMiss) {
  Share(*Open(redis_), "abcd");
  const auto store = Open(redis_);
  const auto chunks = FindChunks(*store, "abcd");
  ASSERT_EQ(chunks.size(), 1u);
  Ask(redis_, {"FLUSHALL"});
  EXPECT_EQ(Load(*store, chunks[0], "abcd"), nullptr);
  EXPECT_EQ(store->stats().remote.gone, 1u);
  EXPECT_TRUE(store->stats().remote.open);
}

TEST_F(RemoteStore, AfterARestartOfTheRemoteWhatIsUsedIsSharedAgain) {
  const auto first = Open(redis_);
  Share(*first, "abcdefgh");
  redis_.Kill();
  ASSERT_TRUE(PutLetters(*first, "ijkl"));  // which finds out
  ASSERT_TRUE(AwaitOpen(*first, false));
  ASSERT_TRUE(PutLetters(*first, "mnop")) << "no less is kept in memory";
  redis_.Start();
  ASSERT_TRUE(AwaitOpen(*first));
  const auto second = Open(redis_);
  EXPECT_EQ(FetchTokens(*second, "abcdefgh"), 0);
  Share(*first, "abcdefgh");  // found in memory
  EXPECT_EQ(FetchTokens(*second, "abcdefgh"), 8);
}

TEST_F(RemoteStore, WhatIsThereIsNotWrittenTwice) {
  const auto first = Open(redis_);
  Share(*first, "abcdefgh");
  const uint64_t written = first->stats().remote.written_bytes;
  EXPECT_GT(written, 0u);
  Share(*first, "abcdefgh");
  EXPECT_EQ(first->stats().remote.written_bytes, written);
  const auto second = Open(redis_);  // which computed it by itself
  Share(*second, "abcdefgh");
  EXPECT_EQ(second->stats().remote.written_bytes, 0u);
  const std::string name = Ask(redis_, {"KEYS", "*:chunk:*"}).list[0].text;
  Ask(redis_, {"EXPIRE", name, "100"});
  const auto third = Open(redis_);
  Share(*third, "abcdefgh");
  EXPECT_EQ(third->stats().remote.written_bytes, 0u);
  EXPECT_GT(Ask(redis_, {"TTL", name}).integer, 86000);
}

TEST_F(RemoteStore, AClearIsForAllServers) {
  const auto first = Open(redis_);
  const auto second = Open(redis_);
  Share(*first, "abcdefgh");
  ASSERT_EQ(FetchTokens(*second, "abcdefgh"), 8);
  ASSERT_TRUE(ClearAndWait(*first).ok());
  EXPECT_EQ(FetchTokens(*first, "abcdefgh"), 0);
  EXPECT_EQ(FetchTokens(*Open(redis_), "abcdefgh"), 0);
  Share(*first, "abcdefgh");
  EXPECT_EQ(FetchTokens(*Open(redis_), "abcdefgh"), 8);
}

TEST_F(RemoteStore, AClearOfOneTenantLeavesTheOthers) {
  const auto first = Open(redis_);
  Share(*first, "abcdefgh", "alice");
  Share(*first, "abcdefgh", "bob");
  // Another server clears, which has none of it.
  const auto second = Open(redis_);
  ASSERT_TRUE(AwaitOpen(*second));
  std::promise<absl::Status> cleared;
  second->ClearSome({.tenant = TenantOf(SaltTag("alice"))},
                    [&](const absl::Status& status) { cleared.set_value(status); });
  ASSERT_TRUE(cleared.get_future().get().ok());
  EXPECT_EQ(FetchTokens(*second, "abcdefgh", "alice"), 0);
  EXPECT_EQ(FetchTokens(*second, "abcdefgh", "bob"), 8);
}

TEST_F(RemoteStore, AClearOfAPromptForgetsWhatIsBehindItsEnd) {
  const auto first = Open(redis_);
  Share(*first, "abcdefghijkl");
  StorePosition at = first->Begin(FakeSpec(), "");
  const auto chunks = first->Peek(Letters("abcdefgh"), &at);
  std::promise<absl::Status> cleared;
  first->ClearSome({.from = at.key}, [&](const absl::Status& status) { cleared.set_value(status); });
  ASSERT_TRUE(cleared.get_future().get().ok());
  EXPECT_EQ(FetchTokens(*Open(redis_), "abcdefghijkl"), 4);
}

}  // namespace
}  // namespace aludel
