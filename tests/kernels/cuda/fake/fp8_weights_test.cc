#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device_health.h"
#include "kernels/open_device.h"
#include "kernels/ops.h"
#include "tests/kernels/cuda/fake/fake_cuda.h"
#include "tests/kernels/device_array.h"
#include "tests/testing/test_model.h"

// How weights in FP8 reach cuBLASLt and our own kernel, and what of a checkpoint is kept in them.
namespace aludel::cuda::fake {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Device> Open() { return OpenDevice({.name = "cuda:0"}).value(); }

// One product of E4M3 weights by all ways that there are to it.
struct Fp8Way {
  const char* says;
  int major, minor;
  bool heuristics, bias;
  int64_t products, scaled, few;  // launches: cuBLASLt's, those of sums to results, those of 16 rows
};

TEST(FakeFp8, Fp8ProductsGoThroughCublasLtAsItsDeviceHasThem) {
  constexpr int64_t kRows = 40, kIn = 64, kOut = 48;
  std::vector<float> a(kRows * kIn), w(kOut * kIn), b(kOut);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(static_cast<int>(i * 7 % 9) - 4);
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(static_cast<int>(i * 5 % 13) - 6);
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i);
  for (int64_t r = 0; r < kRows; ++r) a[r * kIn] = 448.0f / 64.0f;  // scales that round nothing
  for (int64_t o = 0; o < kOut; ++o) w[o * kIn] = 448.0f / 64.0f;
  for (const Fp8Way& way : {Fp8Way{"scales within", 9, 0, true, false, 1, 0, 0},
                            {"a bias in f32", 9, 0, true, true, 1, 1, 0},
                            {"no scales by row", 8, 9, true, false, 1, 1, 0},
                            {"nor on later ones", 10, 0, true, true, 1, 1, 0},
                            {"no algorithm", 9, 0, false, true, 0, 0, 3}}) {
    PretendCapability(way.major, way.minor);
    const auto device = Open();
    const DeviceArray<float> in(*device, a), bias(*device, b), out(*device, std::vector<float>(kRows * kOut));
    const auto packed = device->ops().Pack(TensorView::Of(w.data(), kOut, kIn), WeightFormat::kFp8).value();
    EXPECT_TRUE(device->ops().KeepsFp8());
    const int64_t slow = SlowProductsMet().shapes;
    WithholdHeuristics(!way.heuristics);
    ResetCounts();
    device->ops().Gemm(in.View(kRows, kIn), *packed, way.bias ? bias.data() : nullptr, /*accumulate=*/false,
                       out.View(kRows, kOut), Stream{});
    const std::vector<float> found = out.Read().value();
    Counts counted = counts();
    Heal();
    EXPECT_EQ(counted.launches["QuantizeFp8<float, true>"], 1) << way.says;
    EXPECT_EQ(counted.launches["cublasLtMatmul"], way.products) << way.says;
    EXPECT_EQ(counted.launches["ScaleFp8<float, true>"], way.scaled) << way.says;
    EXPECT_EQ(counted.launches["Fp8Product<1>"] + counted.launches["Fp8Product<2>"], way.few) << way.says;
    EXPECT_EQ(SlowProductsMet().shapes, slow + (way.heuristics ? 0 : 1)) << way.says;
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t o = 0; o < kOut; ++o) {
        float sum = way.bias ? b[o] : 0.0f;
        for (int64_t i = 0; i < kIn; ++i) sum += a[r * kIn + i] * w[o * kIn + i];
        ASSERT_FLOAT_EQ(found[r * kOut + o], sum) << way.says << ": " << r << ", " << o;
      }
    }
  }
}

// As of other types (TimedAlgorithms): the fastest is kept, and what the product is added to is added to once.
TEST(FakeFp8, AlgorithmsOfLargeProductsAreTimed) {
  constexpr int64_t kRows = 512, kIn = 1024, kOut = 1024, kEach = 4;
  const auto device = Open();
  const DeviceArray<Bf16> in(*device, std::vector<Bf16>(kRows * kIn, ToBf16(0.5f)));
  const DeviceArray<float> out(*device, std::vector<float>(kRows * kOut, 1.0f));
  std::vector<float> w(kOut * kIn, 0.25f);
  const auto packed = device->ops().Pack(TensorView::Of(w.data(), kOut, kIn), WeightFormat::kFp8).value();
  OfferAlgorithms({30, 10, 20});
  using Runs = std::map<int, int64_t>;
  // The last is too small to be timed.
  for (const auto& [rows, runs] : {std::pair{kRows, Runs{{0, kEach}, {1, kEach + 1}, {2, kEach}}},
                                   {kRows, Runs{{1, 1}}},
                                   {kRows - 1, Runs{{0, 1}}}}) {
    ResetCounts();
    device->ops().Gemm(in.View(rows, kIn), *packed, nullptr, /*accumulate=*/true, out.View(rows, kOut),
                       Stream{});
    ASSERT_TRUE(device->Synchronize(Stream{}).ok());
    EXPECT_EQ(counts().algorithms, runs) << rows;
  }
  Heal();
  const std::vector<float> found = out.Read().value();
  for (int64_t i = 0; i < kRows * kOut; ++i) {
    ASSERT_NEAR(found[i], 1.0f + (i < (kRows - 1) * kOut ? 3 : 2) * kIn * 0.125f, 1e-3f) << i;
  }
}

