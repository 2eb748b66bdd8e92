#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/device.h"
#include "kernels/pinned_memory.h"
#include "kernels/tensor.h"
#include "kernels/training_ops.h"

namespace aludel {

// Products of matrices in host memory that a device makes: factors go there, and results come back. Where it cannot, for want of
// memory or because it has failed, it says so once on standard error, and the caller's host makes them. Thread-safe; one product
// at a time. Its results differ from the host's in their last bits.
class DeviceProducts {
 public:
  // A factor as it lies in host memory, rows x cols, or its transpose. `kept`: what Keep made of the same bytes.
  struct Factor {
    const void* host;
    DType dtype;
    int64_t rows, cols, stride;
    bool transposed;
    const Buffer* kept = nullptr;
  };

  // Null where the device has no TrainingOps, as the CPU. It must outlive this.
  static std::unique_ptr<DeviceProducts> Create(Device* device);
  ~DeviceProducts();
  DeviceProducts(const DeviceProducts&) = delete;
  DeviceProducts& operator=(const DeviceProducts&) = delete;

  // Whether a product [m, k] x [k, n] takes the host longer than its matrices take to the device and back.
  static bool IsWorthIt(int64_t m, int64_t n, int64_t k);

  // c [m, n], rows of which lie `stride` apart, = a b, or += where `accumulate`. False: `c` is as it was.
  bool Multiply(const Factor& a, const Factor& b, bool accumulate, float* c, int64_t stride);

  // sums [m, n] += x^T y for x [rows, m] and y [rows, n]: products of at most `chunk` rows in f32, which are added in double.
  // False: `sums` is as it was.
  bool AddProduct(const float* x, const float* y, int64_t rows, int64_t m, int64_t n, int64_t chunk,
                  double* sums);

  // A copy on the device that lives with the result; null: there is no memory.
  std::shared_ptr<const Buffer> Keep(const void* host, size_t bytes);

 private:
  // Device memory that grows with what is asked of it.
  struct Room {
    Buffer memory;
    absl::StatusOr<void*> For(Device& device, size_t bytes);
  };
  // As above, of the host, for fast copies from the device.
  struct Staging {
    HostMemory memory;
    size_t bytes = 0;
    std::unique_ptr<PinnedMemory> pinned;
    absl::StatusOr<void*> For(Device* device, size_t bytes);
  };

  DeviceProducts(Device* device, TrainingOps* ops, Stream stream)
      : device_(device), ops_(ops), stream_(stream) {}

  absl::Status TryMultiply(const Factor& a, const Factor& b, bool accumulate, float* c, int64_t stride)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TryAddProduct(const float* x, const float* y, int64_t rows, int64_t m, int64_t n,
                             int64_t chunk, double* sums) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<TrainingOps::Factor> Upload(const Factor& factor, Room* room)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for the stream. Memory of this object that holds the device's bytes.
  absl::StatusOr<const void*> Download(const void* device, size_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether it is OK; else says so once.
  bool Passes(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Device* const device_;
  TrainingOps* const ops_;
  const Stream stream_;
  absl::Mutex mutex_;
  Room a_ ABSL_GUARDED_BY(mutex_), b_ ABSL_GUARDED_BY(mutex_), c_ ABSL_GUARDED_BY(mutex_),
      sums_ ABSL_GUARDED_BY(mutex_);
  Staging staging_ ABSL_GUARDED_BY(mutex_);
  bool said_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace aludel
