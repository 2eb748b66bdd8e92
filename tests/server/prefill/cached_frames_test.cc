#include "server/prefill/cached_frames.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Writes down the first token of each frame, and refuses frames after a while.
class Sink : public FrameSink {
 public:
  absl::StatusOr<absl::Span<uint8_t>> Reserve(size_t max_bytes) override {
    if (tokens.size() == fails_after) return absl::UnavailableError("the link has gone");
    memory_.assign(max_bytes, 0);
    return absl::MakeSpan(memory_);
  }
  absl::Status Commit(const FrameCoverage& coverage, size_t bytes) override {
    tokens.push_back(coverage.token_begin);
    EXPECT_EQ(memory_, std::vector<uint8_t>(bytes, static_cast<uint8_t>(coverage.token_begin)));
    return absl::OkStatus();
  }

  std::vector<uint32_t> tokens;
  size_t fails_after = 100;

 private:
  std::vector<uint8_t> memory_;
};

FrameCache::Frames Chunk(std::vector<uint32_t> tokens) {
  auto frames = std::make_shared<std::vector<CachedFrame>>();
  for (const uint32_t token : tokens) {
    frames->push_back({{.token_begin = token, .tokens = 1}, std::vector<uint8_t>(8, token)});
  }
  return frames;
}

CachedFrames ThreeFrames() { return CachedFrames({.tokens = 3, .chunks = {Chunk({0, 1}), Chunk({2})}}); }

bool Always(size_t) { return true; }

TEST(CachedFrames, LeaveInOrderOverAllChunks) {
  CachedFrames frames = ThreeFrames();
  Sink sink;
  EXPECT_EQ(frames.tokens(), 3);
  EXPECT_TRUE(*frames.SendTo(sink, Always));
  EXPECT_THAT(sink.tokens, ElementsAre(0, 1, 2));
  EXPECT_TRUE(*frames.SendTo(sink, Always)) << "nothing is sent twice";
  EXPECT_EQ(sink.tokens.size(), 3);
}

TEST(CachedFrames, GoOnWithTheFrameThatHadNoRoom) {
  CachedFrames frames = ThreeFrames();
  Sink sink;
  int room = 1;
  const auto has_room = [&](size_t weight) {
    EXPECT_GE(weight, 8);
    return room-- > 0;
  };
  EXPECT_FALSE(*frames.SendTo(sink, has_room));
  EXPECT_THAT(sink.tokens, ElementsAre(0));
  room = 1;
  EXPECT_FALSE(*frames.SendTo(sink, has_room));
  EXPECT_THAT(sink.tokens, ElementsAre(0, 1));
  room = 1;
  EXPECT_TRUE(*frames.SendTo(sink, has_room));
  EXPECT_THAT(sink.tokens, ElementsAre(0, 1, 2));
}

TEST(CachedFrames, EndWithTheSinksError) {
  CachedFrames frames = ThreeFrames();
  Sink sink;
  sink.fails_after = 2;
  EXPECT_TRUE(absl::IsUnavailable(frames.SendTo(sink, Always).status()));
  EXPECT_THAT(sink.tokens, ElementsAre(0, 1));
}

TEST(CachedFrames, OfAMissThereAreNone) {
  CachedFrames none;
  Sink sink;
  EXPECT_TRUE(*none.SendTo(sink, Always));
  EXPECT_EQ(none.tokens(), 0);
  EXPECT_THAT(sink.tokens, IsEmpty());
}

}  // namespace
}  // namespace aludel
