#include "server/prefill/frame_cache.h"

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/prefill/frame_recorder.h"
#include "tests/testing/fake_codec.h"

namespace aludel {
namespace {

// Prompts of letters; the fake codec ships two layers. A chunk's payloads say which tokens they are of.
class Cache : public ::testing::Test {
 protected:
  static std::vector<int32_t> Prompt(const std::string& text) { return {text.begin(), text.end()}; }

  static std::vector<CachedFrame> Frames(const std::vector<int32_t>& prompt, uint32_t begin, uint32_t end) {
    const std::vector<uint8_t> payload(prompt.begin() + begin, prompt.begin() + end);
    return {{{0, 1, 0, begin, end - begin}, payload}, {{1, 1, 0, begin, end - begin}, payload}};
  }

  // In chunks of four tokens, from `begin` on.
  void Insert(FrameCache& cache, const std::string& text, int64_t begin = 0, const std::string& salt = "") {
    const std::vector<int32_t> prompt = Prompt(text);
    std::vector<CachedFrame> frames;
    for (size_t at = begin; at < prompt.size(); at += 4) {
      for (CachedFrame& frame : Frames(prompt, at, std::min(at + 4, prompt.size()))) {
        frames.push_back(std::move(frame));
      }
    }
    cache.Insert(codec_, salt, prompt, begin, std::move(frames));
  }

  // The tokens found, as text, read from the payloads of layer 0.
  std::string Found(FrameCache& cache, const std::string& text,
                    absl::Duration max_age = absl::InfiniteDuration(), const std::string& salt = "") {
    const FrameCache::Match match = cache.Find(codec_, salt, Prompt(text), max_age);
    std::string found;
    for (const auto& chunk : match.chunks)
      found.append(chunk->front().payload.begin(), chunk->front().payload.end());
    EXPECT_EQ(match.tokens, static_cast<int64_t>(found.size()));
    return found;
  }

