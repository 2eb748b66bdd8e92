#include "runtime/bench/forward_benchmark.h"

#include "gtest/gtest.h"
#include "kernels/open_device.h"

namespace aludel {
namespace {

TEST(ForwardBenchmark, TimesWhatIsSharedOnceAndMoreForEachRequest) {
  const auto device = OpenDevice({}).value();
  TransformerOptions options;
  options.max_rows = 48;
  const auto model = Transformer::Load(device.get(), ModelPath::Parse("deploy/demo/base"), options);
  ASSERT_TRUE(model.ok()) << model.status();
  // A prompt that ends in the midst of a block, and steps that end in the midst of a request.
  ForwardBenchmark forward(device.get(), model->get(),
                           {.shared_tokens = 40, .own_tokens = 25, .output_tokens = 8, .step_tokens = 48});
  const auto one = forward.Run(1, 1);
  const auto many = forward.Run(16, 8);
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_TRUE(many.ok()) << many.status();
  EXPECT_GT(one->shared, 0);
  EXPECT_GT(one->own, 0);
  EXPECT_GT(many->shared, 0);
  EXPECT_GT(many->own, one->own);  // 16 * (25 + 7) tokens against 25
}

TEST(ForwardBenchmark, FailsWhereAStepIsMoreThanTheModelTakes) {
  const auto device = OpenDevice({}).value();
  TransformerOptions options;
  options.max_rows = 16;
  const auto model = Transformer::Load(device.get(), ModelPath::Parse("deploy/demo/base"), options);
  ASSERT_TRUE(model.ok()) << model.status();
  ForwardBenchmark forward(device.get(), model->get(), {.own_tokens = 64, .step_tokens = 64});
  EXPECT_FALSE(forward.Run(1, 1).ok());
}

}  // namespace
}  // namespace aludel