TEST(FakeFp8, WithoutFp8ADeviceSaysWhatItTakes) {
  PretendCapability(8, 6);
  const auto device = Open();
  Heal();
  EXPECT_FALSE(device->ops().KeepsFp8());
  const absl::Status status = device->ops().NewPacked(16, 16, WeightFormat::kFp8).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("cuda:0 has compute capability 8.6, weights in fp8 want 8.9 or more; int8 and int4"));
}

// What of a checkpoint stays FP8 where nothing is said: that which is made for inputs in FP8, with a scale for each row or
// for all, on a device that has it.
TEST(FakeFp8, AnFp8CheckpointStaysInFp8) {
  struct Case {
    const char* name;
    DType compute;
    int capability;
    int kept, dequantized;  // matrices and stacks: five of each of two layers, and a head
  };
  for (const Case& c : {Case{"tests/runtime/model/golden/tiny/fp8_row", DType::kBf16, 90, 10, 0},
                        {"tests/runtime/model/golden/tiny/fp8_tensor", DType::kBf16, 89, 10, 0},
                        {"tests/runtime/model/golden/tiny/fp8_row", DType::kBf16, 80, 0, 0},
                        {"tests/runtime/model/golden/tiny/fp8_row", DType::kF32, 90, 0, 0},
                        {"tests/runtime/model/golden/tiny/fp8_block", DType::kBf16, 90, 0, 10},
                        {"tests/runtime/model/golden/tiny/fp8_compressed_head", DType::kBf16, 90, 0, 11},
                        {"tests/runtime/model/golden/tiny/llama_linear", DType::kBf16, 90, 0, 0},
                        {"deploy/demo/chat", DType::kBf16, 90, 0, 0}}) {
    PretendCapability(c.capability / 10, c.capability % 10);
    TestModel model(c.name, {.compute = c.compute, .max_rows = 64}, DType::kBf16, 64);
    Heal();
    EXPECT_EQ(model.model().load_report().kept_fp8, c.kept) << c.name << ", " << c.capability;
    EXPECT_EQ(model.model().load_report().dequantized_fp8, c.dequantized) << c.name << ", " << c.capability;
    ResetCounts();
    model.Run({5});
    EXPECT_EQ(counts().launches["Fp8Product<1>"], c.kept) << c.name << ", " << c.capability;
  }
}

// Those of a checkpoint that is quantized for its weights alone, where they are asked for: a byte a weight in decode steps.
TEST(FakeFp8, AskedForServesAModel) {
  const std::vector<int32_t> prompt = {3,  141, 59, 26,  5,  35, 89, 79, 32,
                                       38, 46,  26, 433, 83, 27, 95, 28, 84};
  TestModel whole("deploy/demo/chat", {.max_rows = 64}, DType::kBf16, 64);
  TestModel fp8("deploy/demo/chat", {.weights = WeightFormat::kFp8, .max_rows = 64}, DType::kBf16, 64);
  whole.Run(prompt);
  ResetCounts();
  fp8.Run(prompt);
  // Queries, keys with values, output, gate with up, down: more rows than the kernel for few takes; and the head, for one.
  const int64_t products = 5 * fp8.model().config().layers;
  EXPECT_EQ(counts().launches["cublasLtMatmul"], products);
  EXPECT_EQ(counts().launches["Fp8Product<1>"], 1);
  const std::vector<float> expected = whole.Run({5});
  float largest = 0;
  for (const float logit : expected) largest = std::max(largest, std::fabs(logit));
  ResetCounts();
  const std::vector<float> found = fp8.Run({5});
  EXPECT_EQ(counts().launches["Fp8Product<1>"], products + 1);
  for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 0.1f * largest);
}

}  // namespace
}  // namespace aludel::cuda::fake
