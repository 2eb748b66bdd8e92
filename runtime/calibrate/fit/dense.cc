#include "runtime/calibrate/fit/dense.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include <cblas.h>

#include "dnnl.h"
#include "kernels/check.h"
#include "omp.h"

namespace aludel {
namespace {

std::atomic<int> product_threads = 1;

}  // namespace

void SetProductThreads(int threads) {
  product_threads = threads > 0 ? threads : omp_get_num_procs();
  openblas_set_num_threads(product_threads);  // LAPACK's, of linear_fit
}

void Sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
           const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  // Of the calling thread; oneDNN follows it, and computes wrongly where it is promised more than it gets.
  omp_set_num_threads(std::min(product_threads.load(), omp_get_thread_limit()));
  const dnnl_status_t status = dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, 1.0f, a,
                                          lda, b, ldb, beta, c, ldc);
  ALUDEL_CHECK(status == dnnl_success);
}

void AddProduct(const float* x, const float* y, int64_t rows, Moments* moments) {
  constexpr int64_t kChunk = 512;
  const int64_t m = moments->rows;
  const int64_t n = moments->cols;
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
