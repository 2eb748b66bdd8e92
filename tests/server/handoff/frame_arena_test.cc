#include "server/handoff/frame_arena.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/open_transport.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

class NoMessages : public MessageHandler {
 public:
  absl::Span<uint8_t> OnHeader(MessageId, absl::Span<const uint8_t>, size_t) override { return {}; }
  void OnPayload(MessageId, absl::Status) override {}
};

class Arena : public ::testing::Test {
 protected:
  NoMessages no_messages_;
  std::unique_ptr<Transport> transport_ = *OpenTransport({.kind = "loopback"}, &no_messages_);
  std::unique_ptr<FrameArena> arena_ = *FrameArena::Create(transport_.get(), 256);
};

TEST_F(Arena, ExtentsDoNotOverlapAndReturn) {
  {
    const FrameExtent a = *arena_->Reserve(64);
    const FrameExtent b = *arena_->Reserve(1);
    EXPECT_GE(b.bytes().data(), a.bytes().data() + a.bytes().size());
    EXPECT_EQ(arena_->bytes_reserved(), 128);
  }
  EXPECT_EQ(arena_->bytes_reserved(), 0);
  EXPECT_TRUE(arena_->Reserve(256).ok());
}

TEST_F(Arena, NeighborsMergeInAnyOrder) {
  std::vector<FrameExtent> extents;
  for (int i = 0; i < 4; ++i) extents.push_back(*arena_->Reserve(64));
  for (const int i : {1, 3, 2, 0}) extents[i] = FrameExtent();
  extents.clear();
  EXPECT_TRUE(arena_->Reserve(256).ok());
}

TEST_F(Arena, WhatDoesNotFitIsRefusedWithNumbers) {
  const FrameExtent a = *arena_->Reserve(64);
  const auto refused = arena_->Reserve(256);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status()));
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("256 bytes are wanted, the largest of its 1 free pieces has 192 of 256"));
}

}  // namespace
}  // namespace aludel
