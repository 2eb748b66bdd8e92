#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "kernels/cpu/packed_matrix.h"
#include "kernels/tensor.h"

namespace aludel::cpu {

// oneDNN's matrix product over our panels. On AVX-512 its rate is that of our own kernels (within 3 % at 24
// to 1,024 rows, and below them with fewer); where a CPU has AMX tiles it knows them and we do
// not. Thread-safe.
class LibraryGemm {
 public:
  // Fewer rows our own kernels take as fast or faster; from 12 rows on AMX takes less (tests/bench/RESULTS.md).
  static constexpr int64_t kFewestRows = 10;

  // Whether oneDNN is installed and finds AMX on this CPU.
  static bool HasTiles();

  explicit LibraryGemm(int threads);
  ~LibraryGemm();

  // out (+)= a W^T + bias in bf16, on a team of OpenMP's; shapes have been checked. False, and nothing is done, where
  // oneDNN would use its reference, which takes thousands of times as long: version 2.6 has kernels for dense
  // rows alone. Rows of `a` with gaps are copied first.
  bool Run(const TensorView& a, const CpuPackedMatrix& w, const float* bias, bool accumulate,
           const TensorView& out);

 private:
  // What makes a primitive: everything but the addresses.
  using Key = std::tuple<int64_t /*rows*/, int64_t /*out*/, int64_t /*in*/, int64_t /*out stride*/,
                         DType /*out*/, bool /*bias*/, bool /*accumulate*/>;
  // Shapes come from step sizes, which the transformer rounds: a few dozen in a server's life.
  static constexpr size_t kMaxPrimitives = 512;
  struct Primitive;

  std::shared_ptr<const Primitive> Find(const Key& key);

  const int threads_;
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<const Primitive>> primitives_;  // guarded by mutex_
};

}  // namespace aludel::cpu
