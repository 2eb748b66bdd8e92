#include "server/prefill/frame_producer.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/store/feed/memory_sink.h"
#include "tests/server/store/store_fixture.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;

// A test that plays the engine: it is told of parts, and ends them.
class Producer : public ::testing::Test {
 protected:
  struct Begun {
    FrameProducer::Part part;
    FrameSink* sink = nullptr;
    std::shared_ptr<SequenceListener> listener;
  };
  struct End {
    absl::Status status;
    FrameProducer::Produced produced;
  };

  Producer() : directory_(absl::StrCat(::testing::TempDir(), "/producer-", getpid())) {
    std::filesystem::remove_all(directory_);
  }
  ~Producer() override {
    store_ = nullptr;
    std::filesystem::remove_all(directory_);
  }

  // A store that has this in memory.
  void OpenInMemory(const std::string& text) {
    store_ = std::make_unique<PrefixStore>(PrefixStore::Options{.producer = "base", .memory_bytes = 1 << 20});
    ASSERT_TRUE(PutLetters(*store_, text));
  }
  // One that has it on disk, where the chunk at this index is damaged.
  void OpenOnDisk(const std::string& text, int damaged) {
    const PrefixStore::Options options{.producer = "base",
                                       .memory_bytes = 1 << 20,
                                       .disk = PrefixStore::Disk{directory_, 1 << 20},
                                       .encoders = {EncoderTag(codec_)}};
    store_ = std::make_unique<PrefixStore>(options);
    ASSERT_TRUE(PutLetters(*store_, text));
    store_ = nullptr;
    {
      std::fstream file(absl::StrCat(directory_, "/", SegmentName(1)),
                        std::ios::in | std::ios::out | std::ios::binary);
      file.seekp((damaged + 1) * kStoreBlock + ChunkMetaBytes(4, 2));  // its first payload
      file.put('?');
    }
    store_ = std::make_unique<PrefixStore>(options);
  }
  void Start(const std::string& text) {
    prompt_ = Letters(text);
    producer_ = std::make_shared<FrameProducer>(FrameProducer::Spec{
        .feeding = {store_.get(), &flights_, &timer_},
        .prompt = {.codec = &codec_, .tokens = prompt_, .patience = absl::Seconds(20)},
        .store = store_.get(),
        .stored = stored_,
        .has_room = [this](size_t) { return room_.load(); },
        .computed = computed_,
        .begin = [this](const FrameProducer::Part& part, FrameSink* sink,
                        std::shared_ptr<SequenceListener> listener) -> absl::StatusOr<SequenceId> {
          absl::MutexLock lock(&mutex_);
          if (!refusal_.ok()) return refusal_;
          if (encodes_at_once_) Encode(sink, part.begin, part.begin + 4);
          begun_.push_back({part, sink, std::move(listener)});
          return begun_.size();
        },
        .cancel =
            [this](SequenceId id, const absl::Status& status) {
              absl::MutexLock lock(&mutex_);
              cancelled_.push_back({id, status});
            },
        .part_ended = [this] { ++parts_ended_; },
        .nudge = [this] { ++nudges_; },
        .done =
            [this](const absl::Status& status, const FrameProducer::Produced& produced) {
              done_.set_value({status, produced});
            }});
    producer_->Start();
  }
  // Waits for the part of this number, from 1.
  Begun AwaitPart(size_t number) {
    absl::MutexLock lock(&mutex_);
    const auto has_begun = [&] { return begun_.size() >= number; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&has_begun), absl::Seconds(20)));
    return begun_.size() >= number ? begun_[number - 1] : Begun{};
  }
  std::pair<SequenceId, absl::Status> AwaitCancel() {
    absl::MutexLock lock(&mutex_);
    const auto any = [&] { return !cancelled_.empty(); };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&any), absl::Seconds(20)));
    return cancelled_.empty() ? std::pair<SequenceId, absl::Status>() : cancelled_.front();
  }
  size_t parts() {
    absl::MutexLock lock(&mutex_);
    return begun_.size();
  }
  // A chunk's frames, as an encoder makes them.
  void Encode(FrameSink* sink, int64_t begin, int64_t end) {
    for (const StoredFrame& frame : LetterFrames(prompt_, begin, end)) {
      const auto memory = sink->Reserve(frame.payload.size());
      ASSERT_TRUE(memory.ok()) << memory.status();
      std::copy(frame.payload.begin(), frame.payload.end(), memory->begin());
      ASSERT_TRUE(sink->Commit(frame.coverage, frame.payload.size()).ok());
    }
  }
  static void Finish(const Begun& part, const absl::Status& status = absl::OkStatus(), int64_t cached = 0) {
    SequenceResult result;
    result.cached_tokens = cached;
    result.times.prefill = 1;
    part.listener->OnDone(status, result);
  }
  bool IsDone() { return end_.wait_for(std::chrono::milliseconds(20)) == std::future_status::ready; }
  End Result() {
    EXPECT_EQ(end_.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    return end_.get();
  }
  static std::vector<uint32_t> Tokens(const MemorySink& sink) {
    std::vector<uint32_t> tokens;
    for (const FrameCoverage& coverage : sink.coverages) tokens.push_back(coverage.token_begin);
    return tokens;
  }
  // Of the prompt, that a run that comes now would not compute.
  int64_t Stored() { return store_->Findable(prompt_, store_->Begin(codec_, "")); }

  const std::string directory_;
  const CodecSpec codec_ = FakeSpec();
  std::unique_ptr<PrefixStore> store_;
  Flights flights_{4};
  const std::shared_ptr<MemorySink> stored_ = std::make_shared<MemorySink>();
  const std::shared_ptr<MemorySink> computed_ = std::make_shared<MemorySink>();
  std::atomic<bool> room_{true};
  std::atomic<int> parts_ended_{0};
  std::atomic<int> nudges_{0};
  bool encodes_at_once_ = false;
  absl::Status refusal_;
  std::vector<int32_t> prompt_;
  absl::Mutex mutex_;
  std::vector<Begun> begun_;
  std::vector<std::pair<SequenceId, absl::Status>> cancelled_;
  std::promise<End> done_;
  std::future<End> end_ = done_.get_future();
  std::shared_ptr<FrameProducer> producer_;
  Timer timer_;
};

