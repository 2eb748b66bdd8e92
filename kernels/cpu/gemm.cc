#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/fp8_gemm.h"
#include "kernels/cpu/packed_matrix.h"
#include "kernels/cpu/quantize.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector/simd.h"

namespace aludel {
namespace {

using cpu::CpuPackedMatrix;
using cpu::kFewRows;
using cpu::kInBlock;
using cpu::kPanelCols;
using cpu::kPanelsAtOnce;
using cpu::kTileRows;

// A task streams at least this much of the weights: panels that lie one behind the other, long enough for
// prefetchers, short enough that no thread waits long for another.
constexpr int64_t kTaskBytes = 256 << 10;
// Multiply-adds that one thread does sooner than it shares them.
constexpr int64_t kAloneWork = 1 << 16;
// A number that lies a cache line from the one before it, in multiply-adds, about.
constexpr int64_t kUnpackWork = 8;
// Inputs of a group of rows that one task packs.
constexpr int64_t kPackStep = 2048;

// Words of weights [cols][in] side by side as [in][kPanelCols]. A word is one f32 or two bf16.
void PackPanel(const uint32_t* const* rows, int cols, int64_t words, int64_t padded, uint32_t* panel) {
  // A cache line of every row at a time.
  constexpr int64_t kLine = 16;
  for (int64_t begin = 0; begin < padded; begin += kLine) {
    const int64_t count = std::clamp<int64_t>(words - begin, 0, kLine);
    uint32_t* const to = panel + begin * kPanelCols;
    if (cols < kPanelCols || count < kLine) std::fill_n(to, kLine * kPanelCols, 0u);
    for (int c = 0; c < cols; ++c) {
      const uint32_t* const from = rows[c] + begin;
      for (int64_t i = 0; i < count; ++i) to[i * kPanelCols + c] = from[i];
    }
  }
}

// One of the weights' rows as floats, a cache line for each word.
void UnpackRow(const CpuPackedMatrix& w, int64_t row, float* out) {
  const char* const panel = w.panel(row / kPanelCols);
  const int64_t col = row % kPanelCols;
  if (w.format() == WeightFormat::kF32) {
    const auto* const from = reinterpret_cast<const float*>(panel) + col;
    for (int64_t i = 0; i < w.in_features(); ++i) out[i] = from[i * kPanelCols];
    return;
  }
  const auto* const from = reinterpret_cast<const Bf16*>(panel) + 2 * col;
  for (int64_t i = 0; i < w.in_features(); ++i) out[i] = ToFloat(from[i / 2 * 2 * kPanelCols + i % 2]);
}

// Rows [begin, end) of a, at most kTileRows, inputs [first, last), as [in][rows] words; `last` may be an odd
// bf16's end.
void PackInputs(const cpu::MicroKernels& kernels, const TensorView& a, int64_t begin, int64_t end,
                int64_t first, int64_t last, uint32_t* to) {
  const int64_t rows = end - begin;
  const int64_t per_word = a.dtype == DType::kF32 ? 1 : 2;
  const int64_t words = (last - first) / per_word;
  const char* from[kTileRows] = {};
  for (int64_t r = 0; r < rows; ++r) {
    from[r] = static_cast<const char*>(a.data) + ((begin + r) * a.stride + first) * SizeOf(a.dtype);
  }
  uint32_t* const packed = to + first / per_word * rows;
  kernels.transpose(from, static_cast<int>(rows), static_cast<int>(words), packed, static_cast<int>(rows));
  if ((last - first) % per_word == 0) return;
  for (int64_t r = 0; r < rows; ++r) {
    uint16_t odd;
    std::memcpy(&odd, from[r] + words * 4, sizeof(odd));
    packed[words * rows + r] = odd;
  }
}

template <typename T>
T As(float value);
template <>
inline float As<float>(float value) {
  return value;
}
template <>
inline Bf16 As<Bf16>(float value) {
  return ToBf16(value);
}
inline float Wide(float value) { return value; }
inline float Wide(Bf16 value) { return ToFloat(value); }

// out = [out +] sums [+ bias] over rows of a tile, whose sums lie kPanelCols apart.
template <typename T>
inline void FinishRows(const float* sums, int rows, int cols, const float* bias, bool accumulate, T* out,
                       int64_t stride) {
  for (int r = 0; r < rows; ++r, sums += kPanelCols, out += stride) {
    float row[kPanelCols];
    for (int c = 0; c < kPanelCols; ++c) row[c] = sums[c];
    if (bias != nullptr) {
      for (int c = 0; c < cols; ++c) row[c] += bias[c];
    }
    if (accumulate) {
      for (int c = 0; c < cols; ++c) row[c] = Wide(out[c]) + row[c];
    }
    for (int c = 0; c < cols; ++c) out[c] = As<T>(row[c]);
  }
}

// Almost every tile is as wide as a panel: that loop has a fixed length.
ALUDEL_SIMD void FinishF32(const float* sums, int rows, int cols, const float* bias, bool accumulate,
                           float* out, int64_t stride) {
  if (cols == kPanelCols) return FinishRows(sums, rows, kPanelCols, bias, accumulate, out, stride);
  FinishRows(sums, rows, cols, bias, accumulate, out, stride);
}

ALUDEL_SIMD void FinishBf16(const float* sums, int rows, int cols, const float* bias, bool accumulate,
                            Bf16* out, int64_t stride) {
  if (cols == kPanelCols) return FinishRows(sums, rows, kPanelCols, bias, accumulate, out, stride);
  FinishRows(sums, rows, cols, bias, accumulate, out, stride);
}

// Of the calling thread, as large as its largest product was. (Tasks of other threads must not name it.)
std::vector<uint32_t>& CallersInputs() {
  thread_local std::vector<uint32_t> inputs;
  return inputs;
}

struct Job {
  const cpu::MicroKernels& kernels;
  const CpuPackedMatrix& w;
  const float* bias;
  bool accumulate;
  const TensorView& out;
  const std::vector<uint32_t>& packed;
  int64_t rows;
  int64_t groups;

