// A remote behind a proxy that passes bytes on one by one, and one that answers what no Redis does.

#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/server/store/store_fixture.h"
#include "tests/testing/redis_process.h"
#include "tests/testing/slow_proxy.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

class SlowRemote : public ::testing::Test {
 protected:
  static std::unique_ptr<PrefixStore> Open(const std::string& address, absl::Duration max_wait) {
    auto store = std::make_unique<PrefixStore>(
        PrefixStore::Options{.producer = "base",
                             .memory_bytes = 64 << 20,
                             .remote = PrefixStore::Remote{.address = address, .max_wait = max_wait}});
    EXPECT_TRUE(Await([&] { return store->stats().remote.open; }));
    return store;
  }
  template <typename Condition>
  static bool Await(const Condition& condition) {
    for (int i = 0; i < 4000 && !condition(); ++i) absl::SleepFor(absl::Milliseconds(5));
    return condition();
  }
  static std::vector<StoredChunk> Find(PrefixStore& store, const std::string& text) {
    std::promise<std::vector<StoredChunk>> found;
    const auto on_found = [&](std::vector<StoredChunk> chunks) { found.set_value(std::move(chunks)); };
    if (!store.FindRemote(Letters(text), absl::InfiniteDuration(), store.Begin(FakeSpec(), ""), on_found)) {
      return {};
    }
    return found.get_future().get();
  }
  static StoredFrames Load(PrefixStore& store, const StoredChunk& chunk, const std::string& text) {
    std::promise<StoredFrames> loaded;
    store.Load(chunk, Letters(text), [&](StoredFrames frames) { loaded.set_value(std::move(frames)); });
    return loaded.get_future().get();
  }

  RedisProcess redis_;
  SlowProxy proxy_{redis_.port()};
};

// Each byte comes before a silence would be noticed.
TEST_F(SlowRemote, OneThatDripsIsNotWaitedForMuchLongerThanOneThatIsSilent) {
  constexpr absl::Duration kMaxWait = absl::Milliseconds(400);
  {
    const auto first = Open(redis_.address(), absl::Seconds(10));
    ASSERT_TRUE(PutLetters(*first, "abcd"));
    ASSERT_TRUE(Await([&] { return first->stats().remote.queued_bytes == 0; }));
  }
  const auto store = Open(proxy_.address(), kMaxWait);
  const auto chunks = Find(*store, "abcd");
  ASSERT_EQ(chunks.size(), 1u);
  proxy_.Drip(kMaxWait / 8);
  absl::Time begun = MonotonicNow();
  EXPECT_EQ(Load(*store, chunks[0], "abcd"), nullptr);
  EXPECT_LT(MonotonicNow() - begun, 2 * kMaxWait);
  EXPECT_EQ(store->stats().remote.late, 1u);
  begun = MonotonicNow();
  EXPECT_TRUE(Find(*store, "abcd").empty());
  EXPECT_LT(MonotonicNow() - begun, 2 * kMaxWait);
  EXPECT_EQ(store->stats().remote.errors, 0u);
  EXPECT_TRUE(store->stats().remote.open) << "it answers";
  proxy_.Drip(absl::ZeroDuration());
  EXPECT_NE(Load(*store, chunks[0], "abcd"), nullptr);
}

// A chunk of some megabytes takes longer than a silence, and is no drip.
TEST_F(SlowRemote, OneThatTakesItsTimeForALargeChunkIsWaitedFor) {
  const std::vector<int32_t> prompt = Letters("abcd");
  const std::vector<uint8_t> payload(16 << 20, 7);
  const auto first = Open(proxy_.address(), absl::Seconds(10));
  StorePosition at = first->Begin(FakeSpec(), "");
  ASSERT_TRUE(first->Put(prompt, 4, {{{0, 1, 0, 0, 4}, payload}, {{1, 1, 0, 0, 4}, payload}}, &at));
  ASSERT_TRUE(Await([&] { return first->stats().remote.queued_bytes == 0; }));
  const auto store = Open(proxy_.address(), absl::Seconds(10));
  const auto chunks = Find(*store, "abcd");
  ASSERT_EQ(chunks.size(), 1u);
  const StoredFrames frames = Load(*store, chunks[0], "abcd");
  ASSERT_NE(frames, nullptr);
  EXPECT_EQ(frames->back().payload, payload);
}

