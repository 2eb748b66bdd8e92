#include "runtime/codec/artifact/weight_file.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

constexpr char kFile[] = "weights.safetensors";

// A directory for one weight file, written and read back.
class WeightFiles : public ::testing::Test {
 protected:
  WeightFiles() {
    std::string pattern = ::testing::TempDir() + "/weightsXXXXXX";
    manifest_.directory = ::mkdtemp(pattern.data());
  }
  ~WeightFiles() override { std::filesystem::remove_all(manifest_.directory); }

  // Writes `matrix` and opens the file.
  WeightFile Store(const HostMatrix& matrix, MatrixStorage storage) {
    TensorList tensors(storage);
    tensors.AddMatrix("m", matrix);
    const auto file = WriteWeights(manifest_.directory, kFile, tensors);
    EXPECT_TRUE(file.ok()) << file.status();
    auto open = WeightFile::Open(manifest_, *file);
    EXPECT_TRUE(open.ok()) << open.status();
    return *std::move(open);
  }
  HostMatrix RoundTrip(const HostMatrix& matrix, MatrixStorage storage) {
    auto read = Store(matrix, storage).Matrix("m", matrix.rows, matrix.cols);
    EXPECT_TRUE(read.ok()) << read.status();
    return *std::move(read);
  }
  std::string Slurp() const {
    std::ostringstream text;
    text << std::ifstream(manifest_.directory + "/" + kFile, std::ios::binary).rdbuf();
    return text.str();
  }
  // The complaint about an I8 matrix [2, 2] with these scales.
  std::string Complaint(const std::vector<float>& scales) {
    const uint8_t codes[4] = {1, 2, 3, 4};
    const absl::Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(scales.data()), 4 * scales.size());
    std::vector<SafetensorsTensor> tensors = {{"m", "I8", {2, 2}, codes}};
    if (!scales.empty()) {
      tensors.push_back({"m.scale", "F32", {static_cast<int64_t>(scales.size())}, bytes});
    }
    EXPECT_TRUE(WriteSafetensors(manifest_.directory + "/" + kFile, tensors, {}).ok());
    const std::string text = Slurp();
    const auto file = WeightFile::Open(
        manifest_, {kFile, Sha256Hex({reinterpret_cast<const uint8_t*>(text.data()), text.size()})});
    EXPECT_TRUE(file.ok()) << file.status();
    return std::string(file->Matrix("m", 2, 2).status().message());
  }

  ArtifactManifest manifest_;
};

// Rows of very different sizes, as latents have them; the last one is zero.
HostMatrix UnevenRows() {
  HostMatrix matrix = HostMatrix::Zeros(5, 37);
  uint32_t state = 1;
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t c = 0; c < matrix.cols; ++c) {
      state = state * 1664525 + 1013904223;
      matrix.row(r)[c] = (static_cast<float>(state >> 8) / 8388608.0f - 1.0f) * std::pow(10.0f, r - 2);
    }
  }
  return matrix;
}

TEST_F(WeightFiles, F32KeepsEveryBit) {
  EXPECT_EQ(RoundTrip(UnevenRows(), MatrixStorage::kF32).values, UnevenRows().values);
}

TEST_F(WeightFiles, Bf16IsWithinHalfAUnitOfItsLastBit) {
  const HostMatrix matrix = UnevenRows();
  const HostMatrix read = RoundTrip(matrix, MatrixStorage::kBf16);
  for (size_t i = 0; i < matrix.values.size(); ++i) {
    EXPECT_LE(std::abs(read.values[i] - matrix.values[i]), std::abs(matrix.values[i]) / 256) << i;
  }
}

TEST_F(WeightFiles, Int8IsWithinHalfAStepOfItsRow) {
  const HostMatrix matrix = UnevenRows();
  const HostMatrix read = RoundTrip(matrix, MatrixStorage::kInt8);
  for (int64_t r = 0; r < matrix.rows; ++r) {
    float largest = 0;
    for (int64_t c = 0; c < matrix.cols; ++c) largest = std::max(largest, std::abs(matrix.row(r)[c]));
    for (int64_t c = 0; c < matrix.cols; ++c) {
      EXPECT_LE(std::abs(read.row(r)[c] - matrix.row(r)[c]), largest / 127 * 0.5001f) << r << ", " << c;
    }
  }
}

TEST_F(WeightFiles, Int8ReadAndStoredAgainIsTheSameBytes) {
  const HostMatrix once = RoundTrip(UnevenRows(), MatrixStorage::kInt8);
  const std::string bytes = Slurp();
  EXPECT_EQ(RoundTrip(once, MatrixStorage::kInt8).values, once.values);
  EXPECT_EQ(Slurp(), bytes);
}

TEST_F(WeightFiles, RowsTooSmallForAScaleBecomeZero) {
  HostMatrix matrix = HostMatrix::Zeros(1, 2);
  matrix.values = {std::numeric_limits<float>::denorm_min(), 0};
  EXPECT_THAT(RoundTrip(matrix, MatrixStorage::kInt8).values, ::testing::Each(0.0f));
}

TEST_F(WeightFiles, Int8NeedsAFiniteScaleForEveryRow) {
  EXPECT_THAT(Complaint({}), HasSubstr("m.scale"));
  EXPECT_THAT(Complaint({1}), HasSubstr("tensor m.scale has shape [1], want [2]"));
  EXPECT_THAT(Complaint({1, std::numeric_limits<float>::infinity()}), HasSubstr("m.scale, value 1 is inf"));
  EXPECT_THAT(Complaint({1, 3e38f}), HasSubstr("tensor m.scale, value 1 is 3e+38"));
}

TEST_F(WeightFiles, ShapeIsCheckedBeforeCodesAreRead) {
  const WeightFile file = Store(UnevenRows(), MatrixStorage::kInt8);
  EXPECT_THAT(std::string(file.Matrix("m", 37, 5).status().message()),
              HasSubstr("has shape [5, 37], want [37, 5]"));
  EXPECT_THAT(std::string(file.Values("m", {5, 37}).status().message()), HasSubstr("dtype I8, want F32"));
}

TEST(MatrixStorage, IsReadFromItsName) {
  EXPECT_EQ(*ParseMatrixStorage("int8"), MatrixStorage::kInt8);
  EXPECT_THAT(std::string(ParseMatrixStorage("fp8").status().message()),
              HasSubstr("\"fp8\", want f32, bf16 or int8"));
}

}  // namespace
}  // namespace aludel
