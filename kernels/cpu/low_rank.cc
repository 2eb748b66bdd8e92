#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/cpu/vector/simd.h"

// Two products in a row, both bound by reading A and B where few rows have the same adapter: A is kept by
// rows and B in panels of outputs, so that each task reads one stream, and bf16 is widened without a shuffle: 32
// numbers are sixteen words, whose low and high halves are two vectors. Every row is summed in the same order
// however many rows a tile has.
namespace aludel {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kStep = 2 * kLanes;  // numbers that are loaded at a time
constexpr int64_t kPanel = 64;         // outputs that B's layout keeps together
constexpr int64_t kSteps = kPanel / kStep;
constexpr int64_t kAhead = 8 << 10;  // bytes of B's panels that are asked for before they are wanted
constexpr int kRowTile = 4;
constexpr int kRankTile = 4;
// Of one task.
constexpr int64_t kTaskRows = 64;
constexpr int64_t kTaskRanks = 8;
constexpr int64_t kTaskPanels = 8;
// Multiply-adds that one thread does sooner than it shares them.
constexpr int64_t kAloneWork = 1 << 16;

typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
typedef float LooseFloats __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(kLanes * sizeof(uint32_t))));
typedef uint32_t LooseWords __attribute__((vector_size(kLanes * sizeof(uint32_t)), aligned(2), may_alias));

// kStep numbers as two vectors: of f32 the first and the second half, of bf16 those at even and at odd places. By
// reference, because the ABI of vectors differs from clone to clone.
inline __attribute__((always_inline)) void Load(const float* from, Floats (&to)[2]) {
  to[0] = *reinterpret_cast<const LooseFloats*>(from);
  to[1] = *reinterpret_cast<const LooseFloats*>(from + kLanes);
}
inline __attribute__((always_inline)) void Load(const Bf16* from, Floats (&to)[2]) {
  const Words words = *reinterpret_cast<const LooseWords*>(from);
  to[0] = __builtin_bit_cast(Floats, words << 16);
  to[1] = __builtin_bit_cast(Floats, words & 0xffff0000u);
}
// Brings kStep numbers into the L2 cache. A core's own prefetchers stop at the end of a page, which is one row of A; the
// address may lie beyond the last one.
template <typename T>
inline __attribute__((always_inline)) void Prefetch(const T* from) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t i = 0; i < kStep; i += kLine) __builtin_prefetch(from + i, /*rw=*/0, /*locality=*/2);
}
// Where a panel keeps output `o` of its own, so that Load gives outputs in order.
template <typename T>
constexpr int64_t PlaceOf(int64_t o) {
  return std::is_same_v<T, Bf16> ? o / kStep * kStep + o % kLanes * 2 + o % kStep / kLanes : o;
}
inline __attribute__((always_inline)) float Wide(float value) { return value; }
inline __attribute__((always_inline)) float Wide(Bf16 value) { return ToFloat(value); }
inline void Store(float value, float* to) { *to = value; }
inline void Store(float value, Bf16* to) { *to = ToBf16(value); }

// The update of outputs [out_begin, out_begin + outputs) of W.
struct Part {
  int64_t out_begin = 0;
  int64_t outputs = 0;
  int64_t rank_begin = 0;  // of its rows among A's
  int64_t rank = 0;
  int64_t b = 0;  // of its first panel among B's numbers

  int64_t panels() const { return (outputs + kPanel - 1) / kPanel; }
};

class CpuLowRank final : public PackedLowRank {
 public:
  CpuLowRank(int64_t out, int64_t in, DType dtype, std::shared_ptr<void> numbers, size_t bytes,
             std::vector<Part> parts, std::vector<float> scales)
      : out_(out),
        in_(in),
        dtype_(dtype),
        numbers_(std::move(numbers)),
        bytes_(bytes),
        parts_(std::move(parts)),
        scales_(std::move(scales)) {}

  int64_t out_features() const override { return out_; }
  int64_t in_features() const override { return in_; }
  size_t bytes() const override { return bytes_; }

