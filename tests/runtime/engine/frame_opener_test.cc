#include "runtime/engine/frame_opener.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/codec/open_codec.h"
#include "tests/runtime/engine/engine_fixture.h"

namespace aludel::engine_testing {
namespace {

using ::testing::HasSubstr;

struct Bytes : OpenedPayload {
  std::vector<uint8_t> bytes;
};

std::vector<uint8_t> BytesOf(const PendingFrame& frame) {
  return static_cast<const Bytes&>(*frame.opened->value()).bytes;
}

// Adds 1 to every byte; of layer `bad_layer` it says that they are none. While it is shut it is at its first frames.
class SlowOpener : public PayloadOpener {
 public:
  absl::StatusOr<std::unique_ptr<OpenedPayload>> Open(const FrameCoverage& coverage,
                                                      absl::Span<const uint8_t> payload) const override {
    absl::MutexLock lock(&mutex_);
    ++begun_;
    mutex_.Await(absl::Condition(&open_));
    if (coverage.first_layer == bad_layer) return absl::DataLossError("no picture");
    auto opened = std::make_unique<Bytes>();
    opened->bytes.assign(payload.begin(), payload.end());
    for (uint8_t& byte : opened->bytes) ++byte;
    return opened;
  }
  void Shut(bool shut) {
    absl::MutexLock lock(&mutex_);
    open_ = !shut;
  }
  void AwaitBegun(int frames) {
    const auto begun = [this, frames]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return begun_ >= frames; };
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&begun));
  }

  int begun() const {
    absl::MutexLock lock(&mutex_);
    return begun_;
  }

  int bad_layer = -1;  // set before it is used

 private:
  mutable absl::Mutex mutex_;
  mutable int begun_ ABSL_GUARDED_BY(mutex_) = 0;
  bool open_ ABSL_GUARDED_BY(mutex_) = true;
};

class OpenedDecoder : public KvDecoder {
 public:
  explicit OpenedDecoder(std::unique_ptr<KvDecoder> raw) : raw_(std::move(raw)) {}
  absl::Status Begin(const KvTarget& target) override { return raw_->Begin(target); }
  absl::Status Apply(const FrameCoverage& coverage, absl::Span<const uint8_t> payload,
                     const KvTarget& target) override {
    return raw_->Apply(coverage, payload, target);
  }
  absl::Status ApplyOpened(const FrameCoverage& coverage, const OpenedPayload& opened,
                           const KvTarget& target) override {
    return raw_->Apply(coverage, static_cast<const Bytes&>(opened).bytes, target);
  }

 private:
  const std::unique_ptr<KvDecoder> raw_;
};

// `raw` with every byte of a payload one less, and an opener.
class OpenedDecoders : public DecoderFactory {
 public:
  explicit OpenedDecoders(const Transformer& model)
      : OpenedDecoders(OpenDecoders("raw", "", model).value()) {}
  absl::StatusOr<std::unique_ptr<KvDecoder>> NewDecoder() const override {
    return std::make_unique<OpenedDecoder>(raw_->NewDecoder().value());
  }
  const PayloadOpener* opener() const override { return &slow; }

  SlowOpener slow;

 private:
  explicit OpenedDecoders(std::unique_ptr<DecoderFactory> raw)
      : DecoderFactory(raw->spec(), raw->flops_per_token()), raw_(std::move(raw)) {}

  const std::unique_ptr<DecoderFactory> raw_;
};

FrameStore::Frame Closed(FrameStore::Frame frame) {
  for (uint8_t& byte : frame.payload) --byte;
  const auto header = EncodeFrameHeader(DecodeFrameHeader(frame.header).value(), frame.payload);
  frame.header.assign(header.begin(), header.end());
  return frame;
}

PendingFrame Pending(SequenceId id, const FrameStore::Frame& frame, int* released) {
  return {.id = id,
          .header = DecodeFrameHeader(frame.header).value(),
          .header_bytes = frame.header,
          .payload = frame.payload,
          .release = [released] { ++*released; }};
}

FrameStore::Frame SmallFrame(uint8_t byte) {
  FrameStore::Frame frame{{}, {byte}};
  FrameHeader header;
  header.coverage.tokens = 1;
  header.coverage.layers = 1;
  header.payload_bytes = 1;
  const auto bytes = EncodeFrameHeader(header, frame.payload);
  frame.header.assign(bytes.begin(), bytes.end());
  return frame;
}

