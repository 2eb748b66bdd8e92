#include "kernels/replay_stats.h"
#include "runtime/engine/engine_options.h"
#include "tests/runtime/engine/engine_fixture.h"

namespace aludel::engine_testing {
namespace {

class WarmEngine : public EngineTest {
 protected:
  ReplayStats replays() const { return device_->replay_stats(model_->stream()); }
};

TEST_F(WarmEngine, MakesItsGraphsBeforeTheFirstRequest) {
  EXPECT_EQ(replays().eager, 0);
  Restart({.kv_blocks = 32,
           .max_context = 256,
           .max_num_batched_tokens = 64,
           .max_num_seqs = 2,
           .max_hedges = 4,
           .warm_up_decoding = true});
  const ReplayStats warm = replays();
  // Batches of one and of two, hedges not counted; tokens drawn, or not.
  EXPECT_EQ(warm.captured, 2 * 2);
  EXPECT_EQ(warm.eager, warm.captured);
  EXPECT_EQ(warm.reason, "");
  const auto recorder = Ask({{5, 300, 1999}, {}}, {.max_tokens = 3, .ignore_eos = true});
  ASSERT_TRUE(recorder->WaitDone());
  EXPECT_EQ(recorder->tokens().size(), 3u);
  engine_.reset();  // its thread is over
  // The first token is the prompt's step's.
  const ReplayStats after = replays();
  EXPECT_EQ(after.replayed, warm.replayed + 2);
  EXPECT_EQ(after.captured, warm.captured);
  EXPECT_EQ(after.eager, warm.eager);
}

}  // namespace
}  // namespace aludel::engine_testing
