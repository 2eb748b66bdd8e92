#include <map>
#include <mutex>
#include <tuple>

#include "absl/strings/str_format.h"
#include "dnnl.hpp"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/host_memory.h"
#include "omp.h"

namespace aludel {
namespace {

using dnnl::memory;

memory::data_type DnnlType(DType dtype) {
  return dtype == DType::kF32 ? memory::data_type::f32 : memory::data_type::bf16;
}

// What makes a oneDNN primitive for one weight matrix: everything but the addresses.
using GemmKey = std::tuple<int64_t /*rows*/, int64_t /*a stride*/, int64_t /*out stride*/, DType /*out*/,
                           bool /*bias*/, bool /*accumulate*/>;

// Shapes come from step sizes, which the transformer rounds: a few dozen in a server's life.
constexpr size_t kMaxPrimitives = 128;

}  // namespace

struct CpuOps::GemmEngine {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
};

namespace {

// How many outputs (dimension 1 of [in, out]) oneDNN's blocked layout keeps together.
int64_t RowBlock(const memory::desc& desc) {
  const auto& blocking = desc.data.format_desc.blocking;
  int64_t block = 1;
  for (int i = 0; i < blocking.inner_nblks; ++i) {
    if (blocking.inner_idxs[i] == 1) block *= blocking.inner_blks[i];
  }
  return block;
}

// Weights in oneDNN's blocked layout. One layout is best for 1 to 512 rows, so weights are packed once.
class CpuPackedMatrix final : public PackedMatrix {
 public:
  CpuPackedMatrix(dnnl::engine engine, int64_t out, int64_t in, DType dtype, const memory::desc& layout,
                  HostMemory weights)
      : engine_(std::move(engine)),
        out_(out),
        in_(in),
        dtype_(dtype),
        weights_(std::move(weights)),
        packed_(layout, engine_, weights_.get()),
        row_block_(RowBlock(packed_.get_desc())) {}

  int64_t out_features() const override { return out_; }
  int64_t in_features() const override { return in_; }
  DType dtype() const override { return dtype_; }
  int64_t row_block() const override { return row_block_; }
  const memory& packed() const { return packed_; }

  dnnl::matmul Primitive(const GemmKey& key) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = primitives_.find(key);
    if (found != primitives_.end()) return found->second;
    if (primitives_.size() >= kMaxPrimitives) primitives_.clear();
    return primitives_.emplace(key, Make(key)).first->second;
  }

 private:
  dnnl::matmul Make(const GemmKey& key) const {
    const auto [rows, a_stride, out_stride, out_type, bias, accumulate] = key;
    const memory::desc a({rows, in_}, DnnlType(dtype_), {a_stride, 1});
    const memory::desc out({rows, out_}, DnnlType(out_type), {out_stride, 1});
    dnnl::primitive_attr attributes;
    if (accumulate) {
      dnnl::post_ops post_ops;
      post_ops.append_sum(1.0f);
      attributes.set_post_ops(post_ops);
    }
    const memory::desc bias_desc({1, out_}, memory::data_type::f32, memory::format_tag::ab);
    const auto desc = bias ? dnnl::matmul::desc(a, packed_.get_desc(), bias_desc, out)
                           : dnnl::matmul::desc(a, packed_.get_desc(), out);
    return dnnl::matmul(dnnl::matmul::primitive_desc(desc, attributes, engine_));
  }

  dnnl::engine engine_;
  int64_t out_;
  int64_t in_;
  DType dtype_;
  HostMemory weights_;
  memory packed_;  // views weights_
  int64_t row_block_;
  mutable std::mutex mutex_;
  mutable std::map<GemmKey, dnnl::matmul> primitives_;  // guarded by mutex_
};

}  // namespace

CpuOps::CpuOps(int threads) : threads_(threads), gemm_(std::make_unique<GemmEngine>()) {}
CpuOps::~CpuOps() = default;

