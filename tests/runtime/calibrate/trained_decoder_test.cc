#include "runtime/calibrate/trained_decoder.h"

#include <random>

#include "gtest/gtest.h"

namespace aludel {
namespace {

constexpr int64_t kInputs = 7, kOutputs = 6;

class TrainedDecoderTest : public ::testing::TestWithParam<int64_t> {
 protected:
  std::vector<float> Random(int64_t count, float from, float to) {
    std::uniform_real_distribution<float> values(from, to);
    std::vector<float> out(count);
    for (float& value : out) value = values(random_);
    return out;
  }
  HostMatrix Matrix(int64_t rows, int64_t cols) { return {rows, cols, Random(rows * cols, -1, 1)}; }

  std::mt19937_64 random_{std::random_device{}()};
};

// The parameter: without a network, the decoder is linear.
TEST_P(TrainedDecoderTest, FoldingGivesWhatTheConsumerComputesAndUnfoldingTheNetAgain) {
  TrainedDecoder decoder;
  decoder.scales = {{Random(kInputs, -1, 1), Random(kInputs, 0.2F, 4)}};
  const int64_t width = GetParam();
  decoder.nets = {{.bias = Random(kOutputs, -1, 1)}};
  if (width == 0) {
    decoder.nets[0].linear = Matrix(kOutputs, kInputs);
  } else {
    decoder.nets[0].hidden = Matrix(width, kInputs);
    decoder.nets[0].hidden_bias = Random(width, -1, 1);
    decoder.nets[0].out = Matrix(kOutputs, width);
  }
  TargetMetric metric;
  metric.mean = Random(kOutputs, -2, 2);
  metric.scale = Random(kOutputs, 0.1F, 3);
  const DecoderNet net = decoder.nets[0];
  const std::vector<float> raw = Random(kInputs, -3, 3);
  std::vector<float> u = raw;
  decoder.scales[0].Apply(1, u.data());
  std::vector<float> expected = RunDecoder(net, u.data(), 1);
  for (int64_t j = 0; j < kOutputs; ++j) expected[j] = metric.mean[j] + metric.scale[j] * expected[j];

  AludelEncoderWeights encoder(1);
  const std::vector<InputScale> scales = decoder.scales;
  const AludelDecoderWeights folded = FoldDecoder(decoder, encoder, {metric});
  const DecoderNet consumer{folded.groups[0].linear, folded.groups[0].bias, folded.groups[0].hidden,
                            folded.groups[0].hidden_bias, folded.groups[0].out};
  const std::vector<float> y = RunDecoder(consumer, raw.data(), 1);
  for (int64_t j = 0; j < kOutputs; ++j) EXPECT_NEAR(y[j], expected[j], 1e-4) << "output " << j;

  const TrainedDecoder again = UnfoldDecoder(folded, scales, {metric});
  EXPECT_EQ(again.width, width);
  const auto expect_near = [](const std::vector<float>& a, const std::vector<float>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-4) << "value " << i;
  };
  expect_near(again.nets[0].linear.values, net.linear.values);
  expect_near(again.nets[0].hidden.values, net.hidden.values);
  expect_near(again.nets[0].hidden_bias, net.hidden_bias);
  expect_near(again.nets[0].out.values, net.out.values);
  expect_near(again.nets[0].bias, net.bias);
}

INSTANTIATE_TEST_SUITE_P(Width, TrainedDecoderTest, ::testing::Values(0, 5));

}  // namespace
}  // namespace aludel
