// Feeds of a store that has a remote: what others stored is sent, and a remote that hangs costs a request 10 ms.

#include <algorithm>
#include <future>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/store/feed/prefix_feed.h"
#include "tests/server/store/feed/memory_sink.h"
#include "tests/server/store/store_fixture.h"
#include "tests/testing/redis_process.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;

// One prompt on its way through a feed.
struct Fed {
  explicit Fed(const std::string& text) : prompt(Letters(text)) {}

  void Start(const PrefixFeed::Context& context, const CodecSpec& codec, bool stores = true,
             double tokens_per_second = 0) {
    const PrefixFeed::Prompt what{.codec = &codec,
                                  .tokens = prompt,
                                  .patience = absl::Seconds(20),
                                  .tokens_per_second = tokens_per_second,
                                  .stores = stores};
    feed = std::make_shared<PrefixFeed>(context, what);
    feed->Start(
        sink, [](size_t) { return true; },
        [this](absl::StatusOr<PrefixFeed::Sent> sent) { done.set_value(std::move(sent)); });
  }
  absl::StatusOr<PrefixFeed::Sent> Result() { return done.get_future().get(); }
  std::vector<uint32_t> SentTokens() const {
    std::vector<uint32_t> tokens;
    for (const FrameCoverage& coverage : sink->coverages) tokens.push_back(coverage.token_begin);
    return tokens;
  }

  const std::vector<int32_t> prompt;
  const std::shared_ptr<MemorySink> sink = std::make_shared<MemorySink>();
  std::promise<absl::StatusOr<PrefixFeed::Sent>> done;
  std::shared_ptr<PrefixFeed> feed;
};

class RemoteFeed : public ::testing::Test {
 protected:
  std::unique_ptr<PrefixStore> Open(absl::Duration max_wait = absl::Seconds(10)) const {
    auto store = std::make_unique<PrefixStore>(PrefixStore::Options{
        .producer = "base",
        .memory_bytes = 1 << 20,
        .remote = PrefixStore::Remote{.address = redis_.address(), .max_wait = max_wait}});
    AwaitOpen(*store);
    return store;
  }
  static void AwaitOpen(const PrefixStore& store) {
    for (int i = 0; i < 4000 && !store.stats().remote.open; ++i) absl::SleepFor(absl::Milliseconds(5));
    ASSERT_TRUE(store.stats().remote.open);
  }
  // Another server stores it.
  void StoreElsewhere(const std::string& text) const { ASSERT_TRUE(PutLetters(*Open(), text)); }

  const RedisProcess redis_;
  const CodecSpec codec_ = FakeSpec();
  Flights flights_{4};
  Timer timer_;
};

TEST_F(RemoteFeed, SendsWhatAnotherServerStored) {
  StoreElsewhere("abcdefgh");
  const auto store = Open();
  Fed fed("abcdefghijkl");
  fed.Start({store.get(), &flights_, &timer_}, codec_);
  const auto sent = fed.Result();
  ASSERT_TRUE(sent.ok());
  EXPECT_EQ(sent->end.tokens, 8);
  EXPECT_NE(sent->flight, nullptr) << "the rest is this run's to compute";
  EXPECT_THAT(fed.SentTokens(), ElementsAre(0, 0, 4, 4));
  EXPECT_EQ(fed.sink->payloads[2], std::vector<uint8_t>({'e', 'f', 'g', 'h'}));
  EXPECT_EQ(store->stats().remote.hit_tokens, 8u);
  EXPECT_EQ(store->stats().partial_hits, 1u);
  // What is computed behind it is stored behind it.
  StorePosition at = sent->end;
  EXPECT_TRUE(store->Put(fed.prompt, 12, LetterFrames(fed.prompt, 8, 12), &at));
}

TEST_F(RemoteFeed, LooksThereOnlyForWhatIsNotHere) {
  StoreElsewhere("abcdefgh");
  const auto store = Open();
  PutLetters(*store, "abcd");
  Fed fed("abcdefgh");
  fed.Start({store.get(), &flights_, &timer_}, codec_);
  ASSERT_TRUE(fed.Result().ok());
  EXPECT_THAT(fed.SentTokens(), ElementsAre(0, 0, 4, 4));
  EXPECT_EQ(store->stats().memory.hit_tokens, 4u);
  EXPECT_EQ(store->stats().remote.hit_tokens, 4u);
  EXPECT_EQ(store->stats().hits, 1u);
}

