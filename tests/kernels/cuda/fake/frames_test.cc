#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/pinned_memory.h"
#include "runtime/codec/coverage.h"
#include "runtime/codec/handoff.h"
#include "runtime/codec/open_codec.h"
#include "runtime/codec/outbox.h"
#include "runtime/codec/staging_ring.h"
#include "runtime/engine/encoding_observer.h"
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

// Registered memory, as a sender's. Keeps payloads.
class PinnedSink : public FrameSink {
 public:
  explicit PinnedSink(Device* device) : pinned_(device, absl::MakeSpan(memory_)) {}

  absl::StatusOr<absl::Span<uint8_t>> Reserve(size_t max_bytes) override {
    if (memory_.size() - used_ < max_bytes)
      return absl::ResourceExhaustedError("the test's memory is too small");
    reserved_.push_back(absl::MakeSpan(memory_).subspan(used_, max_bytes));
    used_ += max_bytes;
    return reserved_.back();
  }
  absl::Status Commit(const FrameCoverage&, size_t bytes) override {
    const absl::Span<const uint8_t> payload = reserved_.front().first(bytes);
    payloads.emplace_back(payload.begin(), payload.end());
    reserved_.pop_front();
    return absl::OkStatus();
  }

  std::vector<std::vector<uint8_t>> payloads;

 private:
  std::vector<uint8_t> memory_ = std::vector<uint8_t>(size_t{4} << 20);
  const PinnedMemory pinned_;
  size_t used_ = 0;
  std::deque<absl::Span<uint8_t>> reserved_;  // oldest first
};

// Encodes tokens before `end`, and counts what that asks of the host before the last layer. Keys and values are where they happen
// to be.
class CountedEncoding : public LayerObserver {
 public:
  CountedEncoding(const EncoderFactory& codec, int64_t end, int layers, FrameSink* sink)
      : head_(codec.spec().recomputed_head_tokens),
        end_(end),
        layers_(layers),
        encoder_(codec.NewEncoder().value()),
        sink_(sink) {}

  absl::Status OnLayer(const LayerSlice& slice) override {
    const auto part = ClipSlice(slice, head_, end_);
    if (!part.has_value()) return absl::OkStatus();
    const Counts before = counts();
    const absl::Status status = encoder_->Encode(*part, *sink_);
    const Counts after = counts();
    allocations += after.allocations - before.allocations;
    (slice.layer + 1 < layers_ ? waits : last_waits) += after.waits - before.waits;
    passes += slice.layer == 0;
    return status;
  }

  int64_t waits = 0;       // before the last layer
  int64_t last_waits = 0;  // in it
  int64_t allocations = 0;
  int64_t passes = 0;

 private:
  const int64_t head_, end_;
  const int layers_;
  const std::unique_ptr<KvEncoder> encoder_;
  FrameSink* const sink_;
};

struct Format {
  const char* name;
  const char* artifact;
  bool staged;  // its bytes are made on the host, in as many slots as there are
};
constexpr Format kFormats[] = {
    {"raw", "", false},
    {"int8", "", false},
    {"int4", "", false},
    {"lossless", "", true},
    {"scd", "deploy/demo/codec", false},
    {"aludel-p0", "deploy/demo/codec", true},
    {"aludel-p2", "deploy/demo/codec", true},
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
    for (const WireFrame& frame : frames_) payloads.push_back(frame.payload);
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
  std::vector<WireFrame> frames_;
};

