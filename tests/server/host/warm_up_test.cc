#include "server/host/warm_up.h"

#include "gtest/gtest.h"
#include "kernels/device.h"
#include "kernels/open_device.h"
#include "runtime/model/transformer_options.h"

namespace aludel {
namespace {

TEST(WarmUp, MeasuresPrefillsOfGrowingLength) {
  const std::unique_ptr<Device> device = OpenDevice({.name = "cpu", .threads = 1}).value();
  TransformerOptions options;
  options.max_rows = 64;  // prompts of more rows take several steps
  const auto model = Transformer::Load(device.get(), "deploy/demo/chat", options).value();
  const std::vector<PrefillSample> samples = WarmUp(*model, DType::kBf16).value();
  ASSERT_FALSE(samples.empty());
  for (size_t i = 0; i < samples.size(); ++i) {
    EXPECT_GT(samples[i].seconds, 0);
    EXPECT_LE(samples[i].tokens, model->config().max_positions);
    EXPECT_EQ(samples[i].tokens, i == 0 ? 16 : 4 * samples[i - 1].tokens);
  }
}

}  // namespace
}  // namespace aludel
