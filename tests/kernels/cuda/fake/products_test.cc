#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device_health.h"
#include "kernels/device_options.h"
#include "kernels/open_device.h"
#include "kernels/ops.h"
#include "tests/kernels/cuda/fake/fake_cuda.h"
#include "tests/kernels/device_array.h"

// Which kernel, or which of cuBLASLt's algorithms, multiplies what.
namespace aludel::cuda::fake {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Device> Open() { return OpenDevice({.name = "cuda:0"}).value(); }

TEST(FakeCudaProducts, AProductWithoutAnAlgorithmIsRightAndCounted) {
  constexpr int64_t kRows = 40, kIn = 64, kOut = 48;
  for (const bool with_bias : {false, true}) {
    const auto device = Open();
    const std::vector<float> a(kRows * kIn, 0.5f), w(kOut * kIn, 0.25f), b(kOut, 3.0f);
    const DeviceArray<float> in(*device, a), bias(*device, b), out(*device, std::vector<float>(kRows * kOut));
    const auto packed = device->ops().NewPacked(kOut, kIn, WeightFormat::kF32).value();
    std::vector<float> rows = w;
    ASSERT_TRUE(device->ops().PackRows(TensorView::Of(rows.data(), kOut, kIn), 0, *packed).ok());
    const int64_t before = SlowProductsMet().shapes;
    WithholdHeuristics(true);
    ResetCounts();
    device->ops().Gemm(TensorView::Of(in.data(), kRows, kIn), *packed, with_bias ? bias.data() : nullptr,
                       /*accumulate=*/false, TensorView::Of(out.data(), kRows, kOut), Stream{});
    const std::vector<float> found = out.Read().value();
    WithholdHeuristics(false);
    for (const float value : found) ASSERT_EQ(value, kIn * 0.125f + (with_bias ? 3.0f : 0.0f));
    EXPECT_EQ(SlowProductsMet().shapes, before + 1);
    EXPECT_THAT(SlowProductsMet().latest, HasSubstr("[40, 64] f32 by 48 x 64"));
    EXPECT_EQ(counts().launches["TileGemm<float, float>"], 1);
  }
}

// Of bf16 by tensor cores, 64 rows at a time, whatever is added and whichever type comes out; held against a sum in double.
TEST(FakeCudaProducts, RowsOfBf16WithoutAnAlgorithmAreMultipliedInBatches) {
  constexpr int64_t kRows = 2 * 64 + 3, kIn = 136, kOut = 140;
  const uint64_t seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const auto numbers = [&](int64_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = RoundToBf16(normal(random));
    return values;
  };
  const std::vector<float> a = numbers(kRows * kIn), b = numbers(kOut), before = numbers(kRows * kOut);
  std::vector<float> w = numbers(kOut * kIn);
  std::vector<Bf16> narrow(a.size());
  std::transform(a.begin(), a.end(), narrow.begin(), ToBf16);
  // By the option that keeps batches from our own kernel, too: here there is no library to take them.
  for (const bool batch_gemm : {true, false}) {
    const auto device = OpenDevice({.name = "cuda:0", .batch_gemm = batch_gemm}).value();
    const auto packed = device->ops().Pack(TensorView::Of(w.data(), kOut, kIn), WeightFormat::kBf16).value();
    const DeviceArray<Bf16> in(*device, narrow);
    const DeviceArray<float> bias(*device, b), out(*device, before);
    const int64_t slow = SlowProductsMet().shapes;
    WithholdHeuristics(true);
    ResetCounts();
    device->ops().Gemm(in.View(kRows, kIn), *packed, bias.data(), /*accumulate=*/true, out.View(kRows, kOut),
                       Stream{});
    const std::vector<float> found = out.Read().value();
    WithholdHeuristics(false);
    EXPECT_EQ(counts().launches,
              (std::map<std::string, int64_t>{{"BatchProduct<8>", 2}, {"BatchProduct<2>", 1}}));
    EXPECT_EQ(SlowProductsMet().shapes, slow + 1);
    EXPECT_THAT(SlowProductsMet().latest, HasSubstr("[131, 136] bf16 by 140 x 136"));
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t o = 0; o < kOut; ++o) {
        double sum = double{before[r * kOut + o]} + b[o], size = 1;
        for (int64_t k = 0; k < kIn; ++k) {
          sum += double{a[r * kIn + k]} * w[o * kIn + k];
          size += std::fabs(double{a[r * kIn + k]} * w[o * kIn + k]);
        }
        ASSERT_NEAR(found[r * kOut + o], sum, 1e-6 * size) << "row " << r << ", output " << o;
      }
    }
  }
}

