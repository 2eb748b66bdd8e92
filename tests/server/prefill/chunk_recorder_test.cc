#include "server/prefill/chunk_recorder.h"

#include <algorithm>

#include "gtest/gtest.h"
#include "tests/server/store/feed/memory_sink.h"
#include "tests/testing/fake_codec.h"

namespace aludel {
namespace {

class Recorder : public ::testing::Test {
 protected:
  ChunkRecorder Record(PrefixStore& store, std::unique_ptr<Flights::Flight> flight = nullptr) {
    return ChunkRecorder(sink_, {.store = &store,
                                 .codec = &codec_,
                                 .prompt = prompt_,
                                 .begin = store.Begin(codec_, ""),
                                 .flight = std::move(flight)});
  }
  static void Frame(ChunkRecorder& recorder, uint16_t layer, uint32_t begin, uint32_t tokens) {
    const absl::StatusOr<absl::Span<uint8_t>> payload = recorder.Reserve(8);
    ASSERT_TRUE(payload.ok());
    std::fill(payload->begin(), payload->end(), static_cast<uint8_t>(layer));
    ASSERT_TRUE(recorder.Commit({layer, 1, 0, begin, tokens}, 5).ok());
  }
  int64_t Found(PrefixStore& store) {
    StorePosition at = store.Begin(codec_, "");
    store.Find(prompt_, absl::InfiniteDuration(), &at);
    return at.tokens;
  }