  const CodecSpec codec_ = FakeSpec();
};

TEST_F(Cache, FindsWholePromptsAndPrefixesAtChunkBoundaries) {
  FrameCache cache(1 << 20);
  EXPECT_EQ(Found(cache, "abcdefghij"), "");
  Insert(cache, "abcdefghij");  // abcd efgh ij
  EXPECT_EQ(Found(cache, "abcdefghij"), "abcdefghij");
  EXPECT_EQ(Found(cache, "abcdefghijkl"), "abcdefghij");
  EXPECT_EQ(Found(cache, "abcdefghix"), "abcdefgh");
  EXPECT_EQ(Found(cache, "abcdefg"), "abcd");
  EXPECT_EQ(Found(cache, "xbcdefghij"), "");
  const FrameCache::Stats stats = cache.stats();
  EXPECT_EQ(stats.hits, 1u);
  EXPECT_EQ(stats.partial_hits, 3u);
  EXPECT_EQ(stats.misses, 2u);
  EXPECT_EQ(stats.tokens, 10u + 10 + 8 + 4);
  EXPECT_EQ(stats.chunks, 3u);
}

TEST_F(Cache, GrowsAConversationFromWhatItHas) {
  FrameCache cache(1 << 20);
  Insert(cache, "abcdef");
  Insert(cache, "abcdefghijk", 6);
  EXPECT_EQ(Found(cache, "abcdefghijk"), "abcdefghijk");
  EXPECT_EQ(cache.stats().chunks, 4u);  // abcd ef ghij k
}

TEST_F(Cache, LeavesOutWhatIsTooOldUntilItIsMadeAgain) {
  FrameCache cache(1 << 20);
  Insert(cache, "abcdefgh");
  EXPECT_EQ(Found(cache, "abcdefgh", absl::ZeroDuration()), "");
  absl::SleepFor(absl::Milliseconds(600));
  EXPECT_EQ(Found(cache, "abcdefgh", absl::Milliseconds(500)), "");
  Insert(cache, "abcd");
  EXPECT_EQ(Found(cache, "abcdefgh", absl::Milliseconds(500)), "abcd");
  EXPECT_EQ(Found(cache, "abcdefgh", absl::Hours(1)), "abcdefgh");
}

TEST_F(Cache, TellsSameTokensBehindDifferentOnesApart) {
  FrameCache cache(1 << 20);
  Insert(cache, "abcdwxyz");
  EXPECT_EQ(Found(cache, "ABCDwxyz"), "");
  EXPECT_EQ(Found(cache, "wxyz"), "");
}

TEST_F(Cache, NeverSharesAcrossSalts) {
  FrameCache cache(1 << 20);
  const absl::Duration any = absl::InfiniteDuration();
  Insert(cache, "abcdefgh", 0, "alice");
  EXPECT_EQ(Found(cache, "abcdefgh"), "");
  EXPECT_EQ(Found(cache, "abcdefgh", any, "bob"), "");
  EXPECT_EQ(Found(cache, "abcdefgh", any, "alice"), "abcdefgh");
  Insert(cache, "abcdefgh", 0, "bob");
  EXPECT_EQ(cache.stats().chunks, 4u);
  // What lies in front of a part is looked for under its salt, too.
  Insert(cache, "abcdefghijkl", 8, "carol");
  EXPECT_EQ(cache.stats().chunks, 4u);
}

TEST_F(Cache, KeepsOnlyWholeChunks) {
  FrameCache cache(1 << 20);
  const std::vector<int32_t> prompt = Prompt("abcdefgh");
  std::vector<CachedFrame> frames = Frames(prompt, 0, 4);
  frames.push_back(Frames(prompt, 4, 8)[0]);  // without layer 1
  cache.Insert(codec_, "", prompt, 0, std::move(frames));
  EXPECT_EQ(Found(cache, "abcdefgh"), "abcd");
}

TEST_F(Cache, StaysWithinItsBytesAndLosesTheEndOfAPromptFirst) {
  FrameCache cache(5 * 450);  // five chunks of four tokens, roughly
  Insert(cache, "abcdefghijkl");
  Insert(cache, "ABCDEFGHIJKL");
  EXPECT_LE(cache.stats().bytes, cache.max_bytes());
  EXPECT_EQ(cache.stats().evictions, 1u);
  EXPECT_EQ(Found(cache, "abcdefghijkl"), "abcdefgh");
  EXPECT_EQ(Found(cache, "ABCDEFGHIJKL"), "ABCDEFGHIJKL");
}

TEST_F(Cache, OfNoBytesKeepsNothing) {
  FrameCache cache(0);
  Insert(cache, "abcd");
  EXPECT_EQ(Found(cache, "abcd"), "");
  EXPECT_EQ(cache.stats().chunks, 0u);
}

class MemorySink : public FrameSink {
 public:
  absl::StatusOr<absl::Span<uint8_t>> Reserve(size_t max_bytes) override {
    memory_.resize(max_bytes);
    return absl::MakeSpan(memory_);
  }
  absl::Status Commit(const FrameCoverage&, size_t bytes) override {
    committed += bytes;
    return absl::OkStatus();
  }
  size_t committed = 0;

 private:
  std::vector<uint8_t> memory_;
};

TEST(FrameRecorder, KeepsCopiesUpToItsLimitAndPassesEverythingOn) {
  const auto sink = std::make_shared<MemorySink>();
  FrameRecorder recorder(sink, 10);
  for (const uint8_t value : {1, 2}) {
    const absl::Span<uint8_t> payload = *recorder.Reserve(8);
    std::fill(payload.begin(), payload.end(), value);
    ASSERT_TRUE(recorder.Commit({0, 1, 0, value, 1}, 5).ok());
  }
  EXPECT_EQ(sink->committed, 10u);
  FrameRecorder small(sink, 4);
  ASSERT_TRUE(small.Reserve(8).ok());
  ASSERT_TRUE(small.Commit({}, 5).ok());
  EXPECT_TRUE(small.TakeFrames().empty());
  const std::vector<CachedFrame> frames = recorder.TakeFrames();
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_THAT(frames[1].payload, ::testing::ElementsAre(2, 2, 2, 2, 2));
  EXPECT_EQ(frames[1].coverage.token_begin, 2u);
}

}  // namespace
}  // namespace aludel
