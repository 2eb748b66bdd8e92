#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/pinned_memory.h"
#include "runtime/codec/handoff.h"
#include "runtime/codec/open_codec.h"
#include "runtime/codec/staging_ring.h"
#include "runtime/evaluate/in_process_handoff.h"
#include "tests/kernels/cuda/fake/fake_cuda.h"
#include "tests/testing/test_model.h"

// Frames that are enqueued, on a device that works whenever it likes.
namespace aludel::cuda::fake {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kTokens = 44;

// What applying a handoff asked of the host, and what it came to.
struct Applied {
  Counts counts;
  std::vector<float> logits;
};

class FakeCudaFrames : public ::testing::Test {
 protected:
  FakeCudaFrames() {
    const uint64_t seed = std::random_device{}();
    RecordProperty("seed", std::to_string(seed));
    std::mt19937_64 random(seed);
    for (int64_t i = 0; i < kTokens; ++i) prompt_.push_back(static_cast<int32_t>(3 + random() % 490));
  }

  // The frames of the prompt, in an order of their own and in pinned memory, as a receiver has them.
  void Encode(const std::string& format, const std::string& artifact) {
    encoders_ = OpenEncoders(format, artifact, base_.model()).value();
    decoders_ = OpenDecoders(format, artifact, chat_.model()).value();
    FrameStore store(encoders_->spec());
    const EncodeTask task{encoders_.get(), &store, HandedOver(encoders_->spec(), kTokens).end};
    ASSERT_TRUE(
        EncodePrompt(base_.model(), *pages_, prompt_, kTokens - 1, absl::MakeConstSpan(&task, 1)).ok());
    frames_ = store.frames();
  }

  // With `waiting`, each frame alone.
  Applied Apply(bool waiting) {
    Applied applied;
    Transformer& model = chat_.model();
    // Pages that nothing has been written to.
    const auto pool = BlockPool::Create(chat_.device(), model.MakeKvLayout(4, 16, DType::kBf16)).value();
    BlockTable table;
    EXPECT_TRUE(table.Grow(*pool, kTokens).ok());
    const TokenRange range = HandedOver(decoders_->spec(), kTokens);
    const KvTarget target{&model, pool.get(), table.ids(), prompt_, range.end, range.begin};
    auto decoder = decoders_->NewDecoder().value();
    EXPECT_TRUE(BeginHandoff(*decoder, target).ok());
    std::vector<std::vector<uint8_t>> payloads;
    for (const StoredFrame& frame : frames_) payloads.push_back(frame.payload);
    std::vector<std::unique_ptr<PinnedMemory>> pinned;
    for (auto& payload : payloads) {
      pinned.push_back(std::make_unique<PinnedMemory>(chat_.device(), absl::MakeSpan(payload)));
      EXPECT_TRUE(pinned.back()->status().ok());
    }
    ResetCounts();
    for (size_t i = 0; i < frames_.size(); ++i) {
      const FrameHeader header = DecodeFrameHeader(frames_[i].header).value();
      const absl::Status status = decoder->Apply(header.coverage, payloads[i], target);
      EXPECT_TRUE(status.ok()) << status;
      if (waiting) {
        EXPECT_TRUE(model.device()->Synchronize(model.stream()).ok());
      }
    }
    applied.counts = counts();
    decoder.reset();  // as a handoff ends: nothing waits for the device
    EXPECT_TRUE(
        RunTokens(model, *pool, table.ids(), prompt_, range.end, kTokens, nullptr, &applied.logits).ok());
    return applied;
  }

