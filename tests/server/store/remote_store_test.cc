// Stores that share a remote: a real redis-server, which hangs, dies, is full and lies.

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "runtime/codec/store/segment_scan.h"
#include "tests/server/store/store_fixture.h"
#include "tests/testing/redis_process.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// Long enough for a busy machine; what a hang costs has a test of its own.
constexpr absl::Duration kPatience = absl::Seconds(10);

class RemoteStore : public ::testing::Test {
 protected:
  std::unique_ptr<PrefixStore> Open(const RedisProcess& redis, absl::Duration max_wait = kPatience,
                                    const std::string& producer = "base", const std::string& password = "") {
    auto store = std::make_unique<PrefixStore>(PrefixStore::Options{
        .producer = producer,
        .memory_bytes = 1 << 20,
        .remote =
            PrefixStore::Remote{.address = redis.address(), .password = password, .max_wait = max_wait}});
    return store;
  }
  template <typename Condition>
  static bool Await(const Condition& condition) {
    for (int i = 0; i < 4000 && !condition(); ++i) absl::SleepFor(absl::Milliseconds(5));
    return condition();
  }
  static bool AwaitOpen(const PrefixStore& store, bool open = true) {
    return Await([&] { return store.stats().remote.open == open; });
  }
  static bool AwaitWritten(const PrefixStore& store) {
    return Await([&] { return store.stats().remote.queued_bytes == 0; });
  }
  // Stores the prompt and waits until the remote has it.
  static void Share(PrefixStore& store, const std::string& text, const std::string& salt = "") {
    ASSERT_TRUE(AwaitOpen(store));
    ASSERT_TRUE(PutLetters(store, text, salt));
    ASSERT_TRUE(AwaitWritten(store));
  }
  // What the remote has of the prompt, each chunk read.
  static std::vector<StoredChunk> FindChunks(PrefixStore& store, const std::string& text,
                                             const std::string& salt = "",
                                             absl::Duration max_age = absl::InfiniteDuration()) {
    EXPECT_TRUE(AwaitOpen(store));
    std::promise<std::vector<StoredChunk>> found;
    const auto on_found = [&](std::vector<StoredChunk> chunks) { found.set_value(std::move(chunks)); };
    const StorePosition at = store.Begin(FakeSpec(), salt);
    if (!store.FindRemote(Letters(text), max_age, at, on_found)) return {};
    return found.get_future().get();
  }
  static StoredFrames Load(PrefixStore& store, const StoredChunk& chunk, const std::string& text) {
    std::promise<StoredFrames> loaded;
    store.Load(chunk, Letters(text), [&](StoredFrames frames) { loaded.set_value(std::move(frames)); });
    return loaded.get_future().get();
  }
  static int64_t FetchTokens(PrefixStore& store, const std::string& text, const std::string& salt = "") {
    int64_t tokens = 0;
    for (const StoredChunk& chunk : FindChunks(store, text, salt)) {
      const StoredFrames frames = Load(store, chunk, text);
      if (frames == nullptr) break;
      const auto want = LetterFrames(Letters(text), chunk.token_begin, chunk.end.tokens);
      EXPECT_EQ(frames->size(), want.size());
      EXPECT_EQ(frames->back().payload, want.back().payload);
      EXPECT_EQ(chunk.token_begin, tokens);
      tokens = chunk.end.tokens;
    }
    return tokens;
  }
  static int64_t InMemory(PrefixStore& store, const std::string& text) {
    StorePosition at = store.Begin(FakeSpec(), "");
    store.Find(Letters(text), absl::InfiniteDuration(), &at);
    return at.tokens;
  }
  static RedisReply Ask(const RedisProcess& redis, const RedisCommand& command) {
    const RedisConnection::Limits limits = {absl::Seconds(10), MonotonicNow() + absl::Seconds(10)};
    const auto address = ResolveAddress(redis.address());
    const auto connection = RedisConnection::Open(address->front(), "", "", limits);
    EXPECT_TRUE(connection.ok()) << connection.status();
    const auto reply = (*connection)->Call(command, limits);
    EXPECT_TRUE(reply.ok()) << reply.status();
    return *reply;
  }

  RedisProcess redis_;
};

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

TEST_F(RemoteStore, DamagedAndForeignValuesAreMisses) {
  const auto first = Open(redis_);
  Share(*first, "abcd");
  Share(*first, "efgh");
  const RedisReply names = Ask(redis_, {"KEYS", "*:chunk:*"});
  ASSERT_EQ(names.list.size(), 2u);
  const std::string& name = names.list[0].text;
  const std::string good = Ask(redis_, {"GET", name}).text;
  const std::string other = Ask(redis_, {"GET", names.list[1].text}).text;
  // Which of the two prompts it is.
  const std::string text = good.find(std::string("a\0\0\0b", 5)) != std::string::npos ? "abcd" : "efgh";
  uint64_t damaged = 0;
  const auto second = Open(redis_);
  const auto is_miss = [&](const std::string& value) {
    Ask(redis_, {"SET", name, value});
    const auto chunks = FindChunks(*second, text);
    ASSERT_EQ(chunks.size(), 1u);
    EXPECT_EQ(Load(*second, chunks[0], text), nullptr);
    EXPECT_EQ(second->stats().remote.damaged, ++damaged);
  };
  for (const size_t byte : {size_t{0}, size_t{4}, good.size() / 2, good.size() - 1}) {
    std::string flipped = good;
    flipped[byte] ^= 0x10;
    is_miss(flipped);
  }
  is_miss("");
  is_miss(good.substr(0, good.size() - 1));
  is_miss(good + "x");
  is_miss(other);
  EXPECT_EQ(InMemory(*second, text), 0);
  EXPECT_TRUE(second->stats().remote.open) << "one bad value says nothing of the others";
  Ask(redis_, {"SET", name, good});
  EXPECT_EQ(FetchTokens(*second, text), 4);
}