// Of bf16 whose rows no load of 16 bytes reads, the tile kernel is left.
TEST(FakeCudaProducts, UnalignedRowsWithoutAnAlgorithmAreMultipliedInTiles) {
  constexpr int64_t kRows = 70, kIn = 64, kOut = 24;
  const auto device = Open();
  std::vector<float> w(kOut * kIn, 0.25f);
  const auto packed = device->ops().Pack(TensorView::Of(w.data(), kOut, kIn), WeightFormat::kBf16).value();
  const DeviceArray<Bf16> in(*device, std::vector<Bf16>(kRows * kIn + 1, ToBf16(0.5f)));
  const DeviceArray<float> out(*device, std::vector<float>(kRows * kOut, NAN));
  ResetCounts();
  device->ops().Gemm({in.data() + 1, DType::kBf16, kRows, kIn, kIn}, *packed, nullptr, /*accumulate=*/false,
                     out.View(kRows, kOut), Stream{});
  const std::vector<float> found = out.Read().value();
  for (const float value : found) ASSERT_EQ(value, kIn * 0.125f);
  EXPECT_EQ(counts().launches, (std::map<std::string, int64_t>{{"TileGemm<Bf16, float>", 1}}));
}

TEST(FakeCudaProducts, AShapeIsCountedOnceThoughItsPlanIsForgotten) {
  constexpr int64_t kWidth = 8, kShapes = 1024;  // as many as are remembered
  const auto device = Open();
  const DeviceArray<float> in(*device, std::vector<float>((kShapes + 1) * kWidth, 1.0f));
  const DeviceArray<float> out(*device, std::vector<float>((kShapes + 1) * kWidth));
  const auto packed = device->ops().NewPacked(kWidth, kWidth, WeightFormat::kF32).value();
  std::vector<float> w(kWidth * kWidth, 1.0f);
  ASSERT_TRUE(device->ops().PackRows(TensorView::Of(w.data(), kWidth, kWidth), 0, *packed).ok());
  const auto multiply = [&](int64_t rows) {
    device->ops().Gemm(TensorView::Of(in.data(), rows, kWidth), *packed, nullptr, /*accumulate=*/false,
                       TensorView::Of(out.data(), rows, kWidth), Stream{});
  };
  const int64_t before = SlowProductsMet().shapes;
  WithholdHeuristics(true);
  for (int64_t rows = 1; rows <= kShapes; ++rows) multiply(rows);
  EXPECT_EQ(SlowProductsMet().shapes, before + kShapes);
  multiply(kShapes + 1);
  multiply(1);
  EXPECT_EQ(SlowProductsMet().shapes, before + kShapes);
  EXPECT_TRUE(device->Synchronize(Stream{}).ok());
  WithholdHeuristics(false);
}

// Products of 2^30 operations are timed, smaller ones are not.
constexpr int64_t kTimedRows = 512, kTimedIn = 1024, kTimedOut = 1024;

// A device and a product of its own, with what cuBLASLt offers for it.
class TimedAlgorithms : public ::testing::Test {
 protected:
  explicit TimedAlgorithms(const DeviceOptions& options = {.name = "cuda:0"})
      : device_(OpenDevice(options).value()),
        in_(*device_, std::vector<Bf16>((kTimedRows + 1024) * kTimedIn, ToBf16(0.5f))),
        out_(*device_, std::vector<float>((kTimedRows + 1024) * kTimedOut, 1.0f)) {
    std::vector<float> w(kTimedOut * kTimedIn, 0.25f);
    packed_ = device_->ops().Pack(TensorView::Of(w.data(), kTimedOut, kTimedIn), WeightFormat::kBf16).value();
    CountOnly(true);
    ResetCounts();
  }
  ~TimedAlgorithms() override {
    CountOnly(false);
    Heal();
  }

