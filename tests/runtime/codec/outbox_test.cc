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
    EXPECT_TRUE(reserved_.empty()) << "one reservation at a time";
    if (full) return absl::ResourceExhaustedError("full");
    reserved_.resize(max_bytes);
    return absl::MakeSpan(reserved_);
  }
  absl::Status Commit(const FrameCoverage& coverage, size_t bytes) override {
    layers.push_back(coverage.first_layer);
    payloads.emplace_back(reserved_.begin(), reserved_.begin() + static_cast<ptrdiff_t>(bytes));
    reserved_.clear();
    return absl::OkStatus();
  }

  void Waited(double seconds) override { waited += seconds; }

  bool full = false;
  double waited = 0;
  std::vector<int> layers;
  std::vector<std::vector<uint8_t>> payloads;

 private:
  std::vector<uint8_t> reserved_;
};

class OutboxTest : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = 4096;

  OutboxTest()
      : model_("deploy/demo/chat", {.compute = DType::kF32, .max_rows = 16}, DType::kBf16, 16),
        outbox_(FrameOutbox::Create(model_.model(), kBytes).value()) {}

  // Fills the wire with `layer`, as work on the model's stream.
  std::vector<uint8_t> Fill(int layer, size_t bytes) {
    const absl::StatusOr<uint8_t*> wire = outbox_->Next(sink_);
    EXPECT_TRUE(wire.ok()) << wire.status();
    host_.emplace_back(bytes);
    std::iota(host_.back().begin(), host_.back().end(), static_cast<uint8_t>(layer));
    model_.device()->CopyToDevice(*wire, host_.back().data(), bytes, model_.model().stream());
    return host_.back();
  }
  // Whether work on this device runs only when it is waited for.
  bool late() { return model_.device()->name() == "guarded"; }

  std::list<std::vector<uint8_t>> host_;  // until the streams that read it are gone
  TestModel model_;
  Sink sink_;
  std::unique_ptr<FrameOutbox> outbox_;
};

TEST_F(OutboxTest, ShipsAFrameWhenTheNextIsMadeAndTheLastAtOnce) {
  std::vector<std::vector<uint8_t>> want;
  for (const int layer : {0, 1, 2}) {
    want.push_back(Fill(layer, kBytes - 7 * layer));
    ASSERT_TRUE(outbox_->Add({static_cast<uint16_t>(layer)}, want.back().size(), layer == 2, sink_).ok());
    if (late() && layer < 2) {
      ASSERT_TRUE(outbox_->Poll(sink_).ok());
      EXPECT_EQ(sink_.payloads.size(), layer) << "shipped before its copy has ended";
    }
  }
  EXPECT_EQ(sink_.payloads, want);
  EXPECT_THAT(sink_.layers, ElementsAre(0, 1, 2));
  EXPECT_GT(sink_.waited, 0);
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

TEST_F(OutboxTest, WhatFailsItsCheckIsNotShipped) {
  Fill(1, 10);
  const auto refuse = [](absl::Span<const uint8_t> bytes) {
    return bytes[9] == 10 ? absl::InternalError("ten") : absl::OkStatus();
  };
  absl::Status status = outbox_->Add({1}, 10, /*last=*/false, sink_, refuse);
  if (status.ok()) status = outbox_->Next(sink_).status();
  EXPECT_EQ(status, absl::InternalError("ten"));
  EXPECT_TRUE(sink_.payloads.empty());
}

TEST_F(OutboxTest, ASinkWithoutRoomGetsNothing) {
  sink_.full = true;
  Fill(1, 10);
  EXPECT_EQ(outbox_->Add({1}, 10, /*last=*/true, sink_).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(outbox_->Next(sink_).ok());
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
