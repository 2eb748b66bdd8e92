#include "runtime/model/weights/stored_matrix.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A directory with one weight file, tensor by tensor. Values are what a test writes into the words.
class Checkpoint {
 public:
  template <typename T>
  Checkpoint& Add(const std::string& name, const std::string& dtype, std::vector<int64_t> shape,
                  const std::vector<T>& values) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
    data_.emplace_back(bytes, bytes + values.size() * sizeof(T));
    tensors_.push_back({name, dtype, std::move(shape), {}});
    return *this;
  }
  absl::StatusOr<std::unique_ptr<StoredMatrix>> Open(const QuantizationConfig& config, int64_t rows,
                                                     int64_t cols) {
    for (size_t i = 0; i < tensors_.size(); ++i) tensors_[i].data = data_[i];
    EXPECT_TRUE(WriteSafetensors(directory_.File("model.safetensors"), tensors_, {}).ok());
    files_ = std::make_unique<ModelFiles>(ModelFiles::Open(directory_.path()).value());
    return StoredMatrix::Open(*files_, config, "m", rows, cols);
  }
  std::string Error(const QuantizationConfig& config, int64_t rows, int64_t cols) {
    return std::string(Open(config, rows, cols).status().message());
  }

 private:
  TemporaryDirectory directory_;
  std::vector<std::vector<uint8_t>> data_;
  std::vector<SafetensorsTensor> tensors_;
  std::unique_ptr<ModelFiles> files_;
};

std::vector<float> Read(const StoredMatrix& matrix, int64_t begin, int64_t end) {
  std::vector<float> values(static_cast<size_t>((end - begin) * matrix.cols()));
  matrix.Read(begin, end, values.data());
  return values;
}

constexpr QuantizationConfig kFp8{.method = QuantizationMethod::kFp8};
constexpr QuantizationConfig kAwq{.method = QuantizationMethod::kAwq};
constexpr QuantizationConfig kGptq{.method = QuantizationMethod::kGptq, .zero_offset = 1};

TEST(StoredMatrix, ReadsEveryPlainType) {
  const uint16_t half[] = {0x3c00, 0xc000, 0x0001, 0x7bff};  // 1, -2, the least subnormal, the largest
  auto f16 = Checkpoint();
  const auto matrix =
      f16.Add("m.weight", "F16", {2, 2}, std::vector<uint16_t>(half, half + 4)).Open({}, 2, 2);
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_THAT(Read(**matrix, 0, 2), ElementsAre(1.0f, -2.0f, 0x1p-24f, 65504.0f));
  EXPECT_THAT(Read(**matrix, 1, 2), ElementsAre(0x1p-24f, 65504.0f));
  EXPECT_EQ((*matrix)->InPlace().data, nullptr);

  auto f32 = Checkpoint();
  const auto wide = f32.Add("m.weight", "F32", {1, 2}, std::vector<float>{0.1f, -3.0f}).Open({}, 1, 2);
  ASSERT_TRUE(wide.ok()) << wide.status();
  EXPECT_EQ((*wide)->InPlace().f32()[0], 0.1f);
}

TEST(StoredMatrix, KnowsTheValuesOfE4m3) {
  auto checkpoint = Checkpoint();
  const auto matrix =
      checkpoint.Add("m.weight", "F8_E4M3", {1, 6}, std::vector<uint8_t>{0x00, 0x01, 0x38, 0xb8, 0x7e, 0x7f})
          .Add("m.weight_scale", "F32", {}, std::vector<float>{2.0f})
          .Open(kFp8, 1, 6);
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  const std::vector<float> values = Read(**matrix, 0, 1);
  EXPECT_THAT(std::vector<float>(values.begin(), values.begin() + 5),
              ElementsAre(0.0f, 2 * 0x1p-9f, 2.0f, -2.0f, 896.0f));
  EXPECT_TRUE(std::isnan(values[5]));
}

TEST(StoredMatrix, ShowsE4m3CodesThatHaveAScaleForEachRowOrForAll) {
  std::vector<uint8_t> codes(8 * 8);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
  const std::vector<float> by_row = {1, 2, 3, 4, 5, 6, 7, 8};
  auto rows = Checkpoint(), all = Checkpoint(), blocks = Checkpoint(), plain = Checkpoint();
  float scales[3] = {};
  const auto of_rows = rows.Add("m.weight", "F8_E4M3", {8, 8}, codes)
                           .Add("m.weight_scale", "F32", {8, 1}, by_row)
                           .Open(kFp8, 8, 8)
                           .value();
  const uint8_t* found = of_rows->Fp8Codes(2, 5, scales);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(std::vector<uint8_t>(found, found + 24),
            std::vector<uint8_t>(codes.begin() + 16, codes.begin() + 40));
  EXPECT_THAT(scales, ElementsAre(3, 4, 5));
  const auto of_all = all.Add("m.weight", "F8_E4M3", {8, 8}, codes)
                          .Add("m.weight_scale", "F32", {}, std::vector<float>{0.5f})
                          .Open(kFp8, 8, 8)
                          .value();
  found = of_all->Fp8Codes(7, 8, scales);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(*found, 56);
  EXPECT_EQ(scales[0], 0.5f);
  QuantizationConfig by_block = kFp8;
  by_block.block_rows = by_block.block_cols = 4;
  const auto of_blocks = blocks.Add("m.weight", "F8_E4M3", {8, 8}, codes)
                             .Add("m.weight_scale_inv", "F32", {2, 2}, std::vector<float>(4, 1.0f))
                             .Open(by_block, 8, 8)
                             .value();
  EXPECT_EQ(of_blocks->Fp8Codes(0, 1, scales), nullptr);
  const auto numbers = plain.Add("m.weight", "F32", {1, 2}, std::vector<float>{1, 2}).Open({}, 1, 2).value();
  EXPECT_EQ(numbers->Fp8Codes(0, 1, scales), nullptr);
}