  DType dtype() const { return dtype_; }
  int64_t rank() const { return static_cast<int64_t>(scales_.size()); }  // of all parts
  const std::vector<float>& scales() const { return scales_; }           // of the rows of A
  const std::vector<Part>& parts() const { return parts_; }
  // [rank, in]
  template <typename T>
  const T* a() const {
    return static_cast<const T*>(numbers_.get());
  }
  // Panel `panel` of a part: [rank][kPanel], each by PlaceOf, zeros for outputs behind the last.
  template <typename T>
  const T* b(const Part& part, int64_t panel) const {
    return a<T>() + rank() * in_ + part.b + panel * part.rank * kPanel;
  }

 private:
  const int64_t out_, in_;
  const DType dtype_;
  const std::shared_ptr<void> numbers_;
  const size_t bytes_;
  const std::vector<Part> parts_;
  const std::vector<float> scales_;
};

float Element(const TensorView& view, int64_t row, int64_t col) {
  const int64_t at = row * view.stride + col;
  return view.dtype == DType::kF32 ? view.f32()[at] : ToFloat(view.bf16()[at]);
}

template <typename T>
void Fill(absl::Span<const LowRankPart> parts, const std::vector<Part>& layout, int64_t in, T* numbers) {
  T* b = numbers;
  for (const LowRankPart& part : parts) {
    for (int64_t r = 0; r < part.a.rows; ++r) {
      for (int64_t i = 0; i < in; ++i) Store(Element(part.a, r, i), b++);
    }
  }
  for (size_t p = 0; p < parts.size(); ++p) {
    const Part& part = layout[p];
    for (int64_t o = 0; o < part.outputs; ++o) {
      T* const to = b + part.b + o / kPanel * part.rank * kPanel + PlaceOf<T>(o % kPanel);
      for (int64_t r = 0; r < part.rank; ++r) Store(Element(parts[p].b, o, r), to + r * kPanel);
    }
  }
}

// A piece of one of the two products: rows of a group by rows of A or by panels of a part.
struct Task {
  const LowRankRows* group = nullptr;
  float* sums = nullptr;  // of the group's row 0: [rows, rank]
  int64_t begin = 0, end = 0;
  int part = 0;
  int64_t from = 0, to = 0;

  const CpuLowRank& update() const { return static_cast<const CpuLowRank&>(*group->update); }
};

// sums[r][k] = scale * x[r] . A[first + k]: lanes, then their sum, then what is left of a row.
template <typename T, int kRows, int kRanks>
inline __attribute__((always_inline)) void ShrinkTile(const T* const* x, const CpuLowRank& update,
                                                      int64_t first, float* const* sums) {
  const int64_t in = update.in_features();
  const int64_t whole = in / kStep * kStep;
  const T* const a = update.a<T>() + first * in;
  Floats lanes[kRows][kRanks] = {};
  for (int64_t i = 0; i < whole; i += kStep) {
    for (int k = 0; k < kRanks; ++k) Prefetch(a + (kRanks + k) * in + i);
    Floats weights[kRanks][2];
    for (int k = 0; k < kRanks; ++k) Load(a + k * in + i, weights[k]);
    for (int r = 0; r < kRows; ++r) {
      Floats inputs[2];
      Load(x[r] + i, inputs);
      for (int k = 0; k < kRanks; ++k) lanes[r][k] += inputs[0] * weights[k][0];
      for (int k = 0; k < kRanks; ++k) lanes[r][k] += inputs[1] * weights[k][1];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int k = 0; k < kRanks; ++k) {
      float sum = 0;
      for (int64_t lane = 0; lane < kLanes; ++lane) sum += lanes[r][k][lane];
      for (int64_t i = whole; i < in; ++i) sum += Wide(x[r][i]) * Wide(a[k * in + i]);
      sums[r][first + k] = sum * update.scales()[first + k];
    }
  }
}

template <typename T, int kRows>
inline __attribute__((always_inline)) void ShrinkRows(const T* const* x, const Task& task,
                                                      float* const* sums) {
  const CpuLowRank& update = task.update();
  int64_t k = task.from;
  for (; k + kRankTile <= task.to; k += kRankTile) ShrinkTile<T, kRows, kRankTile>(x, update, k, sums);
  for (; k < task.to; ++k) ShrinkTile<T, kRows, 1>(x, update, k, sums);
}

