#pragma once

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/server/store/store_fixture.h"
#include "tests/testing/redis_process.h"
#include "transport/monotonic_clock.h"

namespace aludel {

// Long enough for a busy machine; what a hang costs has a test of its own.
inline constexpr absl::Duration kPatience = absl::Seconds(10);

// Stores that share a remote: a real redis-server.
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

}  // namespace aludel