// Until so many are open.
std::vector<PendingFrame> Await(FrameOpener& opener, size_t frames) {
  std::vector<PendingFrame> all;
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (all.size() < frames && std::chrono::steady_clock::now() < until) {
    for (PendingFrame& frame : opener.Take()) all.push_back(std::move(frame));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return all;
}

TEST(FrameOpener, OpensInOrderAndDropsWhatItIsAt) {
  SlowOpener slow;
  slow.Shut(true);
  FrameOpener opener(/*threads=*/1, [] {});
  int released = 0;
  const FrameStore::Frame frames[] = {SmallFrame(10), SmallFrame(20), SmallFrame(30), SmallFrame(40)};
  opener.Push(Pending(1, frames[0], &released), &slow);
  opener.Push(Pending(2, frames[1], &released), &slow);
  opener.Push(Pending(1, frames[2], &released), &slow);
  slow.AwaitBegun(1);
  EXPECT_TRUE(opener.Take().empty());
  opener.Drop(1);
  EXPECT_EQ(released, 1) << "the one that is being opened is read";
  opener.Push(Pending(1, frames[3], &released), &slow);
  slow.Shut(false);
  const std::vector<PendingFrame> opened = Await(opener, 2);
  ASSERT_EQ(opened.size(), 2u);
  EXPECT_EQ(opened[0].id, 2u);
  EXPECT_EQ(BytesOf(opened[0]), std::vector<uint8_t>{21});
  EXPECT_EQ(BytesOf(opened[1]), std::vector<uint8_t>{41}) << "the next try's";
  EXPECT_EQ(released, 2);
}

TEST(FrameOpener, OpensAsManyAtATimeAsItHasThreads) {
  SlowOpener slow;
  slow.Shut(true);
  FrameOpener opener(/*threads=*/3, [] {});
  int released = 0;
  std::vector<FrameStore::Frame> frames;
  for (uint8_t i = 0; i < 9; ++i) frames.push_back(SmallFrame(i));
  for (SequenceId i = 0; i < frames.size(); ++i) opener.Push(Pending(1 + i / 3, frames[i], &released), &slow);
  slow.AwaitBegun(3);  // the first sequence's
  opener.Drop(1);
  EXPECT_EQ(released, 0) << "they are read";
  opener.Drop(3);
  EXPECT_EQ(released, 3) << "none of them has been begun";
  slow.Shut(false);
  std::vector<PendingFrame> opened = Await(opener, 3);
  ASSERT_EQ(opened.size(), 3u);
  std::vector<uint8_t> bytes;
  for (const PendingFrame& frame : opened) {
    EXPECT_EQ(frame.id, 2u);
    bytes.push_back(BytesOf(frame).front());
  }
  EXPECT_THAT(bytes, ::testing::UnorderedElementsAre(4, 5, 6));
  opener.Stop();
  EXPECT_EQ(released, 6);
}

TEST(FrameOpener, ChecksBeforeItOpens) {
  SlowOpener slow;
  FrameOpener opener(/*threads=*/2, [] {});
  int released = 0;
  FrameStore::Frame torn = SmallFrame(10);
  torn.payload[0] = 11;
  opener.Push(Pending(1, torn, &released), &slow);
  const std::vector<PendingFrame> opened = Await(opener, 1);
  ASSERT_EQ(opened.size(), 1u);
  EXPECT_EQ(opened[0].opened->status().code(), absl::StatusCode::kDataLoss);
}

TEST(FrameOpener, ReleasesAllAtItsEnd) {
  SlowOpener slow;
  slow.Shut(true);
  int released = 0;
  const FrameStore::Frame frame = SmallFrame(10);
  {
    FrameOpener opener(/*threads=*/2, [] {});
    for (int i = 0; i < 5; ++i) opener.Push(Pending(1, frame, &released), &slow);
    slow.AwaitBegun(1);
    std::thread later([&slow] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      slow.Shut(false);
    });
    opener.Stop();
    later.join();
    EXPECT_EQ(released, 5);
    opener.Push(Pending(1, frame, &released), &slow);
  }
  EXPECT_EQ(released, 6);
}