// out[r][panel] += sums[r] B[panel]
template <typename T, typename Out, int kRows>
inline __attribute__((always_inline)) void ExpandTile(const float* const* sums, const Part& part,
                                                      const T* panel, int64_t count, Out* const* out) {
  Floats total[kRows][kSteps][2] = {};
  for (int64_t k = 0; k < part.rank; ++k, panel += kPanel) {
    for (int64_t s = 0; s < kSteps; ++s) Prefetch(panel + kAhead / sizeof(T) + s * kStep);
    Floats weights[kSteps][2];
    for (int64_t s = 0; s < kSteps; ++s) Load(panel + s * kStep, weights[s]);
    for (int r = 0; r < kRows; ++r) {
      const Floats sum = Floats{} + sums[r][part.rank_begin + k];
      for (int64_t s = 0; s < kSteps; ++s) {
        for (int half = 0; half < 2; ++half) total[r][s][half] += weights[s][half] * sum;
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float flat[kPanel];
    __builtin_memcpy(flat, total[r], sizeof(flat));
    for (int64_t i = 0; i < count; ++i) Store(Wide(out[r][i]) + flat[i], out[r] + i);
  }
}

template <typename T, typename Out, int kRows>
inline __attribute__((always_inline)) void ExpandRows(const float* const* sums, const Task& task,
                                                      Out* const* out) {
  const Part& part = task.update().parts()[task.part];
  for (int64_t p = task.from; p < task.to; ++p) {
    Out* to[kRows];
    const int64_t at = p * kPanel;
    for (int r = 0; r < kRows; ++r) to[r] = out[r] + part.out_begin + at;
    const T* const panel = task.update().b<T>(part, p);
    if (part.outputs - at >= kPanel) {
      ExpandTile<T, Out, kRows>(sums, part, panel, kPanel, to);
    } else {
      ExpandTile<T, Out, kRows>(sums, part, panel, part.outputs - at, to);
    }
  }
}

// Rows [begin, end) of a group from `row` on that make up a tile: all of kRowTile, or one.
template <typename T>
struct Tile {
  T* rows[kRowTile];
  float* sums[kRowTile];
  int count;

  inline __attribute__((always_inline)) Tile(const Task& task, int64_t row, const TensorView& view)
      : count(task.end - row >= kRowTile ? kRowTile : 1) {
    const int64_t rank = task.update().rank();
    for (int r = 0; r < count; ++r) {
      rows[r] = static_cast<T*>(view.data) + task.group->rows[row + r] * view.stride;
      sums[r] = task.sums + (row + r) * rank;
    }
  }
};

template <typename T>
inline __attribute__((always_inline)) void Shrink(const Task& task, const TensorView& x) {
  for (int64_t row = task.begin; row < task.end;) {
    const Tile<T> tile(task, row, x);
    if (tile.count == kRowTile) {
      ShrinkRows<T, kRowTile>(tile.rows, task, tile.sums);
    } else {
      ShrinkRows<T, 1>(tile.rows, task, tile.sums);
    }
    row += tile.count;
  }
}

template <typename T, typename Out>
inline __attribute__((always_inline)) void Expand(const Task& task, const TensorView& out) {
  for (int64_t row = task.begin; row < task.end;) {
    const Tile<Out> tile(task, row, out);
    if (tile.count == kRowTile) {
      ExpandRows<T, Out, kRowTile>(tile.sums, task, tile.rows);
    } else {
      ExpandRows<T, Out, 1>(tile.sums, task, tile.rows);
    }
    row += tile.count;
  }
}

ALUDEL_SIMD void ShrinkF32(const Task& task, const TensorView& x) { Shrink<float>(task, x); }
ALUDEL_SIMD void ShrinkBf16(const Task& task, const TensorView& x) { Shrink<Bf16>(task, x); }
ALUDEL_SIMD void ExpandF32(const Task& task, const TensorView& out) { Expand<float, float>(task, out); }
ALUDEL_SIMD void ExpandMixed(const Task& task, const TensorView& out) { Expand<Bf16, float>(task, out); }
ALUDEL_SIMD void ExpandBf16(const Task& task, const TensorView& out) { Expand<Bf16, Bf16>(task, out); }

// Of the calling thread, as large as its largest batch was. (Tasks of other threads must not name it.)
struct Scratch {
  std::vector<float> sums;
  std::vector<Task> shrink, expand;
};
Scratch& CallersScratch() {
  thread_local Scratch scratch;
  return scratch;
}

// Cuts [0, end) of `task` into pieces of at most `step`.
void AddTasks(Task task, int64_t end, int64_t step, std::vector<Task>* tasks) {
  for (task.from = 0; task.from < end; task.from = task.to) {
    task.to = std::min(end, task.from + step);
    tasks->push_back(task);
  }
}

// Lays out the sums of all groups, and cuts both products into tasks. Returns the multiply-adds.
int64_t Plan(absl::Span<const LowRankRows> groups, Scratch* scratch) {
  scratch->shrink.clear();
  scratch->expand.clear();
  size_t sums = 0;
  for (const LowRankRows& group : groups) {
    sums += group.rows.size() * static_cast<const CpuLowRank&>(*group.update).rank();
  }
  scratch->sums.resize(std::max(scratch->sums.size(), sums));
  float* next = scratch->sums.data();
  int64_t work = 0;
  for (const LowRankRows& group : groups) {
    const auto& update = static_cast<const CpuLowRank&>(*group.update);
    const auto rows = static_cast<int64_t>(group.rows.size());
    work += rows * update.rank() * update.in_features();
    for (int64_t begin = 0; begin < rows; begin += kTaskRows) {
      Task task{&group, next, begin, std::min(rows, begin + kTaskRows)};
      AddTasks(task, update.rank(), kTaskRanks, &scratch->shrink);
      for (const Part& part : update.parts()) {
        task.part = static_cast<int>(&part - update.parts().data());
        AddTasks(task, part.panels(), kTaskPanels, &scratch->expand);
      }
    }
    next += rows * update.rank();
  }
  return work;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PackedLowRank>> CpuOps::PackLowRank(absl::Span<const LowRankPart> parts,
                                                                   int64_t out, int64_t in, DType dtype) {
  std::vector<Part> layout;
  std::vector<float> scales;
  int64_t b = 0;
  for (const LowRankPart& part : parts) {
    ALUDEL_CHECK(part.a.cols == in && part.b.cols == part.a.rows && part.a.rows > 0);
    ALUDEL_CHECK(part.out_begin >= 0 && part.out_begin + part.b.rows <= out);
    layout.push_back({part.out_begin, part.b.rows, static_cast<int64_t>(scales.size()), part.a.rows, b});
    b += layout.back().panels() * part.a.rows * kPanel;
    scales.resize(scales.size() + part.a.rows, part.scale);
  }
  const size_t numbers = scales.size() * in + b;
  const size_t bytes = numbers * SizeOf(dtype);
  std::shared_ptr<void> memory = low_rank_memory_.Allocate(bytes);
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("no memory for updates of rank %d of a %d x %d matrix", scales.size(), out, in));
  }
  std::memset(memory.get(), 0, bytes);
  if (dtype == DType::kF32) {
    Fill(parts, layout, in, static_cast<float*>(memory.get()));
  } else {
    Fill(parts, layout, in, static_cast<Bf16*>(memory.get()));
  }
  return std::make_unique<CpuLowRank>(out, in, dtype, std::move(memory), bytes, std::move(layout),
                                      std::move(scales));
}

void CpuOps::AddLowRank(const TensorView& x, absl::Span<const LowRankRows> groups, const TensorView& out,
                        Stream) {
  for (const LowRankRows& group : groups) {
    const auto& update = static_cast<const CpuLowRank&>(*group.update);
    ALUDEL_CHECK(x.cols == update.in_features() && out.cols == update.out_features());
    ALUDEL_CHECK(x.dtype == update.dtype() && (x.dtype == DType::kBf16 || out.dtype == DType::kF32));
    for (const int32_t row : group.rows) ALUDEL_CHECK(row >= 0 && row < x.rows && row < out.rows);
  }
  Scratch& scratch = CallersScratch();
  const bool alone = Plan(groups, &scratch) < kAloneWork;
  const auto run = [&](const std::vector<Task>& tasks, void (*body)(const Task&, const TensorView&),
                       const TensorView& view) {
    if (alone) {
      for (const Task& task : tasks) body(task, view);
    } else {
      team_.Run(static_cast<int64_t>(tasks.size()), [&](int64_t task) { body(tasks[task], view); });
    }
  };
  const bool narrow = x.dtype == DType::kBf16;
  run(scratch.shrink, narrow ? ShrinkBf16 : ShrinkF32, x);
  run(scratch.expand, !narrow ? ExpandF32 : out.dtype == DType::kF32 ? ExpandMixed : ExpandBf16, out);
}

}  // namespace aludel
