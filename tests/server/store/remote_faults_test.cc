// A remote that hangs, dies, is full and lies.

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/store/remote/remote_tier.h"
#include "tests/server/store/remote_fixture.h"

namespace aludel {
namespace {

class RemoteFaults : public RemoteStore {};

TEST_F(RemoteFaults, DamagedAndForeignValuesAreMisses) {
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

// It answers once the tier is gone: one that waited for it would wait for good.
TEST(RemoteTierTest, ItsEndDoesNotWaitForAResolver) {
  struct Resolver {
    absl::Notification asked, answers, answered;
  };
  const auto resolver = std::make_shared<Resolver>();
  {
    RemoteTier tier({.address = "remote:6379", .resolve = [resolver](const std::string& host_port) {
                       EXPECT_EQ(host_port, "remote:6379");
                       resolver->asked.Notify();
                       resolver->answers.WaitForNotification();
                       resolver->answered.Notify();
                       return absl::StatusOr<std::vector<RedisAddress>>(absl::UnavailableError("too late"));
                     }});
    resolver->asked.WaitForNotification();
    EXPECT_FALSE(tier.usable());
  }
  resolver->answers.Notify();
  resolver->answered.WaitForNotification();
}

TEST_F(RemoteFaults, ADamagedValueIsReplaced) {
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

TEST_F(RemoteFaults, ARemoteThatHangsIsLeftOutUntilItAnswers) {
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

TEST_F(RemoteFaults, AReadOfOneThatFallsSilentEnds) {
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

TEST_F(RemoteFaults, AClearThatTheRemoteDoesNotHearIsAnErrorAndMadeUpFor) {
  const auto first = Open(redis_);
  Share(*first, "abcd");
  redis_.Freeze();
  EXPECT_FALSE(ClearAndWait(*first).ok());
  redis_.Thaw();
  ASSERT_TRUE(AwaitOpen(*first));
  EXPECT_EQ(FetchTokens(*first, "abcd"), 0);
  EXPECT_EQ(FetchTokens(*Open(redis_), "abcd"), 0);
}

TEST_F(RemoteFaults, AClearOfAPromptThatTheRemoteDoesNotHearIsMadeUpFor) {
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
TEST_F(RemoteFaults, ALookUpWithoutTimeLeavesTheRemoteInUse) {
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
TEST_F(RemoteFaults, ARemoteThatIsGoneIsTriedLessAndLessOften) {
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

TEST_F(RemoteFaults, EachAddressOfANameIsTried) {
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
