#include <cstdint>
#include <string>
#include <vector>

#include "kernels/fused_decode.h"
#include "tests/kernels/ops_fixture.h"

namespace aludel {
namespace {

// An update of a matrix as a test knows it.
struct Update {
  struct Part {
    int64_t rank, outputs, out_begin;
    float scale;
    std::vector<float> a, b;
  };
  int64_t in, out;
  std::vector<Part> parts;
};

class LowRankOps : public OpsTest {
 protected:
  Update MakeUpdate(int64_t in, int64_t out, const std::vector<Update::Part>& shapes, DType dtype) {
    Update update{in, out, shapes};
    for (Update::Part& part : update.parts) {
      part.a = Rounded(Random(part.rank * in, 0.1f), dtype);
      part.b = Rounded(Random(part.outputs * part.rank, 0.1f), dtype);
    }
    return update;
  }
  static std::vector<float> Rounded(std::vector<float> values, DType dtype) {
    if (dtype == DType::kBf16) {
      for (float& value : values) value = RoundToBf16(value);
    }
    return values;
  }

  std::unique_ptr<PackedLowRank> Pack(Update& update, DType dtype) {
    std::vector<LowRankPart> parts;
    for (Update::Part& part : update.parts) {
      parts.push_back({TensorView::Of(part.a.data(), part.rank, update.in),
                       TensorView::Of(part.b.data(), part.outputs, part.rank), part.scale, part.out_begin});
    }
    return ops_->PackLowRank(parts, update.out, update.in, dtype).value();
  }

  // Over f32 outputs, on the device.
  std::vector<float> Run(const std::vector<float>& x, int64_t in, const std::vector<LowRankRows>& groups,
                         std::vector<float> out, int64_t out_cols, DType dtype) {
    const int64_t rows = static_cast<int64_t>(x.size()) / in;
    DeviceArray<float> result = OnDevice(out);
    const TensorView view = TensorView::Of(result.data(), rows, out_cols);
    if (dtype == DType::kF32) {
      DeviceArray<float> inputs = OnDevice(x);
      ops_->AddLowRank(TensorView::Of(inputs.data(), rows, in), groups, view, {});
      EXPECT_TRUE(device_->Synchronize({}).ok());
    } else {
      DeviceArray<Bf16> inputs = OnDevice(Narrow(x));
      ops_->AddLowRank(TensorView::Of(inputs.data(), rows, in), groups, view, {});
      EXPECT_TRUE(device_->Synchronize({}).ok());
    }
    return result.Read().value();
  }

  static void AddReference(const Update& update, const std::vector<float>& x, int32_t row,
                           std::vector<double>* out) {
    for (const Update::Part& part : update.parts) {
      for (int64_t r = 0; r < part.rank; ++r) {
        double sum = 0;
        for (int64_t i = 0; i < update.in; ++i) {
          sum += double{x[row * update.in + i]} * part.a[r * update.in + i];
        }
        for (int64_t o = 0; o < part.outputs; ++o) {
          (*out)[row * update.out + part.out_begin + o] += sum * part.scale * part.b[o * part.rank + r];
        }
      }
    }
  }
};

TEST_P(LowRankOps, RowsTakeTheUpdatesOfTheirOwnAdapter) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const auto& [in, one, two] :
         {std::tuple<int64_t, int64_t, int64_t>{64, 64, 128}, {50, 3, 70}, {17, 200, 1}}) {
      const int64_t out = one + two;
      // Both parts of the stack; the second alone; the first alone, of a rank that no tile divides.
      std::vector<Update> updates = {MakeUpdate(in, out, {{4, one, 0, 2.0f}, {16, two, one, 0.5f}}, dtype),
                                     MakeUpdate(in, out, {{1, two, one, 1.0f}}, dtype),
                                     MakeUpdate(in, out, {{11, one, 0, 3.0f}}, dtype)};
      const std::vector<std::vector<int32_t>> rows = {{7, 0, 3}, {1, 2, 9, 8, 6}, {5}};
      const int64_t count = 11;  // rows 4 and 10 have no adapter
      const std::vector<float> x = Rounded(Random(count * in), dtype);
      const std::vector<float> before = Random(count * out);
      std::vector<double> expected(before.begin(), before.end());
      std::vector<std::unique_ptr<PackedLowRank>> packed;
      std::vector<LowRankRows> groups;
      for (size_t u = 0; u < updates.size(); ++u) {
        packed.push_back(Pack(updates[u], dtype));
        groups.push_back({packed.back().get(), rows[u]});
        for (const int32_t row : rows[u]) AddReference(updates[u], x, row, &expected);
      }
      ExpectNear(Run(x, in, groups, before, out, dtype), expected, 2e-5);
    }
  }
}

TEST_P(LowRankOps, ARowIsTheSameBitsAloneAndAmongMany) {
  const int64_t in = 300, out = 900, count = 150;
  Update mine = MakeUpdate(in, out, {{9, 500, 0, 1.5f}, {12, 400, 500, 0.7f}}, DType::kBf16);
  Update other = MakeUpdate(in, out, {{16, 900, 0, 1.0f}}, DType::kBf16);
  const auto packed = Pack(mine, DType::kBf16);
  const auto packed_other = Pack(other, DType::kBf16);
  const std::vector<float> x = Rounded(Random(count * in), DType::kBf16);
  const std::vector<float> before = Random(count * out);
  std::vector<int32_t> odd, even;
  for (int32_t row = 0; row < count; ++row) (row % 2 == 1 ? odd : even).push_back(row);
  const auto together =
      Run(x, in, {{packed_other.get(), even}, {packed.get(), odd}}, before, out, DType::kBf16);
  for (const int32_t row : {1, 77, 149}) {
    const auto alone = Run(x, in, {{packed.get(), {&row, 1}}}, before, out, DType::kBf16);
    for (int64_t o = 0; o < out; ++o) {
      ASSERT_EQ(alone[row * out + o], together[row * out + o]) << "row " << row << ", output " << o;
    }
  }
}