TEST_F(Producer, TheEngineComputesWhileStoredFramesWait) {
  OpenInMemory("abcdefgh");
  room_ = false;
  Start("abcdefghijkl");
  const Begun part = AwaitPart(1);
  EXPECT_EQ(part.part.begin, 8);
  EXPECT_EQ(part.part.end, 12);
  Encode(part.sink, 8, 12);
  EXPECT_EQ(Stored(), 12) << "what is behind the memory's chunks waits for nothing";
  Finish(part, absl::OkStatus(), 4);
  EXPECT_FALSE(IsDone());
  EXPECT_TRUE(stored_->coverages.empty());
  room_ = true;
  producer_->OnRoom();
  const End end = Result();
  ASSERT_TRUE(end.status.ok()) << end.status;
  EXPECT_EQ(end.produced.stored.tokens, 8);
  EXPECT_EQ(end.produced.end.tokens, 12);
  EXPECT_TRUE(end.produced.computed);
  EXPECT_EQ(end.produced.computed_tokens, 8);
  EXPECT_EQ(end.produced.cached_tokens, 4);
  EXPECT_EQ(end.produced.times.prefill, 1);
  EXPECT_THAT(Tokens(*stored_), ElementsAre(0, 0, 4, 4));
  EXPECT_THAT(Tokens(*computed_), ElementsAre(8, 8));
  EXPECT_EQ(parts_ended_, 1);
}

TEST_F(Producer, RoomIsTheEnginesAndTheFeeds) {
  OpenInMemory("abcdefgh");
  room_ = false;
  Start("abcdefghijkl");
  const Begun part = AwaitPart(1);
  producer_->OnRoom();
  EXPECT_EQ(nudges_, 1);
  room_ = true;
  producer_->OnRoom();
  EXPECT_EQ(nudges_, 2);
  Finish(part);
  ASSERT_TRUE(Result().status.ok());
  producer_->OnRoom();
  EXPECT_EQ(nudges_, 2) << "nothing is with the engine";
}

TEST_F(Producer, APromptThatIsStoredIsNotComputed) {
  OpenInMemory("abcdefgh");
  Start("abcdefgh");
  const End end = Result();
  ASSERT_TRUE(end.status.ok());
  EXPECT_FALSE(end.produced.computed);
  EXPECT_EQ(end.produced.end.tokens, 8);
  EXPECT_EQ(parts(), 0u);
}

