#include "kernels/cpu/fp8_gemm.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/cpu/rows.h"
#include "kernels/e4m3_scale.h"

namespace aludel::cpu {
namespace {

std::array<float, 256> MakeValues() {
  std::array<float, 256> values;
  for (int code = 0; code < 256; ++code) values[code] = FromE4m3(static_cast<uint8_t>(code));
  return values;
}
const std::array<float, 256>& Values() {
  static const std::array<float, 256> values = MakeValues();
  return values;
}

// The largest |x|; NaN if there is one: without their signs floats order as integers do, NaN last.
float LargestOf(const float* x, int64_t count) {
  int32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, __builtin_bit_cast(int32_t, x[i]) & 0x7fffffff);
  }
  return __builtin_bit_cast(float, largest);
}

// Rows of `a` as the numbers that their codes stand for, and their scales. Rows are spread evenly over groups of at most
// kTileRows, each of which f32_tile takes: [in][rows of the group].
struct Inputs {
  Inputs(const TensorView& a, ThreadTeam& team)
      : rows(a.rows),
        in(a.cols),
        groups((a.rows + kTileRows - 1) / kTileRows),
        values(static_cast<size_t>(rows * in)),
        scales(static_cast<size_t>(rows)) {
    team.Run(groups, [&](int64_t group) { Pack(a, group); });
  }

  int64_t Begin(int64_t group) const { return rows * group / groups; }

  void Pack(const TensorView& a, int64_t group) {
    const int64_t begin = Begin(group), count = Begin(group + 1) - begin;
    float* const to = values.data() + begin * in;
    std::vector<float> wide(in);
    std::vector<uint8_t> codes(in);
    for (int64_t r = 0; r < count; ++r) {
      scales[begin + r] = QuantizeToE4m3(LoadRow(a, begin + r, wide.data()), in, codes.data());
      for (int64_t i = 0; i < in; ++i) to[i * count + r] = Values()[codes[i]];
    }
  }

  int64_t rows, in, groups;
  std::vector<float> values;
  std::vector<float> scales;
};

// The running thread's, aligned as micro kernels want it.
float* PanelOf(int64_t in) {
  constexpr size_t kAlignment = 64 / sizeof(float);
  thread_local std::vector<float> memory;
  memory.resize(std::max(memory.size(), static_cast<size_t>(in) * kPanelCols + kAlignment));
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  return memory.data() + (64 - address % 64) % 64 / sizeof(float);
}

// Outputs [first, first + cols) of w as a panel.
void Unpack(const CpuFp8Matrix& w, int64_t first, int cols, float* panel) {
  const int64_t in = w.in_features();
  if (cols < kPanelCols) std::fill_n(panel, in * kPanelCols, 0.0f);
  constexpr int64_t kLine = 64;  // codes of an output at a time: what is written stays in the cache
  for (int64_t begin = 0; begin < in; begin += kLine) {
    const int64_t end = std::min(in, begin + kLine);
    for (int c = 0; c < cols; ++c) {
      const uint8_t* const codes = w.row(first + c);
      for (int64_t i = begin; i < end; ++i) panel[i * kPanelCols + c] = Values()[codes[i]];
    }
  }
}

// out = [out +] sums * both scales [+ bias], of one row's outputs.
template <typename T, typename Load, typename Store>
void Finish(const float* sums, float a_scale, const float* w_scales, const float* bias, bool accumulate,
            int cols, T* out, Load load, Store store) {
  for (int c = 0; c < cols; ++c) {
    float value = sums[c] * (a_scale * w_scales[c]);
    if (bias != nullptr) value += bias[c];
    if (accumulate) value += load(out[c]);
    out[c] = store(value);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<PackedMatrix>> CpuFp8Matrix::Create(int64_t out, int64_t in) {
  HostMemory codes = AllocateHostMemory(static_cast<size_t>(out * in));
  HostMemory scales = AllocateHostMemory(static_cast<size_t>(out) * sizeof(float));
  if (codes == nullptr || scales == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("no memory for a %d x %d %s matrix", out, in, Name(WeightFormat::kFp8)));
  }
  return std::unique_ptr<PackedMatrix>(new CpuFp8Matrix(std::move(codes), std::move(scales), out, in));
}

float QuantizeToE4m3(const float* x, int64_t count, uint8_t* codes) {
  const E4m3Scale scale = E4m3ScaleOf(LargestOf(x, count));
  for (int64_t i = 0; i < count; ++i) codes[i] = ToE4m3(E4m3Input(x[i], scale));
  return scale.scale;
}

void PackFp8(const TensorView& host_rows, int64_t row_begin, const CpuFp8Matrix& w) {
  std::vector<float> wide(host_rows.cols);
  for (int64_t r = 0; r < host_rows.rows; ++r) {
    const float* const row = LoadRow(host_rows, r, wide.data());
    w.scales()[row_begin + r] = QuantizeToE4m3(row, host_rows.cols, w.row(row_begin + r));
  }
}

void PackFp8(const Fp8Rows& host_rows, int64_t row_begin, const CpuFp8Matrix& w) {
  std::memcpy(w.row(row_begin), host_rows.codes, static_cast<size_t>(host_rows.rows * host_rows.cols));
  std::copy_n(host_rows.scales, host_rows.rows, w.scales() + row_begin);
}

void MultiplyFp8(const MicroKernels& kernels, ThreadTeam& team, const TensorView& a, const CpuFp8Matrix& w,
                 const float* bias, bool accumulate, const TensorView& out) {
  const Inputs inputs(a, team);
  team.Run((out.cols + kPanelCols - 1) / kPanelCols, [&](int64_t panel) {
    const int64_t first = panel * kPanelCols;
    const int cols = static_cast<int>(std::min<int64_t>(kPanelCols, out.cols - first));
    float* const weights = PanelOf(inputs.in);
    Unpack(w, first, cols, weights);
    const float* const scales = w.scales() + first;
    const float* const panel_bias = bias == nullptr ? nullptr : bias + first;
    alignas(64) float sums[kTileRows * kPanelCols];
    for (int64_t group = 0; group < inputs.groups; ++group) {
      const int64_t begin = inputs.Begin(group);
      const int count = static_cast<int>(inputs.Begin(group + 1) - begin);
      kernels.f32_tile(inputs.values.data() + begin * inputs.in, count, weights, inputs.in, sums);
      for (int r = 0; r < count; ++r) {
        const TensorView row = out.Rows(begin + r, 1).Cols(first, cols);
        const auto finish = [&](auto* to, auto load, auto store) {
          Finish(sums + r * kPanelCols, inputs.scales[begin + r], scales, panel_bias, accumulate, cols, to,
                 load, store);
        };
        if (row.dtype == DType::kF32) {
          const auto same = [](float value) { return value; };
          finish(row.f32(), same, same);
        } else {
          finish(row.bf16(), ToFloat, ToBf16);
        }
      }
    }
  });
}

}  // namespace aludel::cpu
