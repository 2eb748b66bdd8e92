#include "server/store/feed/prefix_feed.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/store/feed/memory_sink.h"
#include "tests/server/store/store_fixture.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;

// The store has "abcdefgh" of prompts of letters, in two chunks of two frames each.
class Feed : public ::testing::Test {
 protected:
  Feed() { PutLetters(store_, "abcdefgh"); }

  void Start(const std::string& text, absl::Duration patience = absl::Seconds(20),
             absl::Duration max_age = absl::InfiniteDuration(), PrefixStore* store = nullptr) {
    prompt_ = Letters(text);
    feed_ = std::make_shared<PrefixFeed>(
        PrefixFeed::Context{store == nullptr ? &store_ : store, &flights_, &timer_},
        PrefixFeed::Prompt{.codec = &codec_,
                           .tokens = prompt_,
                           .max_age = max_age,
                           .patience = patience,
                           .on_found = [this](const PrefixFeed::Found& found) { found_.push_back(found); }});
    feed_->Start(
        sink_,
        [this](size_t weight) {
          EXPECT_GE(weight, 4u);
          return room_.fetch_sub(1) > 0;
        },
        [this](absl::StatusOr<PrefixFeed::Sent> sent) { done_.set_value(std::move(sent)); });
  }
  bool IsDone() { return result_.wait_for(std::chrono::milliseconds(50)) == std::future_status::ready; }
  absl::StatusOr<PrefixFeed::Sent> Result() {
    EXPECT_EQ(result_.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    return result_.get();
  }
  std::vector<uint32_t> SentTokens() const {
    std::vector<uint32_t> tokens;
    for (const FrameCoverage& coverage : sink_->coverages) tokens.push_back(coverage.token_begin);
    return tokens;
  }

  CodecSpec codec_ = FakeSpec();
  PrefixStore store_{{.producer = "base", .memory_bytes = 1 << 20}};
  Flights flights_{4};
  const std::shared_ptr<MemorySink> sink_ = std::make_shared<MemorySink>();
  std::atomic<int> room_{100};
  std::vector<int32_t> prompt_;
  std::vector<PrefixFeed::Found> found_;  // of the feed's thread until it waits or is done
  std::promise<absl::StatusOr<PrefixFeed::Sent>> done_;
  std::future<absl::StatusOr<PrefixFeed::Sent>> result_ = done_.get_future();
  std::shared_ptr<PrefixFeed> feed_;
  Timer timer_;
};

TEST_F(Feed, SendsAWholePromptAndLeavesNothing) {
  Start("abcdefgh");
  const auto sent = Result();
  ASSERT_TRUE(sent.ok());
  EXPECT_EQ(sent->end.tokens, 8);
  EXPECT_EQ(sent->flight, nullptr);
  EXPECT_THAT(SentTokens(), ElementsAre(0, 0, 4, 4));
  EXPECT_EQ(sink_->payloads[2], std::vector<uint8_t>({'e', 'f', 'g', 'h'}));
  EXPECT_EQ(store_.stats().hits, 1u);
}

TEST_F(Feed, LeavesTheRestToItsCaller) {
  Start("abcdefghijkl");
  const auto sent = Result();
  ASSERT_TRUE(sent.ok());
  EXPECT_EQ(sent->end.tokens, 8);
  EXPECT_NE(sent->flight, nullptr);
  EXPECT_EQ(sink_->payloads.size(), 4u);
  EXPECT_EQ(store_.stats().partial_hits, 1u);
}

TEST_F(Feed, SaysWhatIsLeftBeforeItHasSentTheRest) {
  room_ = 1;
  Start("abcdefghijkl");
  EXPECT_FALSE(IsDone());
  EXPECT_THAT(SentTokens(), ElementsAre(0));
  ASSERT_EQ(found_.size(), 1u);
  EXPECT_EQ(found_[0].end.tokens, 8);
  EXPECT_TRUE(found_[0].in_memory);
  EXPECT_NE(found_[0].flight, nullptr);
  room_ = 100;
  feed_->Resume();
  EXPECT_EQ(Result()->end.tokens, 8);
  EXPECT_EQ(found_.size(), 1u);
}

TEST_F(Feed, SaysNothingOfAPromptThatIsStored) {
  Start("abcdefgh");
  ASSERT_TRUE(Result().ok());
  EXPECT_TRUE(found_.empty());
}

TEST_F(Feed, SaysWhatIsLeftOnlyWhenNoOtherRunEncodesIt) {
  std::unique_ptr<Flights::Flight> first =
      flights_.Begin(store_.Begin(codec_, "").key, Letters("abcdefghijkl"), 8);
  room_ = 1;
  Start("abcdefghijkl");
  EXPECT_FALSE(IsDone());
  EXPECT_TRUE(found_.empty());
  EXPECT_THAT(SentTokens(), ElementsAre(0));
  first = nullptr;  // it failed; there is still no room
  for (int i = 0; i < 4000 && !IsDone(); ++i) {
    room_ = 1;
    feed_->Resume();
  }
  EXPECT_EQ(Result()->end.tokens, 8);
  ASSERT_EQ(found_.size(), 1u);
  EXPECT_EQ(found_[0].end.tokens, 8);
}

TEST_F(Feed, SendsAsManyPlanesAsAreWanted) {
  codec_.kind = FrameKind::kAludel;
  codec_.name = "code";
  const std::vector<int32_t> prompt = Letters("abcdefgh");
  StorePosition at = store_.Begin(codec_, "");
  ASSERT_TRUE(store_.Put(prompt, 4, {{{0, 1, 0, 0, 4}, {2, 10, 11, 1, 12, 1, 13}}}, &at));
  ASSERT_TRUE(store_.Put(prompt, 8, {{{0, 1, 0, 4, 4}, {100, 10}}}, &at));  // no planes
  codec_.name = "code@2";
  Start("abcdefgh");
  const auto sent = Result();
  ASSERT_TRUE(sent.ok()) << sent.status();
  EXPECT_EQ(sent->end.tokens, 4) << "what is no planes is computed";
  EXPECT_THAT(sink_->payloads, ElementsAre(std::vector<uint8_t>({2, 10, 11, 1, 12})));
}

TEST_F(Feed, GoesOnWithTheFrameThatHadNoRoom) {
  room_ = 1;
  Start("abcdefgh");
  EXPECT_FALSE(IsDone());
  EXPECT_THAT(SentTokens(), ElementsAre(0));
  room_ = 1;
  feed_->Resume();
  EXPECT_FALSE(IsDone());
  EXPECT_THAT(SentTokens(), ElementsAre(0, 0));
  room_ = 2;
  feed_->Resume();
  EXPECT_TRUE(Result().ok());
  EXPECT_THAT(SentTokens(), ElementsAre(0, 0, 4, 4));
  feed_->Resume();  // too late to matter
}

TEST_F(Feed, EndsWithTheSinksError) {
  sink_->fails_after = 2;
  Start("abcdefgh");
  EXPECT_TRUE(absl::IsUnavailable(Result().status()));
}

TEST_F(Feed, AStopEndsAWaitForRoom) {
  room_ = 0;
  Start("abcdefgh");
  EXPECT_FALSE(IsDone());
  feed_->Stop(absl::CancelledError("the caller has gone"));
  EXPECT_TRUE(absl::IsCancelled(Result().status()));
  EXPECT_TRUE(sink_->coverages.empty());
}

TEST_F(Feed, WaitsForTheChunksOfAnotherRun) {
  std::unique_ptr<Flights::Flight> first =
      flights_.Begin(store_.Begin(codec_, "").key, Letters("abcdefghijkl"), 8);
  Start("abcdefghijkl");
  EXPECT_FALSE(IsDone());
  EXPECT_EQ(sink_->payloads.size(), 4u);
  PutLetters(store_, "abcdefghijkl");
  first->Advance(12);
  const auto sent = Result();
  ASSERT_TRUE(sent.ok());
  EXPECT_EQ(sent->end.tokens, 12);
  EXPECT_EQ(sink_->payloads.size(), 6u);
}

TEST_F(Feed, TakesOverFromARunThatFailed) {
  std::unique_ptr<Flights::Flight> first =
      flights_.Begin(store_.Begin(codec_, "").key, Letters("abcdefghijkl"), 8);
  Start("abcdefghijkl");
  EXPECT_FALSE(IsDone());
  first = nullptr;
  const auto sent = Result();
  ASSERT_TRUE(sent.ok());
  EXPECT_EQ(sent->end.tokens, 8);
  EXPECT_NE(sent->flight, nullptr);
}

TEST_F(Feed, DoesNotWaitForChunksThatItMayNotUse) {
  prompt_ = Letters("abcdefghijkl");
  const std::vector<int32_t> prompt = prompt_;
  // Its beginning is stored under another salt only: as good as gone for this one.
  const auto gone = flights_.Begin(store_.Begin(codec_, "mine").key, prompt, 8);
  feed_ = std::make_shared<PrefixFeed>(
      PrefixFeed::Context{&store_, &flights_, &timer_},
      PrefixFeed::Prompt{&codec_, "mine", prompt_, absl::InfiniteDuration(), absl::Seconds(20)});
  feed_->Start(
      sink_, [](size_t) { return true; },
      [this](absl::StatusOr<PrefixFeed::Sent> sent) { done_.set_value(std::move(sent)); });
  ASSERT_TRUE(IsDone());
  EXPECT_NE(Result()->flight, nullptr);
}

TEST_F(Feed, WhatWillNotBeStoredWaitsForNoFlightAndHasNone) {
  const auto first = flights_.Begin(store_.Begin(codec_, "").key, Letters("abcdefghijkl"), 8);
  prompt_ = Letters("abcdefghijkl");
  feed_ = std::make_shared<PrefixFeed>(
      PrefixFeed::Context{&store_, &flights_, &timer_},
      PrefixFeed::Prompt{
          .codec = &codec_, .tokens = prompt_, .patience = absl::Seconds(20), .stores = false});
  feed_->Start(
      sink_, [](size_t) { return true; },
      [this](absl::StatusOr<PrefixFeed::Sent> sent) { done_.set_value(std::move(sent)); });
  ASSERT_TRUE(IsDone());
  const auto sent = Result();
  ASSERT_TRUE(sent.ok());
  EXPECT_EQ(sent->end.tokens, 8) << "what is stored it uses";
  EXPECT_EQ(sent->flight, nullptr);
}

TEST_F(Feed, IsNotHeldUpForLongByARunThatIs) {
  const auto first = flights_.Begin(store_.Begin(codec_, "").key, Letters("abcdefghijkl"), 8);
  Start("abcdefghijkl", absl::Milliseconds(20));
  const auto sent = Result();
  ASSERT_TRUE(sent.ok());
  EXPECT_NE(sent->flight, nullptr);
}

TEST_F(Feed, APromptThatNothingStoredMayServeWaitsForNothing) {
  const auto first = flights_.Begin(store_.Begin(codec_, "").key, Letters("abcdefghijkl"), 8);
  Start("abcdefghijkl", absl::Seconds(20), absl::ZeroDuration());
  const auto sent = Result();
  ASSERT_TRUE(sent.ok());
  EXPECT_EQ(sent->end.tokens, 0);
  EXPECT_TRUE(sink_->coverages.empty());
}

// A store that was closed and opened again, so that its chunks are on disk.
class FeedFromDisk : public Feed {
 protected:
  FeedFromDisk() : directory_(absl::StrCat(::testing::TempDir(), "/feed-", getpid())) {
    std::filesystem::remove_all(directory_);
    PutLetters(*Open(), "abcdefghijkl");
  }
  ~FeedFromDisk() override { std::filesystem::remove_all(directory_); }
  std::unique_ptr<PrefixStore> Open() const {
    return std::make_unique<PrefixStore>(PrefixStore::Options{.producer = "base",
                                                              .memory_bytes = 1 << 20,
                                                              .disk = PrefixStore::Disk{directory_, 1 << 20},
                                                              .encoders = {EncoderTag(codec_)}});
  }