  const std::shared_ptr<MemorySink> sink_ = std::make_shared<MemorySink>();
  CodecSpec codec_ = FakeSpec();
  const std::vector<int32_t> prompt_ = std::vector<int32_t>(12, 7);
  PrefixStore store_{{.producer = "base", .memory_bytes = 1 << 20}};
};

TEST_F(Recorder, StoresEachChunkWithItsLastFrameAndPassesEverythingOn) {
  ChunkRecorder recorder = Record(store_);
  Frame(recorder, 0, 0, 4);
  EXPECT_EQ(Found(store_), 0);
  Frame(recorder, 1, 0, 4);
  EXPECT_EQ(Found(store_), 4);
  Frame(recorder, 0, 4, 8);
  Frame(recorder, 1, 4, 8);
  EXPECT_EQ(Found(store_), 12);
  EXPECT_EQ(sink_->payloads.size(), 4u);
  StorePosition at = store_.Begin(codec_, "");
  const auto chunks = store_.Find(prompt_, absl::InfiniteDuration(), &at);
  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_EQ(chunks[1].frames->at(1).payload, std::vector<uint8_t>(5, 1));
  EXPECT_EQ(chunks[1].frames->at(1).coverage.token_begin, 4u);
}

// A device may still be copying into the first while the next are reserved.
TEST_F(Recorder, StoresFramesThatWereUnderWayTogether) {
  ChunkRecorder recorder = Record(store_);
  std::vector<absl::Span<uint8_t>> payloads;
  for (const size_t bytes : {3, 9}) payloads.push_back(recorder.Reserve(bytes).value());
  for (uint16_t layer = 0; layer < 2; ++layer) {
    std::fill(payloads[layer].begin(), payloads[layer].end(), static_cast<uint8_t>(layer + 1));
  }
  for (uint16_t layer = 0; layer < 2; ++layer) {
    ASSERT_TRUE(recorder.Commit({layer, 1, 0, 0, 12}, payloads[layer].size()).ok());
  }
  EXPECT_EQ(sink_->payloads, (std::vector<std::vector<uint8_t>>{{1, 1, 1}, std::vector<uint8_t>(9, 2)}));
  StorePosition at = store_.Begin(codec_, "");
  const auto chunks = store_.Find(prompt_, absl::InfiniteDuration(), &at);
  ASSERT_EQ(chunks.size(), 1u);
  for (int layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(chunks[0].frames->at(layer).payload, sink_->payloads[layer]);
  }
}

TEST_F(Recorder, KeepsNothingFromAHoleOn) {
  ChunkRecorder recorder = Record(store_);
  Frame(recorder, 0, 0, 4);
  Frame(recorder, 0, 4, 4);  // layer 1 of the first chunk is missing
  Frame(recorder, 1, 4, 4);
  Frame(recorder, 1, 0, 4);
  EXPECT_EQ(Found(store_), 0);
  EXPECT_EQ(sink_->payloads.size(), 4u);
}

TEST_F(Recorder, RecomputedHeadTokensBelongToTheFirstChunk) {
  codec_.recomputed_head_tokens = 2;
  ChunkRecorder recorder = Record(store_);
  Frame(recorder, 0, 2, 2);
  Frame(recorder, 1, 2, 2);
  EXPECT_EQ(Found(store_), 4);
}

TEST_F(Recorder, LeavesOutWhatIsLargerThanTheStore) {
  PrefixStore small({.producer = "base", .memory_bytes = 4});
  ChunkRecorder recorder = Record(small);
  Frame(recorder, 0, 0, 4);
  Frame(recorder, 1, 0, 4);
  EXPECT_EQ(small.stats().memory.entries, 0u);
  EXPECT_EQ(sink_->payloads.size(), 2u);
}

TEST_F(Recorder, TellsThoseWhoWaitOfEachChunkAndOfTheEnd) {
  Flights flights(4);
  int calls = 0;
  Flights::Known known;
  const auto wait = [&](int64_t have) {
    return flights.Join(
               {}, prompt_, have, [&calls] { ++calls; }, &known) == nullptr;
  };
  ChunkRecorder recorder = Record(store_, flights.Begin({}, prompt_, 0));
  ASSERT_TRUE(wait(0));
  Frame(recorder, 0, 0, 4);
  EXPECT_EQ(calls, 0);
  Frame(recorder, 1, 0, 4);
  EXPECT_EQ(calls, 1);
  ASSERT_TRUE(wait(4));
  Frame(recorder, 0, 4, 4);
  Frame(recorder, 0, 8, 4);  // layer 1 is missing: the store gets no more of this
  EXPECT_EQ(calls, 2);
  EXPECT_FALSE(wait(4));
}

// What stands in front is being read from a remote: until it is here nothing could be found behind it.
TEST_F(Recorder, ChunksWaitForTheOneInFront) {
  StorePosition front = store_.Begin(codec_, "");
  front.tokens = 4;  // of a chunk that is not stored here yet
  ChunkRecorder recorder(
      sink_, {.store = &store_, .codec = &codec_, .prompt = prompt_, .begin = front, .waits = true});
  Frame(recorder, 0, 4, 4);
  Frame(recorder, 1, 4, 4);
  EXPECT_EQ(store_.stats().memory.entries, 0u);
  StorePosition at = store_.Begin(codec_, "");
  ASSERT_TRUE(store_.Put(prompt_, 4, {{{0, 1, 0, 0, 4}, {1}}, {{1, 1, 0, 0, 4}, {1}}}, &at));
  recorder.SetFront(at);
  EXPECT_EQ(Found(store_), 8);
  Frame(recorder, 0, 8, 4);
  Frame(recorder, 1, 8, 4);
  EXPECT_EQ(Found(store_), 12);
  EXPECT_EQ(recorder.end().tokens, 12);
}

TEST_F(Recorder, WhatWaitsForAChunkThatNeverComesIsNotStored) {
  StorePosition front = store_.Begin(codec_, "");
  front.tokens = 4;
  ChunkRecorder recorder(
      sink_, {.store = &store_, .codec = &codec_, .prompt = prompt_, .begin = front, .waits = true});
  Frame(recorder, 0, 4, 4);
  Frame(recorder, 1, 4, 4);
  recorder.SetFront(store_.Begin(codec_, ""));
  Frame(recorder, 0, 8, 4);
  Frame(recorder, 1, 8, 4);
  EXPECT_EQ(store_.stats().memory.entries, 0u);
  EXPECT_EQ(sink_->payloads.size(), 4u);
}

TEST_F(Recorder, MoreThanMayWaitIsNotStored) {
  StorePosition at = store_.Begin(codec_, "");
  ASSERT_TRUE(store_.Put(prompt_, 4, {{{0, 1, 0, 0, 4}, {1}}, {{1, 1, 0, 0, 4}, {1}}}, &at));
  ChunkRecorder recorder(sink_, {.store = &store_,
                                 .codec = &codec_,
                                 .prompt = prompt_,
                                 .begin = at,
                                 .waits = true,
                                 .max_waiting_bytes = 15});
  for (const uint32_t begin : {4, 8}) {  // of five bytes each
    Frame(recorder, 0, begin, 4);
    Frame(recorder, 1, begin, 4);
  }
  recorder.SetFront(at);
  EXPECT_EQ(Found(store_), 4);
}

TEST_F(Recorder, IsWithdrawnUnlessAFrameWasBegun) {
  ChunkRecorder idle = Record(store_);
  EXPECT_TRUE(idle.Withdraw());
  EXPECT_EQ(idle.Reserve(8).status(), ChunkRecorder::Withdrawn());
  EXPECT_TRUE(sink_->payloads.empty());
  ChunkRecorder begun = Record(store_);
  ASSERT_TRUE(begun.Reserve(8).ok());
  EXPECT_FALSE(begun.Withdraw());
  ASSERT_TRUE(begun.Commit({0, 1, 0, 0, 4}, 5).ok());
  EXPECT_TRUE(begun.Reserve(8).ok());
}

}  // namespace
}  // namespace aludel