absl::StatusOr<std::unique_ptr<PackedMatrix>> CpuOps::NewPacked(int64_t out, int64_t in, DType dtype) {
  try {
    // The rows here only steer the choice of layout.
    const memory::desc a({256, in}, DnnlType(dtype), {in, 1});
    const memory::desc any({in, out}, DnnlType(dtype), memory::format_tag::any);
    const memory::desc result({256, out}, memory::data_type::f32, {out, 1});
    const dnnl::matmul::primitive_desc desc({a, any, result}, gemm_->engine);
    const memory::desc layout = desc.weights_desc();
    HostMemory weights = AllocateHostMemory(layout.get_size());
    if (weights == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("no memory for a %d x %d %s matrix", out, in, Name(dtype)));
    }
    return std::make_unique<CpuPackedMatrix>(gemm_->engine, out, in, dtype, layout, std::move(weights));
  } catch (const dnnl::error& error) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("cannot lay out a %d x %d %s matrix: %s", out, in, Name(dtype), error.what()));
  }
}

absl::Status CpuOps::PackRows(const TensorView& host_rows, int64_t row_begin, PackedMatrix& w) {
  ALUDEL_CHECK(host_rows.contiguous() && host_rows.cols == w.in_features());
  const int64_t in = host_rows.cols;
  const int64_t rows = host_rows.rows;
  const int64_t row_end = row_begin + rows;
  ALUDEL_CHECK(row_begin >= 0 && row_begin % w.row_block() == 0 && row_end <= w.out_features() &&
               (row_end % w.row_block() == 0 || row_end == w.out_features()));
  if (rows == 0) return absl::OkStatus();
  // Checkpoints are packed by several threads, each with rows of its own: a team for each would be too many.
  omp_set_num_threads(1);
  try {
    const memory& packed = static_cast<const CpuPackedMatrix&>(w).packed();
    dnnl::stream stream(gemm_->engine);
    memory source({{in, rows}, DnnlType(host_rows.dtype), {1, in}}, gemm_->engine, host_rows.data);
    memory part(packed.get_desc().submemory_desc({in, rows}, {0, row_begin}), gemm_->engine,
                packed.get_data_handle());
    dnnl::reorder(source, part).execute(stream, source, part);
    stream.wait();
    return absl::OkStatus();
  } catch (const dnnl::error& error) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("cannot pack rows %d to %d of a %d x %d %s matrix: %s", row_begin, row_end - 1,
                        w.out_features(), in, Name(w.dtype()), error.what()));
  }
}

void CpuOps::Gemm(const TensorView& a, const PackedMatrix& w, const float* bias, bool accumulate,
                  const TensorView& out, Stream) {
  const auto& packed = static_cast<const CpuPackedMatrix&>(w);
  ALUDEL_CHECK(a.cols == packed.in_features() && out.cols == packed.out_features() && a.rows == out.rows);
  ALUDEL_CHECK(a.dtype == packed.dtype());
  if (a.rows == 0) return;
  omp_set_num_threads(threads_);  // of the calling thread; oneDNN's team follows it
  const dnnl::matmul matmul =
      packed.Primitive({a.rows, a.stride, out.stride, out.dtype, bias != nullptr, accumulate});
  memory a_memory({{a.rows, a.cols}, DnnlType(a.dtype), {a.stride, 1}}, gemm_->engine, a.data);
  memory out_memory({{out.rows, out.cols}, DnnlType(out.dtype), {out.stride, 1}}, gemm_->engine, out.data);
  std::unordered_map<int, memory> arguments = {
      {DNNL_ARG_SRC, a_memory}, {DNNL_ARG_WEIGHTS, packed.packed()}, {DNNL_ARG_DST, out_memory}};
  if (bias != nullptr) {
    const memory::desc desc({1, out.cols}, memory::data_type::f32, memory::format_tag::ab);
    arguments.emplace(DNNL_ARG_BIAS, memory(desc, gemm_->engine, const_cast<float*>(bias)));
  }
  matmul.execute(gemm_->stream, arguments);
}

}  // namespace aludel
