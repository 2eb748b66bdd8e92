#include "kernels/ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/token_quantizer.h"
#include "tests/kernels/latent_problem.h"
#include "tests/kernels/ops_fixture.h"
#include "tests/kernels/sample_problem.h"

namespace aludel {
namespace {

TEST_P(OpsTest, RmsNormIsTheFormula) {
  for (const int cols : {1, 7, 16, 33, 256, 1000}) {
    const int rows = 11;
    const auto x = Random(rows * cols, 3.0f);
    const auto w = Random(cols);
    const auto x_there = OnDevice(x), w_there = OnDevice(w), out = OnDevice(Poisoned(rows * cols));
    ops_->RmsNorm(x_there.View(rows, cols), w_there.data(), 1e-5f, out.View(rows, cols), {});
    std::vector<double> expected(rows * cols);
    for (int t = 0; t < rows; ++t) {
      double sum = 0;
      for (int c = 0; c < cols; ++c) sum += double{x[t * cols + c]} * x[t * cols + c];
      for (int c = 0; c < cols; ++c) {
        expected[t * cols + c] = x[t * cols + c] / std::sqrt(sum / cols + 1e-5) * w[c];
      }
    }
    ExpectNear(out.Read().value(), expected, 2e-6);
  }
}

TEST_P(OpsTest, SiluMulGatesAtEverySize) {
  const int rows = 5;
  for (const int cols : {1, 77, 64, 1000}) {
    auto gate_up = Random(rows * 2 * cols, 6.0f);
    gate_up[0] = -200.0f;  // exp would overflow a careless sigmoid
    gate_up[1] = 200.0f;
    const auto gate_up_there = OnDevice(gate_up), out = OnDevice(Poisoned(rows * cols));
    ops_->SiluMul(gate_up_there.View(rows, 2 * cols), out.View(rows, cols), {});
    const auto narrow = Narrow(gate_up);
    const auto narrow_there = OnDevice(narrow), narrow_out = OnDevice(Narrow(Poisoned(rows * cols)));
    ops_->SiluMul(narrow_there.View(rows, 2 * cols), narrow_out.View(rows, cols), {});
    const auto expected = [&](const auto& input) {
      std::vector<double> values;
      for (int t = 0; t < rows; ++t) {
        for (int c = 0; c < cols; ++c) {
          const double g = input(t * 2 * cols + c);
          values.push_back(g / (1.0 + std::exp(-g)) * input(t * 2 * cols + cols + c));
        }
      }
      return values;
    };
    ExpectNear(out.Read().value(), expected([&](int at) { return gate_up[at]; }), 2e-6);
    const std::vector<Bf16> narrow_found = narrow_out.Read().value();
    std::vector<float> found(narrow_found.size());
    std::transform(narrow_found.begin(), narrow_found.end(), found.begin(), ToFloat);
    ExpectNear(found, expected([&](int at) { return ToFloat(narrow[at]); }), 0x1p-8);
  }
}

TEST_P(OpsTest, SiluTakesAnySizeAndLargeValues) {
  const int rows = 5, cols = 77;
  auto x = Random(rows * cols, 6.0f);
  x[0] = -200.0f;
  x[1] = 200.0f;
  const auto x_there = OnDevice(x), out = OnDevice(Poisoned(rows * cols));
  ops_->Silu(x_there.View(rows, cols), out.View(rows, cols), {});
  std::vector<double> expected;
  for (const double value : x) expected.push_back(value / (1.0 + std::exp(-value)));
  ExpectNear(out.Read().value(), expected, 2e-6);
}

TEST_P(OpsTest, EmbedGatherAndConvertCopyRows) {
  const int vocab = 75, cols = 21;
  auto table = Random(vocab * cols);
  const std::vector<int32_t> ids = {74, 0, 33, 33};
  const TensorView host = TensorView::Of(table.data(), vocab, cols);
  const auto packed = ops_->Pack(host, WeightFormat::kF32).value();
  const auto rows = OnDevice(Poisoned(ids.size() * cols));
  ops_->Embed(ids, *packed, rows.View(ids.size(), cols), {});
  const std::vector<float> out = rows.Read().value();
  for (size_t t = 0; t < ids.size(); ++t) {
    for (int c = 0; c < cols; ++c) EXPECT_EQ(out[t * cols + c], table[ids[t] * cols + c]);
  }
  const auto picked_there = OnDevice(Poisoned(2 * cols));
  const std::vector<int64_t> which = {2, 0};
  ops_->GatherRows(rows.View(ids.size(), cols), which, picked_there.View(2, cols), {});
  const std::vector<float> picked = picked_there.Read().value();
  for (int c = 0; c < cols; ++c) EXPECT_EQ(picked[c], table[33 * cols + c]);
  const auto narrow_there = OnDevice(std::vector<Bf16>(2 * cols));
  ops_->Convert(picked_there.View(2, cols), narrow_there.View(2, cols), {});
  const std::vector<Bf16> narrow = narrow_there.Read().value();
  for (int c = 0; c < 2 * cols; ++c) EXPECT_EQ(ToFloat(narrow[c]), RoundToBf16(picked[c]));
}

TEST_P(OpsTest, ConvertRoundsAndWidensWholeRowsOfEverySize) {
  for (const int cols : {8, 24, 1000, 1001}) {
    const auto x = Random(3 * cols);
    const auto x_there = OnDevice(x), wide_there = OnDevice(Poisoned(3 * cols));
    const auto narrow_there = OnDevice(Narrow(Poisoned(3 * cols)));
    ops_->Convert(x_there.View(3, cols), narrow_there.View(3, cols), {});
    ops_->Convert(narrow_there.View(3, cols), wide_there.View(3, cols), {});
    const std::vector<float> wide = wide_there.Read().value();
    for (int c = 0; c < 3 * cols; ++c) ASSERT_EQ(wide[c], RoundToBf16(x[c])) << cols << " " << c;
    const auto part_there = OnDevice(Narrow(Poisoned(3 * (cols + 5))));
    ops_->Convert(narrow_there.View(3, cols), part_there.View(3, cols + 5).Cols(2, cols), {});
    const std::vector<Bf16> part = part_there.Read().value();
    for (int c = 0; c < 3 * cols; ++c) {
      ASSERT_EQ(ToFloat(part[c / cols * (cols + 5) + 2 + c % cols]), wide[c])
          << "same type, " << cols << " " << c;
    }
  }
}

TEST_P(OpsTest, HeadNormNormalizesEveryHeadOfColumnsInPlace) {
  const int rows = 3, heads = 5, head_dim = 24, stride = heads * head_dim + 7;
  const auto x = Random(rows * stride, 2.0f);
  const auto w = Random(head_dim);
  const auto x_there = OnDevice(x), w_there = OnDevice(w);
  ops_->HeadNorm(x_there.View(rows, stride).Cols(7, heads * head_dim), head_dim, w_there.data(), 1e-6f, {});
  std::vector<double> expected(x.begin(), x.end());
  for (int t = 0; t < rows; ++t) {
    for (int h = 0; h < heads; ++h) {
      const size_t at = t * stride + 7 + h * head_dim;
      double sum = 0;
      for (int d = 0; d < head_dim; ++d) sum += double{x[at + d]} * x[at + d];
      for (int d = 0; d < head_dim; ++d) {
        expected[at + d] = x[at + d] / std::sqrt(sum / head_dim + 1e-6) * w[d];
      }
    }
  }
  ExpectNear(x_there.Read().value(), expected, 2e-6);
}

// Every device chooses the same token, beside whatever other rows.
TEST_P(OpsTest, SampleRowsChoosesTheTokenOfSampleRow) {
  for (const int64_t vocab : {1, 33, 1000, 4099, 32000, 128257}) {
    const int64_t rows = vocab > 10000 ? 6 : 40;
    std::vector<float> logits;
    std::vector<RowSampling> draws;
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<float> row = RandomLogits(vocab, random_);
      logits.insert(logits.end(), row.begin(), row.end());
      draws.push_back(RandomSampling(vocab, random_));
    }
    logits[(rows - 1) * vocab] = std::numeric_limits<float>::quiet_NaN();
    const auto there = OnDevice(logits);
    const auto tokens = OnDevice(std::vector<int32_t>(rows, -7));
    ops_->SampleRows(there.View(rows, vocab), draws, tokens.data(), {});
    const std::vector<int32_t> found = tokens.Read().value();
    for (int64_t r = 0; r < rows; ++r) {
      EXPECT_EQ(found[r], SampleRow(&logits[r * vocab], vocab, draws[r])) << vocab << ": " << draws[r];
    }
    EXPECT_EQ(found.back(), kNoToken);
  }
}

TEST_P(OpsTest, LatentsBecomeTheBytesOfTheDefinitionAndComeBack) {
  for (const int64_t tokens : {1, 7, 128, 129, 1000}) {
    for (const int columns : {1, 33, 100}) {
      const LatentProblem problem(tokens, columns, random_);
      const auto z = OnDevice(problem.z);
      const auto bytes = OnDevice(std::vector<uint8_t>(problem.bytes.size(), 0xa5));
      const TensorView view{z.data(), DType::kF32, tokens, columns, problem.stride};
      ops_->PackLatents(view, 2.0f, problem.planes, bytes.data(), {});
      EXPECT_EQ(bytes.Read().value(), problem.bytes) << tokens << " tokens, " << columns << " latents";

      const int64_t first = tokens / 3;
      const auto back = OnDevice(Poisoned(tokens * columns));
      const auto narrow = OnDevice(std::vector<Bf16>(tokens * columns, ToBf16(NAN)));
      ops_->UnpackLatents(bytes.data(), problem.planes, first, 0.3f, back.View(tokens - first, columns), {});
      ops_->UnpackLatents(bytes.data(), problem.planes, first, 0.3f, narrow.View(tokens - first, columns),
                          {});
      const std::vector<float> found = back.Read().value();
      const std::vector<Bf16> rounded = narrow.Read().value();
      for (int64_t t = first; t < tokens; ++t) {
        for (int i = 0; i < columns; ++i) {
          const float expected = 0.3f * static_cast<float>(problem.code(t, i));
          ASSERT_EQ(found[(t - first) * columns + i], expected) << "token " << t << ", latent " << i;
          ASSERT_EQ(ToFloat(rounded[(t - first) * columns + i]), RoundToBf16(expected)) << "token " << t;
        }
      }
    }
  }
}

TEST_P(OpsTest, TokensBecomeTheIntegersOfTheQuantizerAndComeBack) {
  for (const int bits : {8, 4}) {
    for (const int width : {2, 96, 128, 1024}) {
      const int tokens = 5;
      const TokenQuantizer quantizer(bits, width);
      const std::vector<float> values = Random(tokens * (width + 2), 3.0f);
      std::vector<Bf16> narrow(values.size());
      std::transform(values.begin(), values.end(), narrow.begin(), ToBf16);
      const auto wide_there = OnDevice(values);
      const auto narrow_there = OnDevice(narrow);
      for (const bool wide : {true, false}) {
        const auto scales = OnDevice(std::vector<uint8_t>(2 * tokens, 0xa5));
        const auto codes = OnDevice(std::vector<uint8_t>(tokens * quantizer.code_bytes(), 0xa5));
        const TensorView x = wide ? TensorView{wide_there.data(), DType::kF32, tokens, width, width + 2}
                                  : TensorView{narrow_there.data(), DType::kBf16, tokens, width, width + 2};
        ops_->QuantizeTokens(x, bits, scales.data(), codes.data(), {});
        const auto back = OnDevice(Poisoned(tokens * width));
        ops_->DequantizeTokens(scales.data(), codes.data(), bits, back.View(tokens, width), {});
        std::vector<uint8_t> want_scales, want_codes;
        std::vector<float> want;
        for (int t = 0; t < tokens; ++t) {
          std::vector<float> row(width);
          for (int i = 0; i < width; ++i) {
            const size_t at = t * (width + 2) + i;
            row[i] = wide ? values[at] : ToFloat(narrow[at]);
          }
          std::vector<uint8_t> row_codes(quantizer.code_bytes());
          const Bf16 scale = quantizer.Encode(row.data(), row_codes.data());
          want_scales.push_back(static_cast<uint8_t>(scale.bits));
          want_scales.push_back(static_cast<uint8_t>(scale.bits >> 8));
          want_codes.insert(want_codes.end(), row_codes.begin(), row_codes.end());
          quantizer.Decode(scale, row_codes.data(), row.data());
          want.insert(want.end(), row.begin(), row.end());
        }
        EXPECT_EQ(scales.Read().value(), want_scales) << bits << " bits, width " << width;
        EXPECT_EQ(codes.Read().value(), want_codes) << bits << " bits, width " << width;
        EXPECT_EQ(back.Read().value(), want) << bits << " bits, width " << width;
      }
    }
  }
}

// In every file of this test.
INSTANTIATE_TEST_SUITE_P(Devices, OpsTest, ::testing::ValuesIn(kDevices), DeviceLabel);

TEST(Bf16, RoundsToNearestEvenAndKeepsNaN) {
  EXPECT_EQ(RoundToBf16(1.0f), 1.0f);
  EXPECT_EQ(RoundToBf16(1.0f + 0x1p-8f), 1.0f);              // a tie, to even
  EXPECT_EQ(RoundToBf16(1.0f + 0x1.8p-7f), 1.0f + 0x1p-6f);  // a tie, to even, upwards
  EXPECT_TRUE(std::isnan(RoundToBf16(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isinf(RoundToBf16(3.4e38f)));
}

}  // namespace
}  // namespace aludel
