#include "runtime/model/decode_warm_up.h"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/replay_stats.h"
#include "tests/kernels/cuda/fake/fake_cuda.h"
#include "tests/kernels/cuda/fake/zero_model.h"
#include "tests/runtime/model/temporary_directory.h"
#include "tests/testing/test_model.h"

namespace aludel::cuda::fake {
namespace {

using ::testing::HasSubstr;

// Models of any size: nothing runs while it lives.
struct Counting {
  Counting() { CountOnly(true); }
  ~Counting() { CountOnly(false); }
};

constexpr Shape kShape = {"one layer", 1, 1024, 2048, 8, 2, 128, 1024};
constexpr int64_t kContext = 131072;  // WriteZeros

// A step that draws a token for each of so many sequences, each with a block of its own.
absl::Status Decode(TestModel& model, int64_t sequences) {
  const int32_t id = 5;
  std::vector<BatchItem> items(sequences);
  for (int64_t s = 0; s < sequences; ++s) {
    items[s].ids = absl::MakeConstSpan(&id, 1);
    items[s].position = 3;
    items[s].blocks = model.table().ids().subspan(s, 1);
    items[s].draw = RowSampling{};
  }
  std::vector<float> logits;
  return model.model().Forward(absl::MakeSpan(items), model.pool(), &logits);
}

// Whatever a server's batches are, and whoever draws their tokens.
TEST(DecodeWarmUp, LeavesNoGraphToBeMade) {
  TestModel chat("deploy/demo/chat", {.max_rows = 64}, DType::kBf16, 640);
  constexpr int kSequences = 3;
  ASSERT_TRUE(WarmUpDecoding(chat.model(), chat.pool(), kSequences, 600).ok());
  const auto stats = [&] { return chat.device()->replay_stats(chat.model().stream()); };
  const ReplayStats warm = stats();
  // Batches of one, two and four; positions up to 512, and from there on; tokens drawn, or not.
  EXPECT_EQ(warm.captured, 3 * 2 * 2);
  EXPECT_EQ(warm.eager, warm.captured);
  const int32_t id = 5;
  uint64_t steps = 0;
  for (int sequences = 1; sequences <= kSequences; ++sequences) {
    for (const int64_t position : {511, 512}) {
      for (int draws = 0; draws <= sequences; ++draws) {
        std::vector<BatchItem> items(sequences);
        for (int s = 0; s < sequences; ++s) {
          items[s].ids = absl::MakeConstSpan(&id, 1);
          items[s].position = s == 0 ? position : s;
          items[s].blocks = chat.table().ids();
          if (s < draws) items[s].draw = RowSampling{.temperature = 1.0, .uniform = 0.1 * s};
          items[s].wants_logits = s >= draws && s != 1;  // the second may want nothing
        }
        std::vector<float> logits;
        ResetCounts();
        ASSERT_TRUE(chat.model().Forward(absl::MakeSpan(items), chat.pool(), &logits).ok());
        EXPECT_EQ(counts().graph_launches, 1);
        EXPECT_EQ(counts().captured, 0);
        EXPECT_EQ(counts().allocations, 0);
        ++steps;
      }
    }
  }
  const ReplayStats after = stats();
  EXPECT_EQ(after.replayed, warm.replayed + steps);
  EXPECT_EQ(after.captured, warm.captured);
  EXPECT_EQ(after.eager, warm.eager);
  EXPECT_EQ(after.reason, "");
}

// A list of blocks for each of so many sequences of so many tokens would be more than a stream stages.
TEST(DecodeWarmUp, TakesManySequencesOfManyTokens) {
  const Counting counting;
  const TemporaryDirectory files;
  WriteZeros(kShape, files.path());
  constexpr int64_t kSequences = 512;
  TestModel model(files.path(), {.max_rows = kSequences}, DType::kBf16, 16 * kSequences);
  const absl::Status status = WarmUpDecoding(model.model(), model.pool(), kSequences, kContext);
  ASSERT_TRUE(status.ok()) << status;
  std::set<int64_t> sizes;
  for (int64_t rows = 1; rows <= kSequences; ++rows) sizes.insert(model.model().RoundedRows(rows));
  const ReplayStats warm = model.device()->replay_stats(model.model().stream());
  // Positions up to 512, 4,096, 32,768, and from there on; tokens drawn, or not.
  EXPECT_EQ(warm.captured, sizes.size() * 4 * 2);
  EXPECT_EQ(warm.eager, warm.captured);
  EXPECT_EQ(warm.reason, "");
}

TEST(DecodeWarmUp, LeavesStepsOfTooManySequencesAsTheyAre) {
  const Counting counting;
  const TemporaryDirectory files;
  WriteZeros(kShape, files.path());
  constexpr int64_t kMost = Transformer::kMostFilledRows;
  TestModel model(files.path(), {.max_rows = 2 * kMost}, DType::kBf16, 16 * 2 * kMost);
  ASSERT_TRUE(WarmUpDecoding(model.model(), model.pool(), 2 * kMost, 100).ok());
  EXPECT_EQ(model.model().RoundedRows(kMost - 1), kMost);
  EXPECT_EQ(model.model().RoundedRows(kMost + 1), kMost + 1);
  const auto stats = [&] { return model.device()->replay_stats(model.model().stream()); };
  const ReplayStats warm = stats();
  EXPECT_EQ(warm.reason, "");
  for (const int64_t sequences : {kMost - 1, kMost + 1}) {
    ResetCounts();
    ASSERT_TRUE(Decode(model, sequences).ok());
    EXPECT_EQ(counts().graph_launches, sequences < kMost ? 1 : 0);
  }
  const ReplayStats after = stats();
  EXPECT_EQ(after.replayed, warm.replayed + 1);
  EXPECT_EQ(after.captured, warm.captured);
  EXPECT_EQ(after.eager, warm.eager);
  EXPECT_EQ(after.reason, "");
}

// Else it would be made behind a cache that took what was free, and graphs would be lost with what was there before.
TEST(DecodeWarmUp, FindsRoomForTheLogitsOfAllSequences) {
  const Counting counting;
  const TemporaryDirectory files;
  WriteZeros(kShape, files.path());
  constexpr int64_t kSequences = 600;
  TestModel model(files.path(), {.max_rows = 1024}, DType::kBf16, 16 * kSequences);
  FailAllocationsAbove(1 << 20);
  const absl::Status refused = ReserveForDecoding(model.model(), kSequences);
  Heal();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("logits of 600 sequences (max_num_seqs"));
  for (const int64_t made : {1, 0}) {
    ResetCounts();
    ASSERT_TRUE(ReserveForDecoding(model.model(), kSequences).ok());
    EXPECT_EQ(counts().allocations, made);
  }
  ASSERT_TRUE(WarmUpDecoding(model.model(), model.pool(), kSequences, 100).ok());
  const ReplayStats warm = model.device()->replay_stats(model.model().stream());
  ResetCounts();
  // The first is larger than any that is remembered.
  for (const int64_t sequences : {kSequences, int64_t{3}}) ASSERT_TRUE(Decode(model, sequences).ok());
  EXPECT_EQ(counts().allocations, 0);
  EXPECT_EQ(model.device()->replay_stats(model.model().stream()).replayed, warm.replayed + 1);
}

TEST(DecodeWarmUp, SaysWhichStepFailed) {
  const Counting counting;
  const TemporaryDirectory files;
  WriteZeros(kShape, files.path());
  TestModel model(files.path(), {.max_rows = 1024}, DType::kBf16, 16 * 512);
  FailAllocationsAbove(1 << 20);  // the logits' room is not there yet
  const absl::Status status = WarmUpDecoding(model.model(), model.pool(), 512, 100);
  Heal();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("warming up decode steps (cuda_graphs: false"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("512 rows, position 0: cannot allocate"));
}

// More sequences than there are blocks cannot decode at once.
TEST(DecodeWarmUp, TakesNoMoreSequencesThanTheCacheHasBlocks) {
  const Counting counting;
  const TemporaryDirectory files;
  WriteZeros(kShape, files.path());
  TestModel model(files.path(), {.max_rows = 64}, DType::kBf16, 32);
  ASSERT_TRUE(WarmUpDecoding(model.model(), model.pool(), 64, 100).ok());
  // Of one and of two; tokens drawn, or not.
  EXPECT_EQ(model.device()->replay_stats(model.model().stream()).captured, 2 * 2);
}

}  // namespace
}  // namespace aludel::cuda::fake