TEST_F(Producer, WhatCannotBeReadIsComputedInOneGoWhereNoFrameWasBegun) {
  OpenOnDisk("abcdefghijkl", /*damaged=*/1);
  Start("abcdefghijklmnop");
  const Begun first = AwaitPart(1);
  EXPECT_EQ(first.part.begin, 12);
  const auto [id, why] = AwaitCancel();
  EXPECT_EQ(id, 1u);
  EXPECT_EQ(first.sink->Reserve(8).status(), why) << "should the engine be faster than its cancelling";
  EXPECT_EQ(parts(), 1u) << "one part at a time";
  Finish(first, why);
  const Begun second = AwaitPart(2);
  EXPECT_EQ(second.part.begin, 4);
  EXPECT_EQ(second.part.end, 16);
  Encode(second.sink, 4, 8);
  Encode(second.sink, 8, 16);
  Finish(second);
  const End end = Result();
  ASSERT_TRUE(end.status.ok()) << end.status;
  EXPECT_EQ(end.produced.stored.tokens, 4);
  EXPECT_THAT(Tokens(*stored_), ElementsAre(0, 0));
  EXPECT_THAT(Tokens(*computed_), ElementsAre(4, 4, 8, 8));
  EXPECT_EQ(end.produced.times.prefill, 2);
  EXPECT_EQ(end.produced.computed_tokens, 16);
  EXPECT_EQ(Stored(), 16);
}

TEST_F(Producer, AGapBeforeFramesThatHaveLeftIsAPartOfItsOwn) {
  OpenOnDisk("abcdefghijkl", /*damaged=*/1);
  encodes_at_once_ = true;
  Start("abcdefghijklmnop");
  const Begun rest = AwaitPart(1);
  EXPECT_EQ(rest.part.begin, 12);
  EXPECT_EQ(rest.part.end, 16);
  for (int i = 0; i < 4000 && store_->stats().damaged == 0; ++i) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_FALSE(IsDone());
  Finish(rest);
  const Begun gap = AwaitPart(2);
  EXPECT_EQ(gap.part.begin, 4);
  EXPECT_EQ(gap.part.end, 12);
  EXPECT_FALSE(IsDone());
  Encode(gap.sink, 8, 12);  // its first frames went with the part's begin
  Finish(gap);
  const End end = Result();
  ASSERT_TRUE(end.status.ok()) << end.status;
  EXPECT_THAT(Tokens(*stored_), ElementsAre(0, 0));
  EXPECT_THAT(Tokens(*computed_), ElementsAre(12, 12, 4, 4, 8, 8));
  EXPECT_TRUE(cancelled_.empty());
  EXPECT_EQ(end.produced.end.tokens, 16) << "the rest is stored behind what fills the gap";
  EXPECT_EQ(Stored(), 16);
}

TEST_F(Producer, AFailedSendEndsTheEnginesPart) {
  OpenInMemory("abcdefgh");
  stored_->fails_after = 2;
  Start("abcdefghijkl");
  const Begun part = AwaitPart(1);
  const auto [id, why] = AwaitCancel();
  EXPECT_EQ(id, 1u);
  EXPECT_FALSE(IsDone()) << "the engine has its sink still";
  Finish(part, why);
  EXPECT_TRUE(absl::IsUnavailable(Result().status));
}

TEST_F(Producer, AStopEndsBoth) {
  OpenInMemory("abcdefgh");
  room_ = false;
  Start("abcdefghijkl");
  const Begun part = AwaitPart(1);
  producer_->Stop(absl::CancelledError("the caller has gone"));
  const auto [id, why] = AwaitCancel();
  Finish(part, why);
  EXPECT_EQ(Result().status, absl::CancelledError("the caller has gone"));
  EXPECT_TRUE(stored_->coverages.empty());
}

TEST_F(Producer, AStopBetweenTwoPartsBeginsNoOther) {
  OpenOnDisk("abcdefghijkl", /*damaged=*/1);
  Start("abcdefghijklmnop");
  const Begun part = AwaitPart(1);
  const auto [id, why] = AwaitCancel();
  producer_->Stop(absl::DeadlineExceededError("too late"));
  Finish(part, why);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Result().status));
  EXPECT_EQ(parts(), 1u);
}

TEST_F(Producer, AnEngineThatTakesNoPartEndsTheRun) {
  OpenInMemory("abcdefgh");
  room_ = false;
  refusal_ = absl::ResourceExhaustedError("no blocks");
  Start("abcdefghijkl");
  EXPECT_EQ(Result().status, refusal_);
}

TEST_F(Producer, AnEngineThatFailsEndsTheFeed) {
  OpenInMemory("abcdefgh");
  room_ = false;
  Start("abcdefghijkl");
  Finish(AwaitPart(1), absl::InternalError("the device"));
  EXPECT_EQ(Result().status, absl::InternalError("the device"));
}

}  // namespace
}  // namespace aludel
