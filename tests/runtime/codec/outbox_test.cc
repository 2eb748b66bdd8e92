#include "runtime/codec/outbox.h"

#include <algorithm>
#include <list>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_model.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;

// Keeps payloads, and what was reserved and never committed.
class Sink : public FrameSink {
 public:
  absl::StatusOr<absl::Span<uint8_t>> Reserve(size_t max_bytes) override {
    if (full) return absl::ResourceExhaustedError("full");
    return absl::MakeSpan(reserved_.emplace_back(max_bytes));
  }
  absl::Status Commit(const FrameCoverage& coverage, size_t bytes) override {
    layers.push_back(coverage.first_layer);
    payloads.emplace_back(reserved_.front().begin(),
                          reserved_.front().begin() + static_cast<ptrdiff_t>(bytes));
    reserved_.pop_front();
    return absl::OkStatus();
  }

  void Waited(double seconds) override { waited += seconds; }

  bool full = false;
  double waited = 0;
  std::vector<int> layers;
  std::vector<std::vector<uint8_t>> payloads;

 private:
  std::list<std::vector<uint8_t>> reserved_;  // oldest first
};

class OutboxTest : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = 4096;

  OutboxTest()
      : model_("deploy/demo/chat", {.compute = DType::kF32, .max_rows = 16}, DType::kBf16, 16),
        outbox_(FrameOutbox::Create(model_.model(), kBytes).value()) {}

  // Fills the wire with `layer`, as work on the model's stream.
  std::vector<uint8_t> Fill(int layer, size_t bytes) {
    uint8_t* const wire = outbox_->Next();
    host_.emplace_back(bytes);
    std::iota(host_.back().begin(), host_.back().end(), static_cast<uint8_t>(layer));
    model_.device()->CopyToDevice(wire, host_.back().data(), bytes, model_.model().stream());
    return host_.back();
  }
  // Whether work on this device runs only when it is waited for.
  bool late() { return model_.device()->name() == "guarded"; }

  std::list<std::vector<uint8_t>> host_;  // until the streams that read it are gone
  TestModel model_;
  Sink sink_;
  std::unique_ptr<FrameOutbox> outbox_;
};

TEST_F(OutboxTest, ShipsFramesOnceTheyAreCopiedAndTheLastAtOnce) {
  std::vector<std::vector<uint8_t>> want;
  for (const int layer : {0, 1, 2, 3}) {
    want.push_back(Fill(layer, kBytes - 7 * layer));
    ASSERT_TRUE(outbox_->Add({static_cast<uint16_t>(layer)}, want.back().size(), layer == 3, sink_).ok());
    // A copy of that device has ended when it is asked for a second time: with the next frame.
    if (late() && layer == 0) {
      EXPECT_TRUE(sink_.payloads.empty()) << "shipped before its copy has ended";
    }
  }
  EXPECT_EQ(sink_.payloads, want);
  EXPECT_THAT(sink_.layers, ElementsAre(0, 1, 2, 3));
  if (late()) {
    EXPECT_GT(sink_.waited, 0);
  }
}

TEST_F(OutboxTest, CodesOnTheHostWhatHasCome) {
  const std::vector<uint8_t> plain = Fill(5, 100);
  const auto reverse = [](absl::Span<const uint8_t> bytes, absl::Span<uint8_t> payload) {
    std::reverse_copy(bytes.begin(), bytes.end(), payload.begin());
    return bytes.size();
  };
  ASSERT_TRUE(outbox_->Add({5}, 100, {.max_bytes = 130, .code = reverse}, /*last=*/true, sink_).ok());
  EXPECT_THAT(sink_.payloads, ElementsAre(std::vector<uint8_t>(plain.rbegin(), plain.rend())));
}

TEST_F(OutboxTest, CodesMoreThanAreStaged) {
  std::vector<std::vector<uint8_t>> want;
  const int frames = 3 * static_cast<int>(FrameOutbox::kStaged);
  for (int layer = 0; layer < frames; ++layer) {
    want.push_back(Fill(layer, 200 + layer));
    want.back().push_back(static_cast<uint8_t>(layer));
    const auto sign = [layer](absl::Span<const uint8_t> bytes, absl::Span<uint8_t> payload) {
      std::copy(bytes.begin(), bytes.end(), payload.begin());
      payload[bytes.size()] = static_cast<uint8_t>(layer);
      return bytes.size() + 1;
    };
    ASSERT_TRUE(outbox_
                    ->Add({static_cast<uint16_t>(layer)}, want.back().size() - 1,
                          {.max_bytes = 300, .code = sign}, layer + 1 == frames, sink_)
                    .ok());
  }
  EXPECT_EQ(sink_.payloads, want);
}

TEST_F(OutboxTest, WhatFailsItsCheckIsNotShipped) {
  Fill(1, 10);
  const auto refuse = [](absl::Span<const uint8_t> bytes) {
    return bytes[9] == 10 ? absl::InternalError("ten") : absl::OkStatus();
  };
  absl::Status status = outbox_->Add({1}, 10, /*last=*/false, sink_, refuse);
  while (status.ok()) status = outbox_->Poll(sink_);
  EXPECT_EQ(status, absl::InternalError("ten"));
  EXPECT_TRUE(sink_.payloads.empty());
}

TEST_F(OutboxTest, ASinkWithoutRoomGetsNothing) {
  sink_.full = true;
  Fill(1, 10);
  EXPECT_EQ(outbox_->Add({1}, 10, /*last=*/true, sink_).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(sink_.payloads.empty());
}

TEST_F(OutboxTest, MayDieWithACopyUnderWay) {
  Fill(1, kBytes);
  ASSERT_TRUE(outbox_->Add({1}, kBytes, /*last=*/false, sink_).ok());
  outbox_.reset();
  if (late()) {
    EXPECT_TRUE(sink_.payloads.empty());
  }
}

}  // namespace
}  // namespace aludel
