#include "kernels/cpu/library_gemm.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "absl/strings/match.h"
#include "dnnl.hpp"
#include "kernels/check.h"
#include "omp.h"

namespace aludel::cpu {
namespace {

using dnnl::memory;

const dnnl::engine& Engine() {
  static const auto* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

memory::data_type DnnlType(DType dtype) {
  return dtype == DType::kF32 ? memory::data_type::f32 : memory::data_type::bf16;
}

// The rows of `a` one behind the other: its own, or a copy that lasts until this thread's next call.
void* DenseRows(const TensorView& a) {
  if (a.stride == a.cols) return a.data;
  thread_local std::vector<Bf16> dense;
  dense.resize(static_cast<size_t>(a.rows * a.cols));
  const auto* from = static_cast<const Bf16*>(a.data);
  for (int64_t t = 0; t < a.rows; ++t) std::copy_n(from + t * a.stride, a.cols, dense.data() + t * a.cols);
  return dense.data();
}

}  // namespace

struct LibraryGemm::Primitive {
  memory::desc a, w, bias, out;
  dnnl::matmul matmul;
  bool has_kernel = false;  // none: oneDNN would compute it by its reference
};

bool LibraryGemm::HasTiles() { return dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx512_core_amx; }

LibraryGemm::LibraryGemm(int threads) : threads_(threads) {}
LibraryGemm::~LibraryGemm() = default;

std::shared_ptr<const LibraryGemm::Primitive> LibraryGemm::Find(const Key& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<const Primitive>& found = primitives_[key];
  if (found != nullptr) return found;
  const auto [rows, out_features, in, out_stride, out_type, bias, accumulate] = key;
  Primitive primitive;
  primitive.a = memory::desc({rows, in}, memory::data_type::bf16, memory::format_tag::ab);
  primitive.w = memory::desc({in, out_features}, memory::data_type::bf16, memory::format_tag::BA16a32b2a);
  primitive.bias = memory::desc({1, out_features}, memory::data_type::f32, memory::format_tag::ab);
  primitive.out = memory::desc({rows, out_features}, DnnlType(out_type), {out_stride, 1});
  dnnl::primitive_attr attributes;
  if (accumulate) {
    dnnl::post_ops post_ops;
    post_ops.append_sum(1.0f);
    attributes.set_post_ops(post_ops);
  }
  const auto desc = bias ? dnnl::matmul::desc(primitive.a, primitive.w, primitive.bias, primitive.out)
                         : dnnl::matmul::desc(primitive.a, primitive.w, primitive.out);
  const dnnl::matmul::primitive_desc chosen(desc, attributes, Engine());
  primitive.has_kernel = !absl::StartsWith(chosen.impl_info_str(), "ref");
  if (primitive.has_kernel) primitive.matmul = dnnl::matmul(chosen);
  const auto made = std::make_shared<const Primitive>(std::move(primitive));
  if (primitives_.size() > kMaxPrimitives) {
    primitives_.clear();
    primitives_[key] = made;
  } else {
    found = made;
  }
  return made;
}

bool LibraryGemm::Run(const TensorView& a, const CpuPackedMatrix& w, const float* bias, bool accumulate,
                      const TensorView& out) {
  // Of the calling thread; oneDNN follows it, and computes wrongly where it is promised more than it gets.
  omp_set_num_threads(std::min(threads_, omp_get_thread_limit()));
  const auto primitive =
      Find({a.rows, w.out_features(), w.in_features(), out.stride, out.dtype, bias != nullptr, accumulate});
  if (!primitive->has_kernel) return false;
  std::unordered_map<int, memory> arguments = {{DNNL_ARG_SRC, memory(primitive->a, Engine(), DenseRows(a))},
                                               {DNNL_ARG_WEIGHTS, memory(primitive->w, Engine(), w.data())},
                                               {DNNL_ARG_DST, memory(primitive->out, Engine(), out.data)}};
  if (bias != nullptr) {
    arguments.emplace(DNNL_ARG_BIAS, memory(primitive->bias, Engine(), const_cast<float*>(bias)));
  }
  dnnl::stream stream(Engine());
  primitive->matmul.execute(stream, arguments);
  stream.wait();
  return true;
}

}  // namespace aludel::cpu