TEST_F(RemoteFeed, ParallelRequestsFetchAChunkOnce) {
  StoreElsewhere("abcdefghijkl");
  const auto store = Open();
  std::vector<std::unique_ptr<Fed>> feds;
  for (int i = 0; i < 10; ++i) feds.push_back(std::make_unique<Fed>("abcdefghijkl"));
  for (const auto& fed : feds) fed->Start({store.get(), &flights_, &timer_}, codec_);
  for (const auto& fed : feds) {
    ASSERT_TRUE(fed->Result().ok());
    EXPECT_THAT(fed->SentTokens(), ElementsAre(0, 0, 4, 4, 8, 8));
  }
  EXPECT_EQ(store->stats().remote.loads, 3u);
  EXPECT_EQ(store->stats().hits, 10u);
}

// Another run stores a part while the remote is asked: what is sent of that is not sent again, wherever it ends.
TEST_F(RemoteFeed, WhatWasStoredWhileTheRemoteWasAskedIsSentOnce) {
  StoreElsewhere("abcdefghijkl");
  const auto sends = [&](int64_t stored) {
    const auto store = Open();
    redis_.Freeze();
    Fed fed("abcdefghijkl");
    fed.Start({store.get(), &flights_, &timer_}, codec_, /*stores=*/false);
    StorePosition at = store->Begin(codec_, "");
    EXPECT_TRUE(store->Put(fed.prompt, stored, LetterFrames(fed.prompt, 0, stored), &at));
    redis_.Thaw();
    const auto sent = fed.Result();
    EXPECT_TRUE(sent.ok());
    EXPECT_EQ(sent->end.tokens, stored == 4 ? 12 : stored);
    EXPECT_EQ(store->stats().memory.hit_tokens, stored);
    EXPECT_EQ(store->stats().remote.hit_tokens, stored == 4 ? 8 : 0);
    return fed.SentTokens();
  };
  EXPECT_THAT(sends(4), ElementsAre(0, 0, 4, 4, 8, 8));
  EXPECT_THAT(sends(6), ElementsAre(0, 0)) << "nothing at the remote follows it";
  EXPECT_THAT(sends(12), ElementsAre(0, 0));
}

// What a request waits in vain is bounded, and only those wait that are under way when the remote falls silent. Of
// several tries the quickest counts: the machine may be busy.
TEST_F(RemoteFeed, ARemoteThatHangsCostsARequestTenMilliseconds) {
  StoreElsewhere("abcdefgh");
  absl::Duration first = absl::InfiniteDuration();
  absl::Duration second = absl::InfiniteDuration();
  for (int i = 0; i < 100 && (first > absl::Milliseconds(10) || second > absl::Milliseconds(2)); ++i) {
    const auto store = Open(absl::Milliseconds(10));
    redis_.Freeze();
    for (absl::Duration* took : {&first, &second}) {
      Fed fed("abcdefgh");
      const absl::Time begun = MonotonicNow();
      fed.Start({store.get(), &flights_, &timer_}, codec_);
      const auto sent = fed.Result();
      *took = std::min(*took, MonotonicNow() - begun);
      ASSERT_TRUE(sent.ok());
      EXPECT_EQ(sent->end.tokens, 0);
    }
    EXPECT_FALSE(store->stats().remote.open);
    EXPECT_GE(store->stats().remote.errors + store->stats().remote.late, 1u);
    redis_.Thaw();
  }
  EXPECT_LE(first, absl::Milliseconds(10));
  EXPECT_LE(second, absl::Milliseconds(2));
}

// Eight tokens that are computed in as many microseconds: nothing that the remote has saves more.
TEST_F(RemoteFeed, ALookUpIsWaitedForNoLongerThanComputingTakes) {
  StoreElsewhere("abcdefgh");
  const auto store = Open(absl::Minutes(2));
  redis_.Freeze();
  for (int i = 0; i < 10; ++i) {
    Fed fed("abcdefgh");
    fed.Start({store.get(), &flights_, &timer_}, codec_, /*stores=*/true, /*tokens_per_second=*/1e6);
    const auto sent = fed.Result();
    ASSERT_TRUE(sent.ok());
    EXPECT_EQ(sent->end.tokens, 0);
  }
  EXPECT_TRUE(store->stats().remote.open) << "that it hangs is not known for a minute";
  EXPECT_EQ(store->stats().remote.late, 0u) << "it had less time than others get";
  redis_.Thaw();
}

}  // namespace
}  // namespace aludel