TEST_F(SlowRemote, WhatWaitsToBeWrittenIsDroppedAtTheEnd) {
  auto store = Open(proxy_.address(), absl::Seconds(10));
  proxy_.Drip(absl::Milliseconds(300));
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(PutLetters(*store, absl::StrCat(1000 + i)));
  ASSERT_GT(store->stats().remote.queued_bytes, 0u);
  const absl::Time begun = MonotonicNow();
  store = nullptr;
  EXPECT_LT(MonotonicNow() - begun, absl::Seconds(5));
}

TEST_F(SlowRemote, RepliesAreReadAsTheyAreMeant) {
  const RedisConnection::Limits limits = {absl::Seconds(10), MonotonicNow() + absl::Seconds(10)};
  const auto connection =
      RedisConnection::Open(ResolveAddress(redis_.address())->front(), "", "", limits).value();
  const RedisReply reply =
      connection
          ->Call({"EVAL", "return {1, 'a', false, {2, {'b'}}, {}, redis.error_reply('no')}", "0"}, limits)
          .value();
  ASSERT_EQ(reply.kind, RedisReply::Kind::kList);
  ASSERT_EQ(reply.list.size(), 6u);
  EXPECT_EQ(reply.list[0].integer, 1);
  EXPECT_EQ(reply.list[1].text, "a");
  EXPECT_EQ(reply.list[2].kind, RedisReply::Kind::kNull);
  EXPECT_EQ(reply.list[3].list[1].list[0].text, "b");
  EXPECT_EQ(reply.list[4].kind, RedisReply::Kind::kList);
  EXPECT_TRUE(reply.list[4].list.empty());
  EXPECT_EQ(reply.list[5].kind, RedisReply::Kind::kError);
  // As many elements as there may be, again and again.
  for (int i = 0; i < 3; ++i) {
    const RedisReply large =
        connection->Call({"EVAL", "local t = {} for i = 1, 60000 do t[i] = i end return t", "0"}, limits)
            .value();
    ASSERT_EQ(large.list.size(), 60000u);
    EXPECT_EQ(large.list.back().integer, 60000);
  }
}

TEST(FalseRemote, AReplyOfTooManyElementsIsAnError) {
  for (const std::string& answer :
       {std::string("*65537\r\n"), std::string("*2147483647\r\n"), std::string("*4294967295\r\n"),
        std::string("*-7\r\n"), std::string("*2\r\n*40000\r\n"), std::string("nonsense\r\n")}) {
    const LoopbackListener listener;
    std::thread server([&] {
      int client = -1;
      while (client < 0) client = listener.Accept();
      std::string text = answer;
      if (answer == "*2\r\n*40000\r\n") {
        for (int i = 0; i < 40000; ++i) text += ":1\r\n";
        text += "*40000\r\n";
      }
      char command[64];
      EXPECT_GT(recv(client, command, sizeof(command), 0), 0);
      EXPECT_EQ(send(client, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
      while (recv(client, command, sizeof(command), 0) > 0) continue;
      close(client);
    });
    {
      const RedisConnection::Limits limits = {absl::Seconds(20), MonotonicNow() + absl::Seconds(20)};
      const auto connection =
          RedisConnection::Open(ResolveAddress(listener.address())->front(), "", "", limits).value();
      const absl::Time begun = MonotonicNow();
      EXPECT_TRUE(absl::IsUnavailable(connection->Call({"SMEMBERS", "a"}, limits).status())) << answer;
      EXPECT_LT(MonotonicNow() - begun, absl::Seconds(15)) << answer;
    }
    server.join();
  }
}

}  // namespace
}  // namespace aludel