  // How often each algorithm has run for a product of so many rows.
  std::map<int, int64_t> Multiply(int64_t rows, bool accumulate = false, Stream stream = {}) {
    Enqueue(rows, accumulate, stream);
    EXPECT_TRUE(device_->Synchronize(stream).ok());
    std::map<int, int64_t> ran = counts().algorithms;
    ResetCounts();
    return ran;
  }
  void Enqueue(int64_t rows, bool accumulate, Stream stream) {
    device_->ops().Gemm(in_.View(rows, kTimedIn), *packed_, nullptr, accumulate, out_.View(rows, kTimedOut),
                        stream);
  }

  using Runs = std::map<int, int64_t>;
  static constexpr int64_t kEach = 4;  // once to load its code, and three times

  std::unique_ptr<Device> device_;
  DeviceArray<Bf16> in_;
  DeviceArray<float> out_;
  std::unique_ptr<PackedMatrix> packed_;
};

TEST_F(TimedAlgorithms, TheFastestIsKept) {
  const TimedProducts before = ProductsTimed();
  OfferAlgorithms({30, 10, 20});
  EXPECT_EQ(Multiply(kTimedRows), (Runs{{0, kEach}, {1, kEach + 1}, {2, kEach}}));
  OfferAlgorithms({1, 10, 2});
  EXPECT_EQ(Multiply(kTimedRows), (Runs{{1, 1}}));
  // Another class of rows, and the same one that is added to what is there.
  EXPECT_EQ(Multiply(kTimedRows + 1), (Runs{{0, kEach + 1}, {1, kEach}, {2, kEach}}));
  EXPECT_EQ(Multiply(kTimedRows, /*accumulate=*/true), (Runs{{0, kEach + 1}, {1, kEach}, {2, kEach}}));
  const TimedProducts after = ProductsTimed();
  EXPECT_EQ(after.shapes, before.shapes + 3);
  EXPECT_EQ(after.improved, before.improved + 1);
  EXPECT_NEAR(after.milliseconds - before.milliseconds, 0.004 * (60 + 13 + 13), 1e-6);
}

TEST_F(TimedAlgorithms, EightAtMostAreTimedAndNoneBehindATenthOfASecond) {
  OfferAlgorithms({9, 9, 9, 9, 9, 9, 9, 8, 1});
  const Runs ran = Multiply(kTimedRows);
  EXPECT_EQ(ran.size(), 8);
  EXPECT_EQ(ran.at(7), kEach + 1);
  OfferAlgorithms({20e3, 19e3, 1});
  EXPECT_EQ(Multiply(kTimedRows + 1), (Runs{{0, kEach}, {1, kEach + 1}}));
}

TEST_F(TimedAlgorithms, WhatFailsIsLeftOut) {
  OfferAlgorithms({30, -1, 20});
  EXPECT_EQ(Multiply(kTimedRows), (Runs{{0, kEach}, {2, kEach + 1}}));
  EXPECT_TRUE(device_->Synchronize(Stream{}).ok());
}

// Prompts bring many numbers of rows; each timed would be a wait of its own.
TEST_F(TimedAlgorithms, AClassOfRowsTakesWhatWasTimedOnce) {
  OfferAlgorithms({30, 10, 20});
  EXPECT_EQ(Multiply(600), (Runs{{0, kEach}, {1, kEach + 1}, {2, kEach}}));
  for (const int64_t rows : {513, 601, 768}) EXPECT_EQ(Multiply(rows), (Runs{{1, 1}})) << rows;
  EXPECT_EQ(Multiply(769), (Runs{{0, kEach}, {1, kEach + 1}, {2, kEach}}));
  // One that it cannot make has cuBLASLt's first.
  OfferAlgorithms({30, -1, 20});
  EXPECT_EQ(Multiply(700), (Runs{{0, 1}}));
}

TEST_F(TimedAlgorithms, SmallProductsTakeTheFirst) {
  OfferAlgorithms({30, 10});
  EXPECT_EQ(Multiply(kTimedRows - 1), (Runs{{0, 1}}));
}