// A whole pass is enqueued; only then is it waited for, as its frames are shipped.
TEST_F(FakeCudaFrames, AreEncodedWithoutWaitingForTheDevice) {
  Transformer& model = base_.model();
  const int layers = model.config().layers;
  for (const Format& format : kFormats) {
    SCOPED_TRACE(format.name);
    const auto encoders = OpenEncoders(format.name, format.artifact, model).value();
    const int64_t end = HandedOver(encoders->spec(), kTokens).end;
    // The same, with a wait around each layer.
    FrameStore waiting(encoders->spec());
    double seconds = 0;
    const EncodeTask task{encoders.get(), &waiting, end, &seconds};
    ASSERT_TRUE(EncodePrompt(model, *pages_, prompt_, kTokens - 1, absl::MakeConstSpan(&task, 1)).ok());
    std::vector<std::vector<uint8_t>> want;
    for (const WireFrame& frame : waiting.frames()) want.push_back(frame.payload);
    const auto frames = static_cast<int64_t>(want.size());
    ASSERT_GT(frames, 2);

    const auto encode = [&](FrameSink* sink) {
      CountedEncoding encoding(*encoders, end, layers, sink);
      BlockTable table;
      EXPECT_TRUE(table.Grow(*pages_, kTokens).ok());
      EXPECT_TRUE(RunTokens(model, *pages_, table.ids(), prompt_, 0, kTokens - 1, &encoding, nullptr).ok());
      constexpr auto kSlots = static_cast<int64_t>(FrameOutbox::kStaged);
      const int64_t beyond = std::max<int64_t>(0, frames - kSlots * encoding.passes);
      EXPECT_LE(encoding.waits, format.staged ? beyond : 0);
      EXPECT_LE(encoding.waits + encoding.last_waits, frames);
      EXPECT_EQ(encoding.allocations, 0);
      return encoding.waits;
    };
    PinnedSink pinned(base_.device());
    const int64_t waits = encode(&pinned);
    EXPECT_EQ(pinned.payloads, want);
    FrameStore pageable(encoders->spec());
    encode(&pageable);
    std::vector<std::vector<uint8_t>> found;
    for (const WireFrame& frame : pageable.frames()) found.push_back(frame.payload);
    EXPECT_EQ(found, want);
    std::printf("%-10s %3ld frames: %4.2f waits each before a pass is enqueued\n", format.name, frames,
                static_cast<double>(waits) / static_cast<double>(frames));
  }
}

// Encoders of one codec gather in the same rows, and those of another want keys and values elsewhere.
TEST_F(FakeCudaFrames, AreTheSameWhoeverSharesTheStep) {
  // Products of 9 to 64 rows give each row the same bits.
  TestModel shared("deploy/demo/base", {.max_rows = 64}, DType::kBf16, 64);
  Transformer& model = shared.model();
  constexpr const char* kArtifact = "deploy/demo/codec";
  const auto p0 = OpenEncoders("aludel-p0", kArtifact, model).value();
  const auto p2 = OpenEncoders("aludel-p2", kArtifact, model).value();
  const EncoderFactory* const codecs[] = {p2.get(), p2.get(), p0.get()};
  constexpr int64_t kSizes[] = {13, 16, 11};
  constexpr int64_t kBegins[] = {0, 13, 29};
  using Payloads = std::vector<std::vector<uint8_t>>;
  const auto encode = [&](const std::vector<int>& which) {
    std::vector<FrameStore> stores;
    for (const int i : which) stores.emplace_back(codecs[i]->spec());
    std::vector<std::unique_ptr<EncodingObserver>> observers;
    std::vector<BatchItem> items;
    for (size_t at = 0; at < which.size(); ++at) {
      const int i = which[at];
      observers.push_back(
          std::make_unique<EncodingObserver>(0, codecs[i]->NewEncoder().value(), &stores[at]));
      BatchItem& item = items.emplace_back();
      item.ids = absl::MakeConstSpan(prompt_).subspan(kBegins[i], kSizes[i]);
      item.blocks = shared.table().ids().subspan(i, 1);
      item.observer = observers.back().get();
    }
    std::vector<float> logits;
    EXPECT_TRUE(model.Forward(absl::MakeSpan(items), shared.pool(), &logits).ok());
    std::vector<Payloads> payloads;
    for (size_t at = 0; at < which.size(); ++at) {
      EXPECT_TRUE(items[at].observer_status.ok()) << items[at].observer_status;
      Payloads& of = payloads.emplace_back();
      for (const WireFrame& frame : stores[at].frames()) of.push_back(frame.payload);
      EXPECT_FALSE(of.empty());
    }
    return payloads;
  };
  std::vector<Payloads> alone;
  for (const int i : {0, 1, 2}) alone.push_back(encode({i}).front());
  EXPECT_NE(alone[0], alone[1]);
  for (const std::vector<int>& which : {std::vector{0, 1}, std::vector{2, 1}, std::vector{2, 0, 1}}) {
    const std::vector<Payloads> together = encode(which);
    for (size_t at = 0; at < which.size(); ++at) EXPECT_EQ(together[at], alone[which[at]]);
  }
}

TEST_F(FakeCudaFrames, AreReconstructedWithoutWaitingForTheDevice) {
  for (const auto& [name, artifact, staged] : kFormats) {
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