  TestModel base_{"deploy/demo/base", {.max_rows = 16}, DType::kBf16, kTokens};
  const std::unique_ptr<BlockPool> pages_ =
      BlockPool::Create(base_.device(), base_.model().MakeKvLayout(3, 16, DType::kBf16)).value();
  TestModel chat_{"deploy/demo/chat", {.max_rows = 16}, DType::kBf16, kTokens};
  std::vector<int32_t> prompt_;
  std::unique_ptr<EncoderFactory> encoders_;
  std::unique_ptr<DecoderFactory> decoders_;
  std::vector<StoredFrame> frames_;
};

TEST_F(FakeCudaFrames, AreReconstructedWithoutWaitingForTheDevice) {
  struct Format {
    const char* name;
    const char* artifact;
    bool staged;  // its bytes are made on the host, in as many slots as a ring has
  };
  const Format formats[] = {
      {"raw", "", false},
      {"int8", "", false},
      {"int4", "", false},
      {"lossless", "", true},
      {"scd", "deploy/demo/codec", false},
      {"aludel-p0", "deploy/demo/codec", true},
      {"aludel-p2", "deploy/demo/codec", true},
  };
  for (const auto& [name, artifact, staged] : formats) {
    SCOPED_TRACE(name);
    Encode(name, artifact);
    const auto frames = static_cast<int64_t>(frames_.size());
    ASSERT_GT(frames, 2);
    const Applied waiting = Apply(true), going_on = Apply(false);
    EXPECT_EQ(going_on.logits, waiting.logits);
    EXPECT_EQ(going_on.counts.launches, waiting.counts.launches);
    EXPECT_GE(waiting.counts.waits, frames);
    constexpr int64_t kSlots = 3;
    EXPECT_LE(going_on.counts.waits, staged ? std::max<int64_t>(0, frames - kSlots) : 0);
    EXPECT_EQ(going_on.counts.allocations, 0);
    std::printf("%-10s %3ld frames: %5.1f launches, %4.1f copies, %4.2f waits each, %.2f before\n", name,
                frames, static_cast<double>(going_on.counts.kernels()) / frames,
                static_cast<double>(going_on.counts.copies) / frames,
                static_cast<double>(going_on.counts.waits) / frames,
                static_cast<double>(waiting.counts.waits) / frames);
  }
}

// What cannot be enqueued is an error of the frame that asked for it, at once and of no other.
TEST_F(FakeCudaFrames, ThatCannotBeEnqueuedFailAlone) {
  Encode("raw", "");
  Transformer& model = chat_.model();
  // As many blocks as one call may list, and more.
  std::vector<BlockId> blocks(chat_.table().ids().begin(), chat_.table().ids().end());
  blocks.resize(1100000, blocks.front());
  const TokenRange range = HandedOver(decoders_->spec(), kTokens);
  const KvTarget good{&model, &chat_.pool(), chat_.table().ids(), prompt_, range.end, range.begin};
  KvTarget bad = good;
  bad.blocks = blocks;
  const auto decoder = decoders_->NewDecoder().value();
  const FrameCoverage coverage = DecodeFrameHeader(frames_[0].header)->coverage;
  const absl::Status failed = decoder->Apply(coverage, frames_[0].payload, bad);
  EXPECT_EQ(failed.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("ids or blocks"));
  EXPECT_TRUE(decoder->Apply(coverage, frames_[0].payload, good).ok());
  EXPECT_TRUE(model.device()->Synchronize(model.stream()).ok());
}

class StagingRingDeathTest : public ::testing::Test {
 protected:
  // Copies `bytes_` of a value to the device; `marked`: the ring is told when they are read.
  void Send(uint8_t value, bool marked) {
    std::vector<uint8_t>& bytes = ring_.Next(kBytes);
    bytes.assign(kBytes, value);
    device_->CopyToDevice(to_.data(), bytes.data(), kBytes, Stream{});
    if (marked) ring_.Enqueued();
  }

  static constexpr size_t kBytes = 8192;
  const std::unique_ptr<Device> device_ = OpenTestDevice().value();
  const Buffer to_ = device_->Allocate(kBytes).value();
  StagingRing ring_{device_.get(), Stream{}, kBytes};
};

TEST_F(StagingRingDeathTest, SlotsAreWrittenOnceTheDeviceHasReadThem) {
  for (int i = 0; i < 200; ++i) Send(static_cast<uint8_t>(i), /*marked=*/true);
  EXPECT_GT(ring_.waits(), 0);
  EXPECT_LT(ring_.waits(), 200);
  std::vector<uint8_t> found(kBytes);
  device_->CopyToHost(found.data(), to_.data(), kBytes, Stream{});
  ASSERT_TRUE(device_->Synchronize(Stream{}).ok());
  EXPECT_EQ(found, std::vector<uint8_t>(kBytes, 199));
}

TEST_F(StagingRingDeathTest, WithoutTheWaitTheRuntimeComplains) {
  EXPECT_DEATH(
      {
        for (int i = 0; i < 200; ++i) Send(static_cast<uint8_t>(i), /*marked=*/false);
        device_->Synchronize(Stream{}).IgnoreError();
      },
      "the host has written what a copy was still to read");
}

TEST_F(StagingRingDeathTest, SlotsGrowWhereMoreIsAskedFor) {
  const std::vector<uint8_t>* first = nullptr;
  for (const size_t bytes : {size_t{1}, kBytes, 4 * kBytes, size_t{7}}) {
    std::vector<uint8_t>& slot = ring_.Next(bytes);
    EXPECT_EQ(first == nullptr ? &slot : first, &slot) << "nothing was enqueued";
    first = &slot;
    const uint8_t* const data = slot.data();
    slot.resize(bytes);
    EXPECT_EQ(slot.data(), data) << "a pinned slot has moved";
  }
}

}  // namespace
}  // namespace aludel::cuda::fake
