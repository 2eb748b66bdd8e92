#include "kernels/cuda/gemm/fp8_gemm.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "kernels/cpu/fp8_gemm.h"
#include "kernels/cpu/rows.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/gemm/fp8_launch.h"
#include "kernels/cuda/gemm/skinny_index.h"
#include "kernels/cuda/launch.h"
#include "kernels/device_health.h"
#include "kernels/e4m3.h"

namespace aludel::cuda {
namespace {

constexpr int kLeastCapability = 89;
constexpr size_t kAlignment = 256;  // of codes, as an allocation's
// Rows of a matrix that are staged on the host at a time, in bytes.
constexpr int64_t kStagedBytes = int64_t{4} << 20;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Whether the kernel for few rows can load whole pieces of it.
bool SkinnyTakes(const TensorView& a) {
  return a.dtype == DType::kBf16 && a.cols % kLaneInputs == 0 && a.stride % kLaneInputs == 0 &&
         reinterpret_cast<uintptr_t>(a.data) % 16 == 0;
}

// Rows from `begin` on, `count` of them, which fill(row, codes) writes and whose scale it returns.
template <typename Fill>
cudaError_t WriteRows(const CudaFp8Matrix& w, int64_t begin, int64_t count, Fill fill) {
  const int64_t stride = Fp8Padded(w.in_features());
  const int64_t step = std::clamp<int64_t>(kStagedBytes / stride, 1, std::max<int64_t>(count, 1));
  std::vector<uint8_t> codes(step * stride, 0);
  std::vector<float> scales(step);
  for (int64_t first = 0; first < count; first += step) {
    const int64_t rows = std::min(step, count - first);
    for (int64_t r = 0; r < rows; ++r) scales[r] = fill(first + r, codes.data() + r * stride);
    cudaError_t error = cudaMemcpy(w.row(begin + first), codes.data(), rows * stride, cudaMemcpyHostToDevice);
    if (error == cudaSuccess) {
      error =
          cudaMemcpy(w.scales() + begin + first, scales.data(), rows * sizeof(float), cudaMemcpyHostToDevice);
    }
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// A copy from pageable memory may return once it is staged; the next reader is on another stream.
absl::Status Finish(cudaError_t error, const std::string& device, int64_t rows, const PackedMatrix& w) {
  if (error == cudaSuccess) error = cudaStreamSynchronize(cudaStreamLegacy);
  if (error == cudaSuccess) return absl::OkStatus();
  return FromCuda(error, absl::StrFormat("%s: copy %d rows of a %d x %d fp8 matrix", device, rows,
                                         w.out_features(), w.in_features()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Fp8Gemm>> Fp8Gemm::Create(const std::string& device_name, int ordinal,
                                                         bool time_algorithms) {
  int major = 0, minor = 0;
  cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal);
  }
  const absl::Status status =
      FromCuda(error, absl::StrFormat("%s: read its compute capability", device_name));
  if (!status.ok()) return status;
  absl::StatusOr<std::unique_ptr<Fp8Plans>> plans = Fp8Plans::Create(device_name, time_algorithms);
  if (!plans.ok()) return plans.status();
  return std::unique_ptr<Fp8Gemm>(new Fp8Gemm(device_name, major * 10 + minor, *std::move(plans)));
}

absl::Status Fp8Gemm::Supported() const {
  if (capability_ >= kLeastCapability) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrFormat(
      "%s has compute capability %d.%d, weights in fp8 want 8.9 or more; int8 and int4 run on it, as do a "
      "checkpoint's own in the compute type",
      device_name_, capability_ / 10, capability_ % 10));
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> Fp8Gemm::NewPacked(Device* device, int64_t out,
                                                                 int64_t in) const {
  if (const absl::Status status = Supported(); !status.ok()) return status;
  absl::StatusOr<Buffer> memory = device->Allocate(CudaFp8Matrix::Bytes(out, in));
  if (!memory.ok()) return memory.status();
  auto matrix = std::make_unique<CudaFp8Matrix>(*std::move(memory), out, in);
  // Rows behind the last.
  const int64_t padding = Fp8Padded(out) - out;
  const absl::Status status = Finish(WriteRows(*matrix, out, padding, [](int64_t, uint8_t*) { return 0.0f; }),
                                     device_name_, padding, *matrix);
  if (!status.ok()) return status;
  return matrix;
}

void Fp8Gemm::Run(const TensorView& a, const CudaFp8Matrix& w, const float* bias, bool accumulate,
                  const TensorView& out, CudaStream& stream) {
  if (a.rows <= kSkinnyRows) return MultiplyFew(a, w, bias, accumulate, out, stream);
  auto* const scratch = static_cast<char*>(stream.Scratch());
  if (scratch == nullptr) return;
  const int64_t stride = Fp8Padded(a.cols);
  // Rows whose codes and scales fit.
  const int64_t piece = (CudaStream::kScratchBytes - kAlignment) / (stride + sizeof(float));
  ALUDEL_CHECK(piece > 0);
  for (int64_t begin = 0; begin < a.rows; begin += piece) {
    const int64_t count = std::min(piece, a.rows - begin);
    auto* const scales = reinterpret_cast<float*>(scratch);
    auto* const codes = reinterpret_cast<uint8_t*>(scratch + Aligned(count * sizeof(float)));
    const TensorView rows = a.Rows(begin, count);
    stream.Launch("launch QuantizeFp8", LaunchQuantizeFp8, Fp8RowsArgs{rows, codes, scales});
    MultiplyCodes(rows, codes, scales, w, bias, accumulate, out.Rows(begin, count), stream);
  }
}

void Fp8Gemm::MultiplyFew(const TensorView& a, const CudaFp8Matrix& w, const float* bias, bool accumulate,
                          const TensorView& out, CudaStream& stream) const {
  TensorView rows = a;
  if (!SkinnyTakes(a)) {
    const int64_t stride = Fp8Padded(a.cols);
    ALUDEL_CHECK(a.rows * stride * sizeof(Bf16) <= CudaStream::kWorkspaceBytes);
    rows = {stream.workspace(), DType::kBf16, a.rows, a.cols, stride};
    const auto copy = [](const auto&... args) { return LaunchCopyRows(args...); };
    stream.Launch("launch CopyRows", copy, a, static_cast<const int32_t*>(nullptr), rows);
  }
  const Fp8SkinnyArgs args{w.row(0), w.scales(), rows.bf16(), rows.stride, a.cols, bias, accumulate, out};
  stream.Launch("launch Fp8Skinny", LaunchFp8Skinny, args, stream.dependent_launch());
}

void Fp8Gemm::MultiplyCodes(const TensorView& a, const uint8_t* codes, const float* scales,
                            const CudaFp8Matrix& w, const float* bias, bool accumulate, const TensorView& out,
                            CudaStream& stream) {
  const Fp8Operands product{codes, w.row(0), Fp8Padded(a.cols), scales, w.scales(), accumulate, out};
  if (bias == nullptr) {
    if (const auto plan = plans_->Find(product, stream); plan.has_value())
      return Multiply(*plan, product, stream);
  }
  if (MultiplyBySums(codes, scales, w, bias, accumulate, out, stream)) return;
  Report(a, out);
  for (int64_t begin = 0; begin < a.rows; begin += kSkinnyRows) {
    const int64_t count = std::min<int64_t>(kSkinnyRows, a.rows - begin);
    MultiplyFew(a.Rows(begin, count), w, bias, accumulate, out.Rows(begin, count), stream);
  }
}

void Fp8Gemm::Report(const TensorView& a, const TensorView& out) {
  constexpr size_t kMostReported = 1024;
  std::lock_guard<std::mutex> lock(mutex_);
  if (reported_.size() >= kMostReported || !reported_.insert({a.rows, out.cols, a.cols, out.dtype}).second) {
    return;
  }
  ReportSlowProduct(
      absl::StrFormat("[%d, %d] fp8 by %d x %d to %s", a.rows, a.cols, out.cols, a.cols, Name(out.dtype)));
}

bool Fp8Gemm::MultiplyBySums(const uint8_t* codes, const float* scales, const CudaFp8Matrix& w,
                             const float* bias, bool accumulate, const TensorView& out, CudaStream& stream) {
  const int64_t in = Fp8Padded(w.in_features()), outs = Fp8Padded(out.cols);
  auto* const sums = static_cast<float*>(stream.Sums());
  if (sums == nullptr) return true;  // collected
  // As many rows as fit; pieces alike, but the last.
  const auto piece = static_cast<int64_t>(CudaStream::kSumsBytes / (outs * sizeof(float)));
  ALUDEL_CHECK(piece > 0);
  const auto of_piece = [&](int64_t begin) {
    return Fp8Operands{.a = codes + begin * in,
                       .w = w.row(0),
                       .in = in,
                       .out = TensorView::Of(sums, std::min(piece, out.rows - begin), outs)};
  };
  for (int64_t begin = 0; begin < out.rows; begin += piece) {
    if (!plans_->Find(of_piece(begin), stream).has_value()) return false;
  }
  for (int64_t begin = 0; begin < out.rows; begin += piece) {
    const Fp8Operands product = of_piece(begin);
    Multiply(*plans_->Find(product, stream), product, stream);
    stream.Launch("launch ScaleFp8", LaunchScaleFp8,
                  Fp8SumsArgs{sums, outs, scales + begin, w.scales(), bias, accumulate,
                              out.Rows(begin, product.out.rows)});
  }
  return true;
}

void Fp8Gemm::Multiply(const LtPlan& plan, const Fp8Operands& product, CudaStream& stream) const {
  const auto multiply = [&](const uint8_t*, const uint8_t*, const float*, const float*, bool,
                            const TensorView&, cudaStream_t on) {
    stream.Collect(plans_->Run(plan, product, product.out.data, stream.workspace(), on));
    return cudaSuccess;
  };
  stream.Launch("multiply fp8", multiply, product.a, product.w, product.a_scales, product.w_scales,
                product.accumulate, product.out);
}

absl::Status CudaOps::PackFp8Rows(const Fp8Rows& host_rows, int64_t row_begin, PackedMatrix& w) {
  ALUDEL_CHECK(w.format() == WeightFormat::kFp8 && host_rows.cols == w.in_features());
  ALUDEL_CHECK(row_begin >= 0 && row_begin + host_rows.rows <= w.out_features());
  const auto& packed = static_cast<const CudaFp8Matrix&>(w);
  cudaError_t error = cudaSetDevice(ordinal_);
  if (error == cudaSuccess) {
    error = WriteRows(packed, row_begin, host_rows.rows, [&](int64_t row, uint8_t* codes) {
      const uint8_t* const from = host_rows.codes + row * host_rows.cols;
      std::copy_n(from, host_rows.cols, codes);
      // What the kernel for few rows wants, and no other way of saying it: E4m3ToBf16.
      const bool is_nan = std::any_of(from, from + host_rows.cols, IsE4m3Nan);
      return is_nan ? FromE4m3(kE4m3Nan) : host_rows.scales[row];
    });
  }
  return Finish(error, device_->name(), host_rows.rows, w);
}

absl::Status CudaOps::PackAsFp8(const TensorView& host_rows, int64_t row_begin, PackedMatrix& w) {
  const auto& packed = static_cast<const CudaFp8Matrix&>(w);
  const int64_t cols = host_rows.cols;
  std::vector<float> wide(cols);
  cudaError_t error = cudaSetDevice(ordinal_);
  if (error == cudaSuccess) {
    error = WriteRows(packed, row_begin, host_rows.rows, [&](int64_t row, uint8_t* codes) {
      return cpu::QuantizeToE4m3(cpu::LoadRow(host_rows, row, wide.data()), cols, codes);
    });
  }
  return Finish(error, device_->name(), host_rows.rows, w);
}

bool CudaOps::KeepsFp8() const { return fp8_->Supported().ok(); }

}  // namespace aludel::cuda
