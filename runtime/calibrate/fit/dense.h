#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "kernels/device.h"
#include "kernels/tensor.h"
#include "runtime/calibrate/fit/linear_fit.h"

namespace aludel {

// Matrix products of calibration, by oneDNN: a program that calls them has loaded it. Row-major f32 in host memory.
// Same shapes, machine, device and threads: same bytes.

// Threads that each product may use from now on, in the whole process; 1 at first, 0: all allowed cores.
void SetProductThreads(int threads);
int ProductThreads();

// While it lives, large products of the whole process are made by a device that can (device_products.h: a GPU), and go there and
// back. One at a time; `device` must outlive it, and no product run beside its beginning or end.
class ProductDevice {
 public:
  explicit ProductDevice(Device* device);
  ~ProductDevice();
  ProductDevice(const ProductDevice&) = delete;
  ProductDevice& operator=(const ProductDevice&) = delete;
};

// A copy of a factor for products that come again and again; null where there is no such device, or no room on it.
std::shared_ptr<const Buffer> KeepForProducts(const void* host, size_t bytes);

// c [m, n] = beta c + op(a) op(b). op(a) is [m, k]: `a` itself with leading dimension `lda`, or
// its transpose. `kept_b`: all of b, by KeepForProducts, or null.
void Sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
           const float* b, int64_t ldb, float beta, float* c, int64_t ldc, const Buffer* kept_b = nullptr);

// c [m, n] = beta c + a op(b) for beta 0 or 1, a [m, k] in f32, b in bf16, [k, n] itself or the transpose of [n, k].
// Where the CPU multiplies bf16, and on a device, `a` is rounded to it and sums are f32; elsewhere b is widened, piece by piece.
void Bgemm(bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a, const Bf16* b, float beta,
           float* c, const Buffer* kept_b = nullptr);
// The second way, on any CPU.
void WideningGemm(bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a, const Bf16* b,
                  float beta, float* c);

// moments += x^T x for x [rows, moments.rows]. Sums of at most 512 rows are formed in f32 and added in
// double: rounding then averages out over chunks instead of growing with the token count.
void AddGram(const float* x, int64_t rows, Moments* moments);

// moments += x^T y for x [rows, moments.rows], y [rows, moments.cols], summed alike.
void AddProduct(const float* x, const float* y, int64_t rows, Moments* moments);

}  // namespace aludel
