#include "runtime/calibrate/fit/dense.h"

#include <algorithm>
#include <atomic>
#include <unordered_map>
#include <vector>

#include <cblas.h>

#include "dnnl.hpp"
#include "kernels/check.h"
#include "omp.h"
#include "runtime/calibrate/fit/device_products.h"

namespace aludel {
namespace {

using dnnl::memory;

std::atomic<int> product_threads = 1;
std::unique_ptr<DeviceProducts> device_products;

// Null: the host's.
DeviceProducts* DeviceFor(int64_t m, int64_t n, int64_t k) {
  return device_products != nullptr && DeviceProducts::IsWorthIt(m, n, k) ? device_products.get() : nullptr;
}

// Of the calling thread; oneDNN follows it, and computes wrongly where it is promised more than it gets.
void AnnounceThreads() { omp_set_num_threads(std::min(product_threads.load(), omp_get_thread_limit())); }

const dnnl::engine& Engine() {
  static const auto* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

bool MultipliesBf16() {
  constexpr auto kWanted = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  static const bool does = (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & kWanted) == kWanted;
  return does;
}

}  // namespace

void SetProductThreads(int threads) {
  product_threads = threads > 0 ? threads : omp_get_num_procs();
  openblas_set_num_threads(product_threads);  // LAPACK's, of linear_fit
}

int ProductThreads() { return product_threads; }

ProductDevice::ProductDevice(Device* device) {
  ALUDEL_CHECK(device_products == nullptr);
  device_products = DeviceProducts::Create(device);
}

ProductDevice::~ProductDevice() { device_products = nullptr; }

std::shared_ptr<const Buffer> KeepForProducts(const void* host, size_t bytes) {
  return device_products == nullptr ? nullptr : device_products->Keep(host, bytes);
}

void Sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
           const float* b, int64_t ldb, float beta, float* c, int64_t ldc, const Buffer* kept_b) {
  if (DeviceProducts* const device = DeviceFor(m, n, k); device != nullptr && (beta == 0 || beta == 1)) {
    const DeviceProducts::Factor left{a,   DType::kF32, transpose_a ? k : m, transpose_a ? m : k,
                                      lda, transpose_a};
    const DeviceProducts::Factor right{
        b, DType::kF32, transpose_b ? n : k, transpose_b ? k : n, ldb, transpose_b, kept_b};
    if (device->Multiply(left, right, beta == 1, c, ldc)) return;
  }
  AnnounceThreads();
  const dnnl_status_t status = dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, 1.0f, a,
                                          lda, b, ldb, beta, c, ldc);
  ALUDEL_CHECK(status == dnnl_success);
}

void WideningGemm(bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a, const Bf16* b,
                  float beta, float* c) {
  constexpr int64_t kPiece = 256;  // rows of b as it is stored
  const int64_t rows = transpose_b ? n : k;
  const int64_t cols = transpose_b ? k : n;
  std::vector<float> wide(kPiece * cols);
  for (int64_t begin = 0; begin < rows; begin += kPiece) {
    const int64_t count = std::min(kPiece, rows - begin);
    const Bf16* from = b + begin * cols;
    for (int64_t i = 0; i < count * cols; ++i) wide[i] = ToFloat(from[i]);
    if (transpose_b) {
      Sgemm(false, true, m, count, k, a, k, wide.data(), k, beta, c + begin, n);
    } else {
      Sgemm(false, false, m, n, count, a + begin, k, wide.data(), n, begin == 0 ? beta : 1.0f, c, n);
    }
  }
}

void Bgemm(bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a, const Bf16* b, float beta,
           float* c, const Buffer* kept_b) {
  DeviceProducts* const device = DeviceFor(m, n, k);
  if (device == nullptr && !MultipliesBf16()) return WideningGemm(transpose_b, m, n, k, a, b, beta, c);
  std::vector<Bf16> rounded(m * k);
  for (int64_t i = 0; i < m * k; ++i) rounded[i] = ToBf16(a[i]);
  if (device != nullptr) {
    const DeviceProducts::Factor left{rounded.data(), DType::kBf16, m, k, k, /*transposed=*/false};
    const DeviceProducts::Factor right{
        b, DType::kBf16, transpose_b ? n : k, transpose_b ? k : n, transpose_b ? k : n, transpose_b, kept_b};
    if (device->Multiply(left, right, beta == 1, c, n)) return;
    if (!MultipliesBf16()) return WideningGemm(transpose_b, m, n, k, a, b, beta, c);
  }
  AnnounceThreads();
  const memory::desc left({m, k}, memory::data_type::bf16, memory::dims{k, 1});
  const memory::desc right({k, n}, memory::data_type::bf16,
                           transpose_b ? memory::dims{1, k} : memory::dims{n, 1});
  const memory::desc out({m, n}, memory::data_type::f32, memory::dims{n, 1});
  dnnl::primitive_attr attributes;
  if (beta != 0) {
    dnnl::post_ops add;
    add.append_sum(1.0f);
    attributes.set_post_ops(add);
  }
  // The library keeps what it made for a shape.
  const dnnl::matmul product({dnnl::matmul::desc(left, right, out), attributes, Engine()});
  dnnl::stream stream(Engine());
  product.execute(stream, {{DNNL_ARG_SRC, memory(left, Engine(), rounded.data())},
                           {DNNL_ARG_WEIGHTS, memory(right, Engine(), const_cast<Bf16*>(b))},
                           {DNNL_ARG_DST, memory(out, Engine(), c)}});
  stream.wait();
}

void AddProduct(const float* x, const float* y, int64_t rows, Moments* moments) {
  constexpr int64_t kChunk = 512;
  const int64_t m = moments->rows;
  const int64_t n = moments->cols;
  DeviceProducts* const device = DeviceFor(m, n, rows);
  if (device != nullptr && device->AddProduct(x, y, rows, m, n, kChunk, moments->values.data())) return;
  std::vector<float> sums(static_cast<size_t>(m * n));
  for (int64_t begin = 0; begin < rows; begin += kChunk) {
    const int64_t count = std::min(kChunk, rows - begin);
    Sgemm(/*transpose_a=*/true, /*transpose_b=*/false, m, n, count, x + begin * m, m, y + begin * n, n, 0.0f,
          sums.data(), n);
    for (size_t i = 0; i < sums.size(); ++i) moments->values[i] += static_cast<double>(sums[i]);
  }
}

void AddGram(const float* x, int64_t rows, Moments* moments) {
  ALUDEL_CHECK(moments->rows == moments->cols);
  AddProduct(x, x, rows, moments);
}

}  // namespace aludel