TEST(StoredMatrix, AwqNibblesComeInTheirOrder) {
  // Word of one input: nibble n is n; so output (0, 2, 4, 6, 1, 3, 5, 7)[n] is n.
  auto checkpoint = Checkpoint();
  std::vector<uint32_t> words(8, 0x76543210);
  const auto matrix = checkpoint.Add("m.qweight", "I32", {8, 1}, words)
                          .Add("m.qzeros", "I32", {1, 1}, std::vector<uint32_t>{0})
                          .Add("m.scales", "F32", {1, 8}, std::vector<float>(8, 1.0f))
                          .Open(kAwq, 8, 8);
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  const std::vector<float> values = Read(**matrix, 0, 8);
  std::vector<float> first_input;
  for (int row = 0; row < 8; ++row) first_input.push_back(values[row * 8]);
  EXPECT_THAT(first_input, ElementsAre(0, 4, 1, 5, 2, 6, 3, 7));
  // Rows from the middle of a word.
  EXPECT_EQ(Read(**matrix, 3, 5)[0], 5.0f);
  EXPECT_EQ(Read(**matrix, 3, 5)[8], 2.0f);
}

TEST(StoredMatrix, AGptqZeroPointOfZeroIsStoredAsFifteen) {
  auto checkpoint = Checkpoint();
  const auto matrix = checkpoint.Add("m.qweight", "I32", {1, 8}, std::vector<uint32_t>(8, 0x76543210))
                          .Add("m.qzeros", "I32", {1, 1}, std::vector<uint32_t>{0x7777777f})
                          .Add("m.scales", "F32", {1, 8}, std::vector<float>(8, 0.5f))
                          .Open(kGptq, 8, 8);
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_THAT(Read(**matrix, 0, 1), ElementsAre(0, 0.5f, 1, 1.5f, 2, 2.5f, 3, 3.5f));
  EXPECT_THAT(Read(**matrix, 1, 2), ElementsAre(-4, -3.5f, -3, -2.5f, -2, -1.5f, -1, -0.5f));
}

TEST(StoredMatrix, NamesTheTensorThatDoesNotFit) {
  const std::vector<uint8_t> bytes(64);
  const std::vector<uint32_t> words(64);
  const std::vector<float> floats(64);
  EXPECT_THAT(Checkpoint().Add("m.weight", "F8_E4M3", {8, 8}, bytes).Error({}, 8, 8),
              HasSubstr("m.weight has dtype F8_E4M3"));
  EXPECT_THAT(Checkpoint().Add("m.weight", "F8_E4M3", {8, 8}, bytes).Error(kFp8, 8, 8),
              HasSubstr("no tensor m.weight_scale"));
  EXPECT_THAT(Checkpoint()
                  .Add("m.weight", "F8_E4M3", {8, 8}, bytes)
                  .Add("m.weight_scale", "F32", {2}, std::vector<float>(2))
                  .Error(kFp8, 8, 8),
              HasSubstr("m.weight_scale has shape [2], want one scale or one per row (8)"));
  QuantizationConfig blocks = kFp8;
  blocks.block_rows = blocks.block_cols = 4;
  EXPECT_THAT(Checkpoint()
                  .Add("m.weight", "F8_E4M3", {8, 8}, bytes)
                  .Add("m.weight_scale_inv", "F32", {}, std::vector<float>(1))
                  .Error(blocks, 8, 8),
              HasSubstr("m.weight_scale_inv has shape [], want [2, 2] (weight_block_size"));
  EXPECT_THAT(Checkpoint()
                  .Add("m.weight", "F8_E4M3", {8, 8}, bytes)
                  .Add("m.weight_scale", "U8", {}, std::vector<uint8_t>(1))
                  .Error(kFp8, 8, 8),
              HasSubstr("m.weight_scale has dtype U8"));
  EXPECT_THAT(Checkpoint().Add("m.qweight", "I32", {8, 2}, std::vector<uint32_t>(16)).Error(kAwq, 8, 8),
              HasSubstr("m.qweight has shape [8, 2], config.json wants [8, 1]"));
  EXPECT_THAT(Checkpoint().Add("m.qweight", "F32", {8, 1}, std::vector<float>(8)).Error(kAwq, 8, 8),
              HasSubstr("m.qweight has dtype F32, want I32"));
  QuantizationConfig groups = kGptq;
  groups.group_size = 3;
  EXPECT_THAT(Checkpoint().Add("m.qweight", "I32", {1, 8}, std::vector<uint32_t>(8)).Error(groups, 8, 8),
              HasSubstr("multiples of 8 and of group_size 3"));
  EXPECT_THAT(Checkpoint()
                  .Add("m.qweight", "I32", {1, 8}, std::vector<uint32_t>(8))
                  .Add("m.qzeros", "I32", {1, 1}, std::vector<uint32_t>(1))
                  .Add("m.scales", "F32", {1, 8}, std::vector<float>(8))
                  .Add("m.g_idx", "I32", {8}, std::vector<int32_t>{0, 0, 0, 0, 0, 0, 0, -1})
                  .Error(kGptq, 8, 8),
              HasSubstr("m.g_idx holds group -1 at 7, the matrix has 1 groups"));
  EXPECT_THAT(Checkpoint().Add("other.weight", "F32", {1}, std::vector<float>(1)).Error({}, 8, 8),
              HasSubstr("no tensor m.weight"));
}

}  // namespace
}  // namespace aludel
