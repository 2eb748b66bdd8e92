#include "runtime/model/decode_warm_up.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/replay_stats.h"
#include "tests/kernels/cuda/fake/fake_cuda.h"
#include "tests/testing/test_model.h"

namespace aludel::cuda::fake {
namespace {

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

}  // namespace
}  // namespace aludel::cuda::fake