  // Rows are spread evenly over groups of at most kTileRows.
  int64_t GroupBegin(int64_t group) const { return rows * group / groups; }
  // Inputs of a row in whole words; the padding of unquantized weights beyond them is left alone.
  int64_t used_in() const {
    return w.format() == WeightFormat::kF32 ? w.in_features() : (w.in_features() + 1) / 2 * 2;
  }
  bool TakesPanelsAtOnce() const {
    return kernels.bf16_panels != nullptr && w.format() == WeightFormat::kBf16 && rows <= kFewRows;
  }
  // Of a packed row.
  int64_t words() const {
    if (HasScales(w.format())) return w.in_blocks() * cpu::kQuantizedWords;
    return used_in() / (w.format() == WeightFormat::kF32 ? 1 : 2);
  }
};

void MultiplyTile(const Job& job, const uint32_t* a, int rows, const char* panel, float* sums) {
  switch (job.w.format()) {
    case WeightFormat::kF32:
      return job.kernels.f32_tile(reinterpret_cast<const float*>(a), rows,
                                  reinterpret_cast<const float*>(panel), job.used_in(), sums);
    case WeightFormat::kBf16:
      return job.kernels.bf16_tile(reinterpret_cast<const uint16_t*>(a), rows,
                                   reinterpret_cast<const uint16_t*>(panel), job.used_in(), sums);
    case WeightFormat::kInt8:
      return job.kernels.int8_tile(a, rows, reinterpret_cast<const uint8_t*>(panel), job.w.in_blocks(), sums);
    case WeightFormat::kInt4:
      return job.kernels.int4_tile(a, rows, reinterpret_cast<const uint8_t*>(panel), job.w.in_blocks(), sums);
    case WeightFormat::kFp8:
      break;
  }
}

// Columns of panel `index`, rows [begin, begin + count).
void FinishPanel(const Job& job, int64_t index, int64_t begin, int count, const float* sums) {
  const int64_t column = index * kPanelCols;
  const int cols = static_cast<int>(std::min<int64_t>(kPanelCols, job.out.cols - column));
  const float* const bias = job.bias == nullptr ? nullptr : job.bias + column;
  const TensorView rows = job.out.Cols(column, cols).Rows(begin, count);
  if (rows.dtype == DType::kF32) {
    const auto finish = job.kernels.finish_f32 != nullptr ? job.kernels.finish_f32 : &FinishF32;
    finish(sums, count, cols, bias, job.accumulate, rows.f32(), rows.stride);
  } else if (job.kernels.finish_bf16 != nullptr && cols == kPanelCols && !job.accumulate) {
    job.kernels.finish_bf16(sums, count, bias, reinterpret_cast<uint16_t*>(rows.bf16()), rows.stride);
  } else {
    FinishBf16(sums, count, cols, bias, job.accumulate, rows.bf16(), rows.stride);
  }
}

void MultiplyPanel(const Job& job, int64_t index) {
  alignas(64) float sums[kTileRows * kPanelCols];
  for (int64_t group = 0; group < job.groups; ++group) {
    const int64_t begin = job.GroupBegin(group);
    const int count = static_cast<int>(job.GroupBegin(group + 1) - begin);
    const uint32_t* const a = job.packed.data() + begin * job.words();
    MultiplyTile(job, a, count, job.w.panel(index), sums);
    FinishPanel(job, index, begin, count, sums);
  }
}

// Panels [index, index + kPanelsAtOnce) of a job whose TakesPanelsAtOnce is true.
void MultiplyPanels(const Job& job, int64_t index) {
  alignas(64) float sums[kPanelsAtOnce * kFewRows * kPanelCols];
  const auto rows = static_cast<int>(job.rows);
  job.kernels.bf16_panels(reinterpret_cast<const uint16_t*>(job.packed.data()), rows,
                          reinterpret_cast<const uint16_t*>(job.w.panel(index)),
                          static_cast<int64_t>(job.w.panel_bytes() / sizeof(uint16_t)), job.used_in(), sums);
  for (int p = 0; p < kPanelsAtOnce; ++p)
    FinishPanel(job, index + p, /*begin=*/0, rows, sums + p * rows * kPanelCols);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PackedMatrix>> CpuOps::NewPacked(int64_t out, int64_t in,
                                                                WeightFormat format) {
  if (format == WeightFormat::kFp8) return cpu::CpuFp8Matrix::Create(out, in);
  HostMemory memory = AllocateHostMemory(CpuPackedMatrix::Bytes(out, in, format));
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("no memory for a %d x %d %s matrix", out, in, Name(format)));
  }
  return std::make_unique<CpuPackedMatrix>(std::move(memory), out, in, format);
}

absl::Status CpuOps::PackRows(const TensorView& host_rows, int64_t row_begin, PackedMatrix& w) {
  ALUDEL_CHECK(host_rows.contiguous() && host_rows.cols == w.in_features());
  const int64_t row_end = row_begin + host_rows.rows;
  ALUDEL_CHECK(row_begin >= 0 && row_begin % w.row_block() == 0 && row_end <= w.out_features() &&
               (row_end % w.row_block() == 0 || row_end == w.out_features()));
  if (w.format() == WeightFormat::kFp8) {
    cpu::PackFp8(host_rows, row_begin, static_cast<const cpu::CpuFp8Matrix&>(w));
    return absl::OkStatus();
  }
  const auto& packed = static_cast<const CpuPackedMatrix&>(w);
  if (HasScales(packed.format())) {
    for (int64_t begin = 0; begin < host_rows.rows; begin += kPanelCols) {
      const int64_t cols = std::min<int64_t>(kPanelCols, host_rows.rows - begin);
      cpu::QuantizePanel(host_rows.Rows(begin, cols), packed, (row_begin + begin) / kPanelCols);
    }
    return absl::OkStatus();
  }
  const DType dtype = packed.format() == WeightFormat::kF32 ? DType::kF32 : DType::kBf16;
  const int64_t per_word = dtype == DType::kF32 ? 1 : 2;
  const int64_t words = (host_rows.cols + per_word - 1) / per_word;
  // Rows as words of the packed type. They lie so already where type, alignment and an even length allow it.
  const bool in_place = host_rows.dtype == dtype && host_rows.cols % per_word == 0 &&
                        reinterpret_cast<uintptr_t>(host_rows.data) % sizeof(uint32_t) == 0;
  std::vector<uint32_t> converted(in_place ? 0 : words * kPanelCols, 0u);
  std::vector<float> wide(in_place ? 0 : host_rows.cols);
  for (int64_t begin = 0; begin < host_rows.rows; begin += kPanelCols) {
    const int cols = static_cast<int>(std::min<int64_t>(kPanelCols, host_rows.rows - begin));
    const uint32_t* rows[kPanelCols];
    for (int c = 0; c < cols; ++c) {
      if (in_place) {
        rows[c] = static_cast<const uint32_t*>(host_rows.data) + (begin + c) * words;
        continue;
      }
      uint32_t* const to = converted.data() + c * words;
      const TensorView view{to, dtype, 1, host_rows.cols, host_rows.cols};
      cpu::StoreRow(cpu::LoadRow(host_rows, begin + c, wide.data()), view, 0);
      rows[c] = to;
    }
    PackPanel(rows, cols, words, packed.padded_in() / per_word,
              reinterpret_cast<uint32_t*>(packed.panel((row_begin + begin) / kPanelCols)));
  }
  return absl::OkStatus();
}

absl::Status CpuOps::PackFp8Rows(const Fp8Rows& host_rows, int64_t row_begin, PackedMatrix& w) {
  ALUDEL_CHECK(w.format() == WeightFormat::kFp8 && host_rows.cols == w.in_features());
  ALUDEL_CHECK(row_begin >= 0 && row_begin + host_rows.rows <= w.out_features());
  cpu::PackFp8(host_rows, row_begin, static_cast<const cpu::CpuFp8Matrix&>(w));
  return absl::OkStatus();
}

void CpuOps::Embed(absl::Span<const int32_t> ids, const PackedMatrix& table, const TensorView& out, Stream) {
  const auto& packed = static_cast<const CpuPackedMatrix&>(table);
  ALUDEL_CHECK(out.rows == static_cast<int64_t>(ids.size()) && out.cols == packed.in_features());
  ALUDEL_CHECK(!HasScales(packed.format()));
  ForRows(out.rows, kUnpackWork * out.cols, [&](int64_t begin, int64_t end) {
    std::vector<float> row(out.cols);
    for (int64_t t = begin; t < end; ++t) {
      ALUDEL_CHECK(ids[t] >= 0 && ids[t] < packed.out_features());
      UnpackRow(packed, ids[t], row.data());
      cpu::StoreRow(row.data(), out, t);
    }
  });
}

void CpuOps::Gemm(const TensorView& a, const PackedMatrix& w, const float* bias, bool accumulate,
                  const TensorView& out, Stream) {
  ALUDEL_CHECK(a.cols == w.in_features() && out.cols == w.out_features() && a.rows == out.rows);
  ALUDEL_CHECK(HasScales(w.format()) || FormatOf(a.dtype) == w.format());
  if (a.rows == 0) return;
  if (w.format() == WeightFormat::kFp8) {
    return cpu::MultiplyFp8(kernels_, team_, a, static_cast<const cpu::CpuFp8Matrix&>(w), bias, accumulate,
                            out);
  }
  const auto& packed = static_cast<const CpuPackedMatrix&>(w);
  if (library_ != nullptr && a.rows >= cpu::LibraryGemm::kFewestRows &&
      packed.format() == WeightFormat::kBf16 && library_->Run(a, packed, bias, accumulate, out)) {
    return;
  }
  std::vector<uint32_t>& inputs = CallersInputs();
  const int64_t groups = (a.rows + kTileRows - 1) / kTileRows;
  const Job job{kernels_, packed, bias, accumulate, out, inputs, a.rows, groups};
  inputs.resize(std::max<size_t>(inputs.size(), a.rows * job.words()));
  const int64_t steps = (a.cols + kPackStep - 1) / kPackStep;
  const bool alone = a.rows * out.cols * a.cols < kAloneWork;
  const auto pack = [&](int64_t task) {
    const int64_t group = task / steps;
    const int64_t begin = job.GroupBegin(group), end = job.GroupBegin(group + 1);
    const int64_t first = task % steps * kPackStep;
    const int64_t last = std::min(first + kPackStep, a.cols);
    uint32_t* const to = inputs.data() + begin * job.words();
    if (HasScales(packed.format())) {
      const int64_t end_block = (last + kInBlock - 1) / kInBlock;
      return cpu::QuantizeInputs(a, begin, end, first / kInBlock, end_block, packed, to);
    }
    PackInputs(kernels_, a, begin, end, first, last, to);
  };
  const bool pack_alone = a.rows * a.cols < kAloneWork;
  if (pack_alone) {
    for (int64_t task = 0; task < groups * steps; ++task) pack(task);
  } else {
    team_.Run(groups * steps, pack);
  }
  // Long tasks, but enough of them to go round.
  const int64_t panels = packed.panels();
  const int64_t most = std::max<int64_t>(1, panels / (4 * team_.threads()));
  int64_t step =
      alone ? panels : std::clamp<int64_t>(kTaskBytes / static_cast<int64_t>(packed.panel_bytes()), 1, most);
  const bool at_once = job.TakesPanelsAtOnce() && panels >= 2 * kPanelsAtOnce * team_.threads();
  if (at_once) step = (step + kPanelsAtOnce - 1) / kPanelsAtOnce * kPanelsAtOnce;
  team_.Run((panels + step - 1) / step, [&](int64_t task) {
    const int64_t end = std::min(panels, (task + 1) * step);
    int64_t index = task * step;
    for (; at_once && index + kPanelsAtOnce <= end; index += kPanelsAtOnce) MultiplyPanels(job, index);
    for (; index < end; ++index) MultiplyPanel(job, index);
  });
}

}  // namespace aludel