TEST_F(RemoteStore, ADamagedValueIsReplaced) {
  const auto first = Open(redis_);
  Share(*first, "abcd");
  const std::string name = Ask(redis_, {"KEYS", "*:chunk:*"}).list[0].text;
  Ask(redis_, {"SET", name, "nonsense"});
  const auto second = Open(redis_);
  EXPECT_EQ(FetchTokens(*second, "abcd"), 0);
  EXPECT_EQ(Ask(redis_, {"EXISTS", name}).integer, 0) << "others need not read it";
  Share(*second, "abcd");
  EXPECT_EQ(FetchTokens(*Open(redis_), "abcd"), 4);
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

TEST_F(RemoteStore, ARemoteThatHangsIsLeftOutUntilItAnswers) {
  Share(*Open(redis_), "abcd");
  const auto store = Open(redis_, absl::Milliseconds(40));
  ASSERT_TRUE(AwaitOpen(*store));
  ASSERT_EQ(FindChunks(*store, "abcd").size(), 1u);
  redis_.Freeze();
  EXPECT_TRUE(FindChunks(*store, "abcd").empty());
  EXPECT_FALSE(store->stats().remote.open);
  EXPECT_EQ(store->stats().remote.errors, 1u);
  const StorePosition at = store->Begin(FakeSpec(), "");
  EXPECT_FALSE(store->FindRemote(Letters("abcd"), absl::InfiniteDuration(), at,
                                 [](const std::vector<StoredChunk>&) { FAIL() << "it was asked"; }));
  redis_.Thaw();
  ASSERT_TRUE(AwaitOpen(*store));
}

TEST_F(RemoteStore, AReadOfOneThatFallsSilentEnds) {
  Share(*Open(redis_), "abcd");
  const auto store = Open(redis_, absl::Milliseconds(40));
  const auto chunks = FindChunks(*store, "abcd");
  ASSERT_EQ(chunks.size(), 1u);
  redis_.Freeze();
  const absl::Time begun = MonotonicNow();
  EXPECT_EQ(Load(*store, chunks[0], "abcd"), nullptr);
  EXPECT_LT(MonotonicNow() - begun, absl::Seconds(1));
  EXPECT_FALSE(store->stats().remote.open);
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

TEST_F(RemoteStore, AClearThatTheRemoteDoesNotHearIsAnErrorAndMadeUpFor) {
  const auto first = Open(redis_);
  Share(*first, "abcd");
  redis_.Freeze();
  EXPECT_FALSE(ClearAndWait(*first).ok());
  redis_.Thaw();
  ASSERT_TRUE(AwaitOpen(*first));
  EXPECT_EQ(FetchTokens(*first, "abcd"), 0);
  EXPECT_EQ(FetchTokens(*Open(redis_), "abcd"), 0);
}

TEST_F(RemoteStore, AClearOfAPromptThatTheRemoteDoesNotHearIsMadeUpFor) {
  const auto first = Open(redis_);
  Share(*first, "abcdefgh");
  StorePosition at = first->Begin(FakeSpec(), "");
  first->Peek(Letters("abcd"), &at);
  redis_.Freeze();
  std::promise<absl::Status> cleared;
  first->ClearSome({.from = at.key}, [&](const absl::Status& status) { cleared.set_value(status); });
  EXPECT_FALSE(first->stats().remote.open) << "what is to be cleared could still be read";
  EXPECT_FALSE(cleared.get_future().get().ok());
  redis_.Thaw();
  ASSERT_TRUE(AwaitOpen(*first));
  EXPECT_EQ(FetchTokens(*first, "abcdefgh"), 0);
  EXPECT_EQ(FetchTokens(*Open(redis_), "abcdefgh"), 0);
}

// A look-up whose time was spent in a queue says nothing of the remote.
TEST_F(RemoteStore, ALookUpWithoutTimeLeavesTheRemoteInUse) {
  RemoteTier tier({.address = redis_.address(), .silence = kPatience});
  ASSERT_TRUE(Await([&] { return tier.usable(); }));
  const std::vector<int32_t> prompt = Letters("abcd");
  for (const absl::Duration left : {absl::Microseconds(50), absl::ZeroDuration(), -absl::Seconds(1)}) {
    const auto run = tier.Find({}, {}, {}, prompt, MonotonicNow() + left);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_TRUE(run->chunks.empty());
    EXPECT_TRUE(tier.usable());
  }
  EXPECT_TRUE(tier.Find({}, {}, {}, prompt, MonotonicNow() - absl::Seconds(1))->in_part);
}

// What listens there closes each connection.
TEST_F(RemoteStore, ARemoteThatIsGoneIsTriedLessAndLessOften) {
  RemoteTier tier({.address = redis_.address(), .silence = absl::Seconds(1), .steady = absl::ZeroDuration()});
  ASSERT_TRUE(Await([&] { return tier.usable(); }));
  redis_.Kill();
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  const int one = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(redis_.port()))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener, 64), 0);
  EXPECT_FALSE(tier.Flush().ok() && tier.Drop(0, {}).ok());  // which finds out
  int tries = 0;
  for (const absl::Time end = MonotonicNow() + absl::Seconds(2); MonotonicNow() < end;) {
    if (const int accepted = accept(listener, nullptr, nullptr); accepted >= 0) {
      ++tries;
      close(accepted);
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  close(listener);
  EXPECT_GE(tries, 2);
  EXPECT_LE(tries, 6) << "after 0.1, 0.3, 0.7 and 1.5 s";
}

TEST_F(RemoteStore, EachAddressOfANameIsTried) {
  const RemoteTier tier({.address = absl::StrCat("localhost:", redis_.port()), .silence = kPatience});
  EXPECT_TRUE(Await([&] { return tier.usable(); }));
}

TEST(RemoteStoreLimits, ARemoteThatIsFullIsCleared) {
  const RedisProcess redis({"--maxmemory", "3mb", "--maxmemory-policy", "noeviction"});
  PrefixStore store({.producer = "base",
                     .memory_bytes = 64 << 20,
                     .remote = PrefixStore::Remote{.address = redis.address(), .max_wait = kPatience}});
  for (int i = 0; i < 4000 && !store.stats().remote.open; ++i) absl::SleepFor(absl::Milliseconds(5));
  for (int i = 0; i < 64 && store.stats().remote.refused == 0; ++i) {
    const std::vector<int32_t> prompt = {i, i, i, i};
    std::vector<StoredFrame> large = LetterFrames(prompt, 0, 4);
    large[0].payload.resize(256 << 10);
    StorePosition at = store.Begin(FakeSpec(), "");
    ASSERT_TRUE(store.Put(prompt, 4, std::move(large), &at));
    for (int j = 0; j < 4000 && store.stats().remote.queued_bytes > 0; ++j)
      absl::SleepFor(absl::Milliseconds(1));
  }
  ASSERT_GT(store.stats().remote.refused, 0u);
  const absl::Status cleared = ClearAndWait(store);
  EXPECT_TRUE(cleared.ok()) << cleared;
  EXPECT_TRUE(store.stats().remote.open);
}

TEST(RemoteStoreLimits, ARemoteThatIsFullRefusesAndIsStillRead) {
  const RedisProcess redis({"--maxmemory", "3mb", "--maxmemory-policy", "noeviction"});
  PrefixStore store({.producer = "base",
                     .memory_bytes = 64 << 20,
                     .remote = PrefixStore::Remote{.address = redis.address(), .max_wait = kPatience}});
  for (int i = 0; i < 4000 && !store.stats().remote.open; ++i) absl::SleepFor(absl::Milliseconds(5));
  const std::vector<int32_t> prompt = Letters("abcdefgh");
  StorePosition at = store.Begin(FakeSpec(), "");
  ASSERT_TRUE(store.Put(prompt, 4, LetterFrames(prompt, 0, 4), &at));
  std::vector<StoredFrame> large = LetterFrames(prompt, 4, 8);
  large[0].payload.resize(8 << 20);
  StorePosition behind = at;
  ASSERT_TRUE(store.Put(prompt, 8, std::move(large), &behind));
  // Redis looks at its limit before a command: the next one is refused.
  for (int i = 0; i < 4000 && store.stats().remote.queued_bytes > 0; ++i)
    absl::SleepFor(absl::Milliseconds(5));
  PutLetters(store, "ijklmnop");
  for (int i = 0; i < 4000 && store.stats().remote.refused == 0; ++i) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_GT(store.stats().remote.refused, 0u);
  EXPECT_TRUE(store.stats().remote.open);
}

TEST(RemoteStoreLimits, APasswordIsAskedFor) {
  const RedisProcess redis({"--requirepass", "secret"});
  const auto open = [&](const std::string& password) {
    return std::make_unique<PrefixStore>(PrefixStore::Options{
        .producer = "base",
        .memory_bytes = 1 << 20,
        .remote =
            PrefixStore::Remote{.address = redis.address(), .password = password, .max_wait = kPatience}});
  };
  const auto wrong = open("guess");
  const auto none = open("");
  const auto right = open("secret");
  for (int i = 0; i < 4000 && !right->stats().remote.open; ++i) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_TRUE(right->stats().remote.open);
  EXPECT_FALSE(wrong->stats().remote.open);
  EXPECT_FALSE(none->stats().remote.open);
  EXPECT_TRUE(PutLetters(*wrong, "abcd")) << "a store without a remote is one";
}

}  // namespace
}  // namespace aludel