// Added once and not as often as it was timed; where there is no memory for the others, the first it is.
TEST_F(TimedAlgorithms, WhatIsAddedToIsAddedToOnce) {
  CountOnly(false);
  OfferAlgorithms({2, 1});
  EXPECT_EQ(Multiply(kTimedRows, /*accumulate=*/true), (Runs{{0, kEach}, {1, kEach + 1}}));
  const std::vector<float> found = out_.Read().value();
  for (int64_t i = 0; i < kTimedRows * kTimedOut; ++i) ASSERT_EQ(found[i], 1.0f + kTimedIn * 0.125f);
  for (size_t i = kTimedRows * kTimedOut; i < found.size(); ++i) ASSERT_EQ(found[i], 1.0f);
  CountOnly(true);
  FailAllocationsAbove(1 << 20);
  EXPECT_EQ(Multiply(kTimedRows + 1, /*accumulate=*/true), (Runs{{0, 1}}));
}

// A graph's calls are not timed, and what was chosen for them stays.
TEST_F(TimedAlgorithms, NotWhereAGraphIsCaptured) {
  OfferAlgorithms({2, 1});
  const Stream stream = device_->CreateStream().value();
  Multiply(kTimedRows, false, stream);
  // The second time calls are captured, and these are others than those of the first time.
  for (const int64_t rows : {kTimedRows, kTimedRows + 1}) {
    device_->Replay({.calls = 7, .positions = 1}, stream, [&] { Enqueue(rows, false, stream); });
    EXPECT_TRUE(device_->Synchronize(stream).ok());
    EXPECT_EQ(counts().algorithms, rows == kTimedRows ? (Runs{{1, 1}}) : (Runs{{0, 1}}));
    ResetCounts();
  }
  EXPECT_EQ(device_->replay_stats(stream).captured, 1);
  EXPECT_EQ(Multiply(kTimedRows + 1, false, stream), (Runs{{0, 1}}));
  device_->DestroyStream(stream);
}

// However many numbers of rows come.
TEST_F(TimedAlgorithms, AChoiceIsForGood) {
  OfferAlgorithms({2, 1});
  const std::set<int64_t> firsts = {kTimedRows, kTimedRows + 1, 769, 1025};  // of a class
  for (int64_t rows = kTimedRows; rows < kTimedRows + 1024; ++rows) {
    ASSERT_EQ(Multiply(rows), firsts.contains(rows) ? (Runs{{0, kEach}, {1, kEach + 1}}) : (Runs{{1, 1}}))
        << rows;
  }
  Multiply(kTimedRows, /*accumulate=*/true);
  for (const int64_t rows : {kTimedRows, kTimedRows + 1023}) EXPECT_EQ(Multiply(rows), (Runs{{1, 1}}));
}

// Those behind the first 768 take the first, again and again.
TEST_F(TimedAlgorithms, ShapesBehindManyAreNotTimed) {
  OfferAlgorithms({2, 1});
  constexpr int kTimed = 768;
  const auto multiply = [&](int i) {
    TensorView in = in_.View(kTimedRows, kTimedIn), out = out_.View(kTimedRows, kTimedOut);
    in.stride += 8 * (i / 4);
    out.stride += 4 * (i % 4);
    device_->ops().Gemm(in, *packed_, nullptr, /*accumulate=*/false, out, Stream{});
    EXPECT_TRUE(device_->Synchronize(Stream{}).ok());
    Runs ran = counts().algorithms;
    ResetCounts();
    return ran;
  };
  for (int i = 0; i < 1024; ++i) {
    ASSERT_EQ(multiply(i), i < kTimed ? (Runs{{0, kEach}, {1, kEach + 1}}) : (Runs{{0, 1}})) << i;
  }
  multiply(1024);  // plans are forgotten, and choices are not
  EXPECT_EQ(multiply(0), (Runs{{1, 1}}));
  EXPECT_EQ(multiply(kTimed), (Runs{{0, 1}}));
}

class UntimedAlgorithms : public TimedAlgorithms {
 protected:
  UntimedAlgorithms() : TimedAlgorithms({.name = "cuda:0", .time_algorithms = false}) {}
};

TEST_F(UntimedAlgorithms, AreTheFirst) {
  OfferAlgorithms({30, 10});
  EXPECT_EQ(Multiply(kTimedRows), (Runs{{0, 1}}));
}