TEST_P(LowRankOps, AddsToNarrowOutputs) {
  const int64_t in = 96, out = 130;
  Update update = MakeUpdate(in, out, {{8, out, 0, 1.0f}}, DType::kBf16);
  const auto packed = Pack(update, DType::kBf16);
  const std::vector<float> x = Rounded(Random(2 * in), DType::kBf16);
  const std::vector<float> before = Rounded(Random(2 * out), DType::kBf16);
  std::vector<double> expected(before.begin(), before.end());
  AddReference(update, x, 1, &expected);
  DeviceArray<Bf16> inputs = OnDevice(Narrow(x)), result = OnDevice(Narrow(before));
  const int32_t row = 1;
  ops_->AddLowRank(TensorView::Of(inputs.data(), 2, in), {{packed.get(), {&row, 1}}},
                   TensorView::Of(result.data(), 2, out), {});
  ASSERT_TRUE(device_->Synchronize({}).ok());
  const std::vector<Bf16> narrow = result.Read().value();
  std::vector<float> found;
  for (const Bf16 value : narrow) found.push_back(ToFloat(value));
  ExpectNear(found, expected, 1.0 / 256);
}

// A product and what adapters add to it, in the pieces that the device makes of them.
struct Product {
  int64_t rows;
  WeightFormat format = WeightFormat::kBf16;
  bool narrow = false;  // the result
  bool accumulate = false;
  int parts = 2;  // of one adapter
  int64_t in = 136;
};

TEST_P(LowRankOps, InOnePieceWithTheirProductTheyAreTheSameBits) {
  auto* const fused = dynamic_cast<FusedDecode*>(ops_);
  if (fused == nullptr) GTEST_SKIP() << GetParam().name << " has no coarser operations";
  for (const Product& p : std::vector<Product>{{1},
                                               {8},
                                               {3, WeightFormat::kBf16, true},
                                               {6, WeightFormat::kBf16, false, true},
                                               {7, WeightFormat::kBf16, true, true},
                                               {9},
                                               {8, WeightFormat::kF32},
                                               {8, WeightFormat::kInt8},
                                               {8, WeightFormat::kBf16, false, false, /*parts=*/5},
                                               {8, WeightFormat::kBf16, false, true, 2, /*in=*/133}}) {
    SCOPED_TRACE(testing::Message() << p.rows << " rows of " << p.in << ", " << Name(p.format) << ", "
                                    << p.parts << " parts");
    const DType dtype = p.format == WeightFormat::kF32 ? DType::kF32 : DType::kBf16;
    constexpr int64_t kOut = 100;
    std::vector<Update::Part> parts;
    for (int i = 0; i < p.parts; ++i) parts.push_back({3 + i, kOut / p.parts, kOut / p.parts * i, 0.5f + i});
    std::vector<Update> updates = {MakeUpdate(p.in, kOut, parts, dtype),
                                   MakeUpdate(p.in, kOut, {{16, kOut - 7, 7, 2.0f}}, dtype)};
    const std::unique_ptr<PackedLowRank> packed[] = {Pack(updates[0], dtype), Pack(updates[1], dtype)};
    // Of three rows in turn the first adapter's, the second's and none's.
    std::vector<std::vector<int32_t>> rows(3);
    for (int32_t row = 0; row < p.rows; ++row) rows[row % 3].push_back(row);
    const std::vector<LowRankRows> groups = {{packed[0].get(), rows[0]}, {packed[1].get(), rows[1]}};

    const std::vector<float> x = Rounded(Random(p.rows * p.in), dtype);
    std::vector<float> w = Random(kOut * p.in, 0.1f);
    const auto matrix = ops_->Pack(TensorView::Of(w.data(), kOut, p.in), p.format).value();
    const DeviceArray<float> wide = OnDevice(x), bias = OnDevice(Random(kOut));
    const DeviceArray<Bf16> narrow = OnDevice(Narrow(x));
    const TensorView a = dtype == DType::kF32 ? wide.View(p.rows, p.in) : narrow.View(p.rows, p.in);
    const std::vector<float> before = Random(p.rows * kOut);
    const auto result = [&](const auto& run) -> std::vector<float> {
      if (!p.narrow) {
        const DeviceArray<float> out = OnDevice(before);
        run(out.View(p.rows, kOut));
        EXPECT_TRUE(device_->Synchronize({}).ok());
        return out.Read().value();
      }
      const DeviceArray<Bf16> out = OnDevice(Narrow(before));
      run(out.View(p.rows, kOut));
      EXPECT_TRUE(device_->Synchronize({}).ok());
      const std::vector<Bf16> found = out.Read().value();
      std::vector<float> values;
      for (const Bf16 value : found) values.push_back(ToFloat(value));
      return values;
    };
    const std::vector<float> apart = result([&](const TensorView& out) {
      ops_->Gemm(a, *matrix, bias.data(), p.accumulate, out, {});
      ops_->AddLowRank(a, groups, out, {});
    });
    // Twice, as the second finds what the first leaves.
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(result([&](const TensorView& out) {
                  fused->GemmLowRank(a, *matrix, bias.data(), p.accumulate, groups, out, {});
                }),
                apart);
    }
    for (const float value : apart) ASSERT_FALSE(std::isnan(value));
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, LowRankOps, ::testing::ValuesIn(kDevices), DeviceLabel);

}  // namespace
}  // namespace aludel
