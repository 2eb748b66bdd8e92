#include "server/handoff/frame_ring.h"

#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "transport/open_transport.h"

namespace aludel {
namespace {

class Nobody : public MessageHandler {
 public:
  absl::Span<uint8_t> OnHeader(MessageId, absl::Span<const uint8_t>, size_t) override { return {}; }
  void OnPayload(MessageId, absl::Status) override {}
};

class Ring : public ::testing::Test {
 protected:
  Nobody nobody_;
  std::unique_ptr<Transport> transport_ = *OpenTransport({.kind = "loopback"}, &nobody_);
  std::unique_ptr<FrameArena> arena_ = *FrameArena::Create(transport_.get(), 1024);
  FrameRing ring_{*arena_->Reserve(256)};
};

TEST_F(Ring, PlacesComeRoundAgain) {
  const auto a = ring_.Take(100);
  const auto b = ring_.Take(64);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(b->data() - a->data(), 128);
  EXPECT_EQ(ring_.held(), 192);
  EXPECT_FALSE(ring_.Take(65));
  ring_.Return(a->data());
  const auto c = ring_.Take(65);  // not behind b, where there is one line, but where a was
  ASSERT_TRUE(c);
  EXPECT_EQ(c->data(), a->data());
  EXPECT_FALSE(ring_.Take(1));
  EXPECT_EQ(ring_.returned(), 128);
}

TEST_F(Ring, RoomComesBackInOrder) {
  const auto a = ring_.Take(128);
  const auto b = ring_.Take(128);
  ring_.Return(b->data());
  EXPECT_EQ(ring_.returned(), 0);
  EXPECT_FALSE(ring_.Take(1));
  ring_.Return(a->data());
  EXPECT_EQ(ring_.returned(), 256);
  EXPECT_EQ(ring_.held(), 0);
  EXPECT_TRUE(ring_.Take(256));
}

TEST_F(Ring, ALastPlaceThatNeedsLessGivesTheRestBack) {
  const auto a = ring_.Take(256);
  ASSERT_TRUE(a);
  ring_.Shrink(a->data(), 3);
  EXPECT_EQ(ring_.held(), 64);
  EXPECT_TRUE(ring_.Take(192));
}

TEST_F(Ring, APlaceWithAnotherBehindItKeepsItsRoomUntilItComesBack) {
  const auto a = ring_.Take(128);
  const auto b = ring_.Take(64);
  ASSERT_TRUE(a && b);
  ring_.Shrink(a->data(), 3);
  EXPECT_EQ(ring_.held(), 192);
  ring_.Return(a->data());
  EXPECT_EQ(ring_.held(), 64);
  const auto c = ring_.Take(128);
  ASSERT_TRUE(c);
  EXPECT_EQ(c->data(), a->data());
}

TEST_F(Ring, RefusesWhatCanNeverFit) {
  EXPECT_FALSE(ring_.Take(257));
  EXPECT_FALSE(ring_.Take(0));
}

// What credits rest on: a window of 256 bytes, frames of at most 64, never more than 192 of them held.
TEST_F(Ring, NeverRefusesWithinTheCredit) {
  std::mt19937 draw(7);
  std::deque<std::pair<const uint8_t*, size_t>> held;
  size_t weight = 0;
  for (int i = 0; i < 5000; ++i) {
    const size_t bytes = 1 + draw() % 64;
    while (weight + FrameRing::Weight(bytes) > 192 || (!held.empty() && draw() % 3 == 0)) {
      ring_.Return(held.front().first);
      weight -= held.front().second;
      held.pop_front();
    }
    const auto place = ring_.Take(bytes);
    ASSERT_TRUE(place) << i;
    held.emplace_back(place->data(), FrameRing::Weight(bytes));
    weight += held.back().second;
  }
}

}  // namespace
}  // namespace aludel