// Rows of a batch, and which kernel multiplies them.
TEST(FakeCudaProducts, ProductsOfBatchesAreOurOwnKernels) {
  constexpr int64_t kIn = 72, kOut = 140;
  for (const bool batch : {true, false}) {
    const auto device = OpenDevice({.name = "cuda:0", .batch_gemm = batch}).value();
    const DeviceArray<Bf16> in(*device, std::vector<Bf16>(65 * kIn, ToBf16(0.5f)));
    const DeviceArray<float> out(*device, std::vector<float>(65 * kOut));
    std::vector<float> w(kOut * kIn, 0.25f);
    const auto packed = device->ops().Pack(TensorView::Of(w.data(), kOut, kIn), WeightFormat::kBf16).value();
    const std::string library = "cublasLtMatmul";
    const std::vector<std::pair<int64_t, std::string>> wanted = {
        {8, "Bf16Product<1>"},
        {9, batch ? "BatchProduct<2>" : "Bf16Product<2>"},
        {16, batch ? "BatchProduct<2>" : "Bf16Product<2>"},
        {17, batch ? "BatchProduct<4>" : library},
        {32, batch ? "BatchProduct<4>" : library},
        {33, batch ? "BatchProduct<8>" : library},
        {64, batch ? "BatchProduct<8>" : library},
        {65, library}};
    for (const auto& [rows, kernel] : wanted) {
      ResetCounts();
      device->ops().Gemm(in.View(rows, kIn), *packed, nullptr, /*accumulate=*/false, out.View(rows, kOut),
                         Stream{});
      const std::vector<float> found = out.Read().value();
      EXPECT_EQ(counts().launches, (std::map<std::string, int64_t>{{kernel, 1}})) << rows;
      for (int64_t i = 0; i < rows * kOut; ++i) ASSERT_EQ(found[i], kIn * 0.125f) << rows;
    }
    // Rows that are no whole pieces of 16 bytes.
    ResetCounts();
    device->ops().Gemm({in.data() + 1, DType::kBf16, 20, kIn, kIn}, *packed, nullptr, /*accumulate=*/false,
                       out.View(20, kOut), Stream{});
    EXPECT_TRUE(device->Synchronize(Stream{}).ok());
    EXPECT_EQ(counts().launches.count("BatchProduct<4>"), 0);
  }
}

// Up to 64 rows read them as they are stored, 16 at a time; with more they become numbers for the library.
TEST(FakeCudaProducts, ProductsOfBatchesReadWeightsWithScalesAsTheyAre) {
  constexpr int64_t kIn = 96, kOut = 40;
  const auto device = Open();
  const DeviceArray<Bf16> in(*device, std::vector<Bf16>(65 * kIn, ToBf16(0.5f)));
  std::vector<float> w(kOut * kIn, 0.25f);
  const auto packed = device->ops().Pack(TensorView::Of(w.data(), kOut, kIn), WeightFormat::kInt8).value();
  using Launches = std::map<std::string, int64_t>;
  const std::string product = "ScaledProduct<(WeightFormat)2, ";
  const std::vector<std::pair<int64_t, Launches>> wanted = {
      {16, {{"QuantizeRows", 1}, {product + "2>", 1}}},
      {17, {{"QuantizeRows", 2}, {product + "1>", 1}, {product + "2>", 1}}},
      {64, {{"QuantizeRows", 4}, {product + "2>", 4}}},
      {65, {{"Dequantize<Bf16>", 1}, {"cublasLtMatmul", 1}}}};
  for (const auto& [rows, launches] : wanted) {
    const DeviceArray<float> out(*device, std::vector<float>(rows * kOut, NAN));
    ResetCounts();
    device->ops().Gemm(in.View(rows, kIn), *packed, nullptr, /*accumulate=*/false, out.View(rows, kOut),
                       Stream{});
    const std::vector<float> found = out.Read().value();
    for (const float value : found) ASSERT_NEAR(value, kIn * 0.125f, 0.1f) << rows;
    EXPECT_EQ(counts().launches, launches) << rows;
  }
}

}  // namespace
}  // namespace aludel::cuda::fake
