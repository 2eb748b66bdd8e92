#include "kernels/ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/replay_stats.h"
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/ops_fixture.h"

namespace aludel {
namespace {

// Copies on one stream wait for what they copy on another, whatever comes behind it there.
TEST_P(OpsTest, FollowersWaitForWhatTheyFollow) {
  const absl::StatusOr<Stream> stream = device_->CreateStream();
  ASSERT_TRUE(stream.ok()) << stream.status();
  constexpr int kRows = 512, kCols = 1024;
  const auto x = OnDevice(Random(kRows * kCols)), y = OnDevice(Poisoned(kRows * kCols));
  std::vector<uint8_t> memory(kRows * kCols * sizeof(float));
  for (const bool pinned : {false, true}) {
    if (pinned) {
      ASSERT_TRUE(device_->Pin(absl::MakeSpan(memory)).ok());
    }
    for (int round = 0; round < 20; ++round) {
      const std::vector<float> values = Random(kRows * kCols);
      device_->CopyToDevice(x.data(), values.data(), memory.size(), {});
      for (int i = 0; i < 8; ++i) ops_->Convert(x.View(kRows, kCols), y.View(kRows, kCols), {});
      device_->Follow(*stream, {});
      device_->CopyToHost(memory.data(), y.data(), memory.size(), *stream);
      ASSERT_TRUE(device_->Synchronize(*stream).ok());
      EXPECT_TRUE(device_->Finished(*stream));
      ASSERT_EQ(std::memcmp(memory.data(), values.data(), memory.size()), 0) << "round " << round;
      ASSERT_TRUE(device_->Synchronize({}).ok());
    }
    if (pinned) device_->Unpin(absl::MakeSpan(memory));
  }
  device_->DestroyStream(*stream);
}

// Whether the device has made repeated work as one; a CPU never does.
void ExpectReplays(const Device& device, uint64_t most_eager) {
  if (device.name() == "cpu") return;
  const ReplayStats stats = device.replay_stats({});
  EXPECT_GT(stats.replayed, 0) << stats.reason;
  EXPECT_LE(stats.eager, most_eager) << stats.reason;
}

TEST_P(OpsTest, RepeatedWorkFollowsWhatItsHostArraysHold) {
  constexpr int kIds = 50, kCols = 24, kRows = 5;
  auto table = Random(kIds * kCols);
  const auto packed = ops_->Pack(TensorView::Of(table.data(), kIds, kCols), WeightFormat::kF32).value();
  const auto out = OnDevice(Poisoned(kRows * kCols)), gathered = OnDevice(Poisoned(2 * kCols));
  for (int round = 0; round < 10; ++round) {
    std::vector<int32_t> ids(kRows);
    for (int32_t& id : ids) id = static_cast<int32_t>(random_() % kIds);
    const std::vector<int64_t> rows = {static_cast<int64_t>(random_() % kRows), round % kRows};
    device_->Replay({1, 1}, {}, [&] {
      ops_->Embed(ids, *packed, out.View(kRows, kCols), {});
      ops_->GatherRows(out.View(kRows, kCols), rows, gathered.View(2, kCols), {});
    });
    std::vector<double> expected;
    for (const int64_t row : rows) {
      const auto begin = table.begin() + ids[row] * kCols;
      expected.insert(expected.end(), begin, begin + kCols);
    }
    ExpectNear(gathered.Read().value(), expected, 0);
  }
  ExpectReplays(*device_, /*most_eager=*/1);
}

TEST_P(OpsTest, RepeatedWorkThatChangesUnderItsKeyIsRunAsItIs) {
  const auto x = Random(40), y = Random(40);
  const auto x_there = OnDevice(x), y_there = OnDevice(y), out = OnDevice(Poisoned(40));
  for (int round = 0; round < 12; ++round) {
    const bool other = round % 4 == 3;
    const int rows = round == 10 ? 3 : 5;
    device_->Replay({1, 1}, {}, [&] {
      ops_->Convert(x_there.View(5, 8), out.View(5, 8), {});
      ops_->Convert((other ? y_there : x_there).View(5, 8).Rows(0, rows), out.View(5, 8).Rows(0, rows), {});
    });
    const std::vector<float>& expected = other ? y : x;
    ASSERT_EQ(out.Read().value(), expected) << round;
  }
  ExpectReplays(*device_, /*most_eager=*/12);
}

// The launches are those of the longest that a sequence may become.
TEST_P(OpsTest, RepeatedAttentionIsTheFormulaWhereverSequencesEnd) {
  const std::vector<AttentionCase> cases = {
      {4, 2, 64, 16, 0, {{1, 1300}, {1, 900}, {1, 40}}},
      {4, 1, 128, 16, 0, {{1, 1300}}, true},
      {4, 2, 128, 16, 100, {{1, 1300}, {1, 50}}},
      {2, 1, 256, 16, 0, {{1, 1300}, {1, 600}}},
      {34, 2, 64, 16, 0, {{1, 1300}}},
      {3, 3, 18, 8, 0, {{1, 1300}, {1, 7}}},
  };
  uint64_t key = 0;
  for (const AttentionCase& c : cases) {
    SCOPED_TRACE(testing::Message() << c);
    ++key;
    AttentionProblem problem(c, random_);
    const std::vector<SequenceRows> longest = problem.sequences;
    const auto k = OnDevice(problem.k), v = OnDevice(problem.v);
    const auto q = OnDevice(problem.q);
    const auto narrow_q = OnDevice(Narrow(problem.q));
    const PagedKv kv{k.data(), v.data(), DType::kBf16, c.block_tokens, c.kv_heads, c.head_dim};
    const auto out = OnDevice(Poisoned(problem.rows * problem.out_stride));
    const auto narrow_out = OnDevice(Narrow(Poisoned(problem.rows * problem.out_stride)));
    const TensorView q_view =
        (c.bf16_rows ? narrow_q.View(problem.rows, problem.q_stride) : q.View(problem.rows, problem.q_stride))
            .Cols(0, problem.q_dim());
    const TensorView out_view = (c.bf16_rows ? narrow_out.View(problem.rows, problem.out_stride)
                                             : out.View(problem.rows, problem.out_stride))
                                    .Cols(0, problem.q_dim());
    for (const int64_t end : {1, 63, 64, 65, 200, 511, 512, 513, 600, 700, 1000, 1024, 1025, 1200, 1300}) {
      SCOPED_TRACE(end);
      for (size_t s = 0; s < longest.size(); ++s) {
        const int64_t position = std::min(end - 1, longest[s].position_begin);
        problem.sequences[s].position_begin = position;
        problem.sequences[s].blocks = longest[s].blocks.subspan(0, position / c.block_tokens + 1);
      }
      device_->Replay({key, end}, {},
                      [&] { ops_->Attention(q_view, problem.params, problem.sequences, kv, out_view, {}); });
      std::vector<float> found = out.Read().value();
      if (c.bf16_rows) {
        const std::vector<Bf16> narrow = narrow_out.Read().value();
        std::transform(narrow.begin(), narrow.end(), found.begin(), ToFloat);
      }
      problem.Compare(found, [](const std::string& what) { FAIL() << what; });
    }
  }
  ExpectReplays(*device_, /*most_eager=*/3 * cases.size());
}

}  // namespace
}  // namespace aludel