  const std::string directory_;
};

TEST_F(FeedFromDisk, SendsInOrderWhatIsReadAhead) {
  const auto store = Open();
  Start("abcdefghijklm", absl::Seconds(20), absl::InfiniteDuration(), store.get());
  const auto sent = Result();
  ASSERT_TRUE(sent.ok());
  EXPECT_EQ(sent->end.tokens, 12);
  EXPECT_THAT(SentTokens(), ElementsAre(0, 0, 4, 4, 8, 8));
  EXPECT_EQ(sink_->payloads[4], std::vector<uint8_t>({'i', 'j', 'k', 'l'}));
  EXPECT_EQ(store->stats().disk.hit_tokens, 12u);
}

TEST_F(FeedFromDisk, LeavesWhatCannotBeReadToItsCaller) {
  {
    std::fstream file(absl::StrCat(directory_, "/", SegmentName(1)),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(2 * kStoreBlock + ChunkMetaBytes(4, 2));  // the second chunk's first payload, an 'e'
    file.put('x');
  }
  const auto store = Open();
  Start("abcdefghijkl", absl::Seconds(20), absl::InfiniteDuration(), store.get());
  const auto sent = Result();
  ASSERT_TRUE(sent.ok());
  EXPECT_EQ(sent->end.tokens, 4);
  EXPECT_NE(sent->flight, nullptr);
  EXPECT_THAT(SentTokens(), ElementsAre(0, 0));
  EXPECT_EQ(store->stats().damaged, 1u);
  ASSERT_EQ(found_.size(), 1u);
  EXPECT_EQ(found_[0].end.tokens, 4) << "a prompt that is found whole is announced when it is not";
}

TEST_F(FeedFromDisk, SaysAtTheEndThatLessCouldBeReadThanWasFound) {
  {
    std::fstream file(absl::StrCat(directory_, "/", SegmentName(1)),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(2 * kStoreBlock + ChunkMetaBytes(4, 2));
    file.put('x');
  }
  const auto store = Open();
  Start("abcdefghijklm", absl::Seconds(20), absl::InfiniteDuration(), store.get());
  const auto sent = Result();
  ASSERT_TRUE(sent.ok());
  EXPECT_EQ(sent->end.tokens, 4);
  ASSERT_EQ(found_.size(), 1u);
  EXPECT_EQ(found_[0].end.tokens, 12);
  EXPECT_FALSE(found_[0].in_memory);
}

// All threads that read wait, as for a disk that hangs.
TEST_F(FeedFromDisk, LeavesWhatTheDiskDoesNotGiveInTimeToItsCaller) {
  const auto store = Open();
  absl::Notification moves;
  StorePosition at = store->Begin(codec_, "");
  const std::vector<int32_t> prompt = Letters("abcdefghijkl");
  const std::vector<StoredChunk> chunks = store->Peek(prompt, &at);
  ASSERT_EQ(chunks.size(), 3u);
  for (int i = 0; i < 4; ++i) {
    store->Load(
        chunks[0], prompt, [](const StoredFrames&) {},
        [&moves] {
          moves.WaitForNotification();
          return false;
        });
  }
  Start("abcdefghijkl", absl::Seconds(20), absl::InfiniteDuration(), store.get());
  const auto sent = Result();
  ASSERT_TRUE(sent.ok());
  EXPECT_EQ(sent->end.tokens, 0);
  EXPECT_NE(sent->flight, nullptr);
  EXPECT_EQ(store->stats().reads_late, 1u);
  EXPECT_EQ(store->stats().misses, 1u);
  moves.Notify();
}

}  // namespace
}  // namespace aludel
