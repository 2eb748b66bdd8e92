#include "runtime/calibrate/fit/device_products.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/ops.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// Of multiplications: a few hundred microseconds of a host's cores, which is what small matrices take to go there and back.
constexpr int64_t kLeastProducts = int64_t{1} << 26;

size_t SpanBytes(int64_t rows, int64_t cols, int64_t stride, DType dtype) {
  return static_cast<size_t>((rows - 1) * stride + cols) * SizeOf(dtype);
}

}  // namespace

absl::StatusOr<void*> DeviceProducts::Room::For(Device& device, size_t bytes) {
  if (memory.size() < bytes) {
    memory = Buffer();  // before there are two
    ALUDEL_ASSIGN_OR_RETURN(memory, device.Allocate(bytes));
  }
  return memory.data();
}

absl::StatusOr<void*> DeviceProducts::Staging::For(Device* device, size_t wanted) {
  if (bytes < wanted) {
    pinned = nullptr;
    memory = nullptr;
    bytes = 0;
    memory = AllocateHostMemory(wanted);
    if (memory == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for a result of ", wanted, " bytes"));
    }
    bytes = wanted;
    pinned =
        std::make_unique<PinnedMemory>(device, absl::MakeSpan(static_cast<uint8_t*>(memory.get()), bytes));
  }
  return memory.get();
}

std::unique_ptr<DeviceProducts> DeviceProducts::Create(Device* device) {
  auto* const ops = dynamic_cast<TrainingOps*>(&device->ops());
  if (ops == nullptr) return nullptr;
  const absl::StatusOr<Stream> stream = device->CreateStream();
  if (!stream.ok()) return nullptr;
  return std::unique_ptr<DeviceProducts>(new DeviceProducts(device, ops, *stream));
}

DeviceProducts::~DeviceProducts() { device_->DestroyStream(stream_); }

bool DeviceProducts::IsWorthIt(int64_t m, int64_t n, int64_t k) { return m * n * k >= kLeastProducts; }

bool DeviceProducts::Multiply(const Factor& a, const Factor& b, bool accumulate, float* c, int64_t stride) {
  absl::MutexLock lock(&mutex_);
  return Passes(TryMultiply(a, b, accumulate, c, stride));
}

bool DeviceProducts::AddProduct(const float* x, const float* y, int64_t rows, int64_t m, int64_t n,
                                int64_t chunk, double* sums) {
  absl::MutexLock lock(&mutex_);
  return Passes(TryAddProduct(x, y, rows, m, n, chunk, sums));
}

std::shared_ptr<const Buffer> DeviceProducts::Keep(const void* host, size_t bytes) {
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<Buffer> memory = device_->Allocate(bytes);
  if (!Passes(memory.status())) return nullptr;
  device_->CopyToDevice(memory->data(), host, bytes, stream_);
  if (!Passes(device_->Synchronize(stream_))) return nullptr;
  return std::make_shared<const Buffer>(*std::move(memory));
}

absl::Status DeviceProducts::TryMultiply(const Factor& a, const Factor& b, bool accumulate, float* c,
                                         int64_t stride) {
  ALUDEL_ASSIGN_OR_RETURN(const TrainingOps::Factor left, Upload(a, &a_));
  ALUDEL_ASSIGN_OR_RETURN(const TrainingOps::Factor right, Upload(b, &b_));
  const int64_t rows = left.rows(), cols = right.cols();
  ALUDEL_ASSIGN_OR_RETURN(void* const result, c_.For(*device_, rows * cols * sizeof(float)));
  const TensorView out = TensorView::Of(static_cast<float*>(result), rows, cols);
  ops_->Multiply(left, right, /*accumulate=*/false, out, stream_);
  ALUDEL_ASSIGN_OR_RETURN(const void* const made, Download(result, rows * cols * sizeof(float)));
  const auto* from = static_cast<const float*>(made);
  for (int64_t i = 0; i < rows; ++i, from += cols, c += stride) {
    if (accumulate) {
      for (int64_t j = 0; j < cols; ++j) c[j] += from[j];
    } else {
      std::copy_n(from, cols, c);
    }
  }
  return absl::OkStatus();
}

absl::Status DeviceProducts::TryAddProduct(const float* x, const float* y, int64_t rows, int64_t m, int64_t n,
                                           int64_t chunk, double* sums) {
  const Factor left{x, DType::kF32, rows, m, m, /*transposed=*/true};
  const Factor right{y, DType::kF32, rows, n, n, /*transposed=*/false};
  ALUDEL_ASSIGN_OR_RETURN(const TrainingOps::Factor a, Upload(left, &a_));
  TrainingOps::Factor b{a.matrix, false};
  if (y != x) {
    ALUDEL_ASSIGN_OR_RETURN(b, Upload(right, &b_));
  }
  const size_t bytes = m * n * sizeof(double);
  ALUDEL_ASSIGN_OR_RETURN(void* const part, c_.For(*device_, m * n * sizeof(float)));
  ALUDEL_ASSIGN_OR_RETURN(void* const all, sums_.For(*device_, bytes));
  device_->CopyToDevice(all, sums, bytes, stream_);
  const TensorView out = TensorView::Of(static_cast<float*>(part), m, n);
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t count = std::min(chunk, rows - begin);
    ops_->Multiply({a.matrix.Rows(begin, count), true}, {b.matrix.Rows(begin, count), false},
                   /*accumulate=*/false, out, stream_);
    ops_->AddTo(static_cast<double*>(all), out, stream_);
  }
  ALUDEL_ASSIGN_OR_RETURN(const void* const made, Download(all, bytes));
  std::copy_n(static_cast<const double*>(made), m * n, sums);
  return absl::OkStatus();
}

absl::StatusOr<TrainingOps::Factor> DeviceProducts::Upload(const Factor& factor, Room* room) {
  TensorView view{nullptr, factor.dtype, factor.rows, factor.cols, factor.stride};
  if (factor.kept != nullptr) {
    view.data = factor.kept->data();
    return TrainingOps::Factor{view, factor.transposed};
  }
  const size_t bytes = SpanBytes(factor.rows, factor.cols, factor.stride, factor.dtype);
  ALUDEL_ASSIGN_OR_RETURN(view.data, room->For(*device_, bytes));
  device_->CopyToDevice(view.data, factor.host, bytes, stream_);
  return TrainingOps::Factor{view, factor.transposed};
}

absl::StatusOr<const void*> DeviceProducts::Download(const void* device, size_t bytes) {
  ALUDEL_ASSIGN_OR_RETURN(void* const host, staging_.For(device_, bytes));
  device_->CopyToHost(host, device, bytes, stream_);
  ALUDEL_RETURN_IF_ERROR(device_->Synchronize(stream_));
  return host;
}

bool DeviceProducts::Passes(const absl::Status& status) {
  if (status.ok()) return true;
  // What was enqueued reads memory of the caller.
  static_cast<void>(device_->Synchronize(stream_));
  if (!said_) {
    std::fprintf(stderr, "warning: the host multiplies where %s cannot: %s\n", device_->name().c_str(),
                 std::string(status.message()).c_str());
    said_ = true;
  }
  return false;
}

}  // namespace aludel