class OpenedHandoff : public EngineTest {
 protected:
  OpenedHandoff() : codec_(*model_), question_(Questions(1)[0]), to_(question_.prompt.size() - 1) {
    const auto encoder = OpenEncoders("raw", "", *model_).value();
    for (auto& frame : PrefillFrames(*encoder, question_, to_)) frames_.push_back(Closed(std::move(frame)));
  }
  ~OpenedHandoff() override { engine_.reset(); }  // which may still open frames
  std::shared_ptr<Recorder> Begin() {
    auto recorder = std::make_shared<Recorder>();
    id_ = engine_->Generate({question_.prompt, {.max_tokens = 24}, kNever, &codec_, to_}, recorder).value();
    return recorder;
  }
  // `frames` must outlive the engine.
  void Send(const std::vector<FrameStore::Frame>& frames) {
    for (const auto& frame : frames) {
      engine_->ApplyFrame(id_, DecodeFrameHeader(frame.header).value(), frame.header, frame.payload,
                          [this] { ++released_; });
    }
  }

  OpenedDecoders codec_;
  const Question question_;
  const int64_t to_;
  std::vector<FrameStore::Frame> frames_;
  SequenceId id_ = 0;
  std::atomic<size_t> released_{0};
};

TEST_F(OpenedHandoff, HoldsUpNoStepOfOthers) {
  codec_.slow.Shut(true);
  const auto recorder = Begin();
  Send(frames_);
  codec_.slow.AwaitBegun(1);
  const auto other = Ask(Questions(2)[1]);
  ASSERT_TRUE(other->WaitDone());
  EXPECT_TRUE(other->status().ok());
  EXPECT_TRUE(recorder->events().empty());
  codec_.slow.Shut(false);
  ASSERT_TRUE(recorder->WaitDone());
  EXPECT_EQ(recorder->tokens(), WithoutEnd(question_.answer));
  EXPECT_FALSE(recorder->result().fell_back);
  EXPECT_EQ(recorder->result().times.prefill, 0.0);
  EXPECT_EQ(released_, frames_.size());
}

TEST_F(OpenedHandoff, FallsBackWhereAPayloadHoldsNothing) {
  codec_.slow.bad_layer = 1;
  const auto recorder = Begin();
  Send(frames_);
  ASSERT_TRUE(recorder->WaitDone());
  EXPECT_EQ(recorder->tokens(), WithoutEnd(question_.answer));
  EXPECT_TRUE(recorder->result().fell_back);
  EXPECT_THAT(std::string(recorder->result().fallback_reason.message()), HasSubstr("no picture"));
}

TEST_F(OpenedHandoff, OpensNoFrameOfMoreTokensThanAreHandedOver) {
  FrameHeader header = DecodeFrameHeader(frames_[0].header).value();
  header.coverage.tokens = 1 << 30;
  const auto bytes = EncodeFrameHeader(header, frames_[0].payload);
  const std::vector<FrameStore::Frame> large = {{{bytes.begin(), bytes.end()}, frames_[0].payload}};
  const auto recorder = Begin();
  Send(large);
  ASSERT_TRUE(recorder->WaitDone());
  EXPECT_EQ(recorder->tokens(), WithoutEnd(question_.answer));
  EXPECT_TRUE(recorder->result().fell_back);
  EXPECT_EQ(codec_.slow.begun(), 0);
}

TEST_F(OpenedHandoff, BeginsAgainWithoutTheFramesOfItsFirstTry) {
  codec_.slow.Shut(true);
  const auto recorder = Begin();
  std::vector<FrameStore::Frame> first_try;  // which would stay, if they came first
  for (const FrameStore::Frame& frame : frames_) first_try.push_back(Closed(frame));
  Send(first_try);
  codec_.slow.AwaitBegun(1);
  engine_->RestartHandoff(id_);
  codec_.slow.Shut(false);
  Send(frames_);
  ASSERT_TRUE(recorder->WaitDone());
  EXPECT_EQ(recorder->tokens(), WithoutEnd(question_.answer));
  EXPECT_FALSE(recorder->result().fell_back);
  engine_.reset();
  EXPECT_EQ(released_, 2 * frames_.size());
}

TEST_F(OpenedHandoff, EndsWithFramesThatAreBeingOpened) {
  codec_.slow.Shut(true);
  const auto recorder = Begin();
  Send(frames_);
  codec_.slow.AwaitBegun(1);
  std::thread later([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    codec_.slow.Shut(false);
  });
  engine_.reset();
  later.join();
  ASSERT_TRUE(recorder->WaitDone());
  EXPECT_EQ(recorder->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(released_, frames_.size());
}

}  // namespace
}  // namespace aludel::engine_testing
