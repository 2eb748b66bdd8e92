#include "kernels/cuda/gemm/gemm.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/gemm/batch_launch.h"
#include "kernels/cuda/gemm/cublas_lt_loader.h"
#include "kernels/cuda/gemm/fastest.h"
#include "kernels/cuda/gemm/fp8_gemm.h"
#include "kernels/cuda/pack_scaled.h"
#include "kernels/device_health.h"

namespace aludel::cuda {
namespace {

// Pieces of this many elements: a head matrix of a large vocabulary is not held twice on the host.
constexpr int64_t kPiece = int64_t{1} << 20;

cudaError_t CopyAsNumbers(const TensorView& host_rows, int64_t row_begin, const CudaPackedMatrix& w) {
  char* const to = w.row(row_begin);
  const DType dtype = w.dtype();
  const int64_t count = host_rows.rows * host_rows.cols;
  if (host_rows.dtype == dtype) {
    return cudaMemcpy(to, host_rows.data, count * SizeOf(dtype), cudaMemcpyHostToDevice);
  }
  cudaError_t error = cudaSuccess;
  std::vector<char> piece(std::min(kPiece, count) * SizeOf(dtype));
  for (int64_t begin = 0; begin < count && error == cudaSuccess; begin += kPiece) {
    const int64_t size = std::min(kPiece, count - begin);
    if (dtype == DType::kBf16) {
      std::transform(host_rows.f32() + begin, host_rows.f32() + begin + size,
                     reinterpret_cast<Bf16*>(piece.data()), [](float value) { return ToBf16(value); });
    } else {
      std::transform(host_rows.bf16() + begin, host_rows.bf16() + begin + size,
                     reinterpret_cast<float*>(piece.data()), [](Bf16 value) { return ToFloat(value); });
    }
    error =
        cudaMemcpy(to + begin * SizeOf(dtype), piece.data(), size * SizeOf(dtype), cudaMemcpyHostToDevice);
  }
  return error;
}

cudaError_t CopyQuantized(const TensorView& host_rows, int64_t row_begin, const CudaPackedMatrix& w) {
  const int64_t row_bytes = CudaPackedMatrix::RowBytes(w.in_features(), w.format());
  const int64_t row_scales = CudaPackedMatrix::ScalesPerRow(w.in_features(), w.format());
  const int64_t step = std::max<int64_t>(1, kPiece / row_bytes);
  std::vector<char> rows(std::min(step, host_rows.rows) * row_bytes);
  std::vector<Bf16> scales(std::min(step, host_rows.rows) * row_scales);
  cudaError_t error = cudaSuccess;
  for (int64_t begin = 0; begin < host_rows.rows && error == cudaSuccess; begin += step) {
    const int64_t count = std::min(step, host_rows.rows - begin);
    for (int64_t r = 0; r < count; ++r) {
      PackScaledRow(host_rows, begin + r, w.format(), rows.data() + r * row_bytes,
                    scales.data() + r * row_scales);
    }
    error = cudaMemcpy(w.row(row_begin + begin), rows.data(), count * row_bytes, cudaMemcpyHostToDevice);
    if (error != cudaSuccess) break;
    error = cudaMemcpy(w.scales(row_begin + begin), scales.data(), count * row_scales * sizeof(Bf16),
                       cudaMemcpyHostToDevice);
  }
  return error;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GemmEngine>> GemmEngine::Create(const std::string& device_name,
                                                               int multiprocessors,
                                                               const DeviceOptions& options) {
  const absl::Status loaded = LoadCublasLt();
  if (!loaded.ok()) return loaded;
  cublasLtHandle_t handle = nullptr;
  const absl::Status status =
      FromCublas(cublasLtCreate(&handle), absl::StrFormat("%s: create a cuBLASLt handle", device_name));
  if (!status.ok()) return status;
  return std::unique_ptr<GemmEngine>(new GemmEngine(handle, multiprocessors, options));
}

GemmEngine::~GemmEngine() { cublasLtDestroy(handle_); }

// cuBLAS counts columns first. A row-major matrix is its own transpose there, so out^T [out, rows] =
// W (given as [in, out], to be transposed) times a^T [in, rows]; the bias runs along out^T's columns.
std::optional<LtPlan> GemmEngine::Describe(const Key& key, const float* bias) {
  const auto& [rows, out, in, a_stride, out_stride, a_type, out_type, accumulate, align_a, align_w, align_out,
               align_bias] = key;
  const bool has_bias = align_bias != 0;
  // cuBLASLt wants a bias in the result's type when that is bf16, and ours are f32: MultiplyRoundingOnce. Nor
  // is it said to take one that whole 16-byte loads cannot read.
  if (has_bias && (out_type == DType::kBf16 || align_bias < 16)) return std::nullopt;
  LtPlan plan{};
  // Sums in f32; CUBLAS_COMPUTE_32F keeps f32 factors whole (no TF32).
  bool ok =
      cublasLtMatmulDescInit(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
      SetAttribute(&plan, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T) &&
      cublasLtMatrixLayoutInit(&plan.w, CudaType(a_type), in, out, in) == CUBLAS_STATUS_SUCCESS &&
      cublasLtMatrixLayoutInit(&plan.a, CudaType(a_type), in, rows, a_stride) == CUBLAS_STATUS_SUCCESS &&
      cublasLtMatrixLayoutInit(&plan.out, CudaType(out_type), out, rows, out_stride) == CUBLAS_STATUS_SUCCESS;
  if (has_bias) {
    ok = ok && SetAttribute(&plan, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS) &&
         SetAttribute(&plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F) &&
         SetAttribute(&plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  if (!ok) return std::nullopt;
  return plan;
}

void GemmEngine::ReportSlow(const Key& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (reported_.size() >= kMostReported || !reported_.insert(key).second) return;
  const auto& [rows, out, in, a_stride, out_stride, a_type, out_type, accumulate, align_a, align_w, align_out,
               align_bias] = key;
  ReportSlowProduct(absl::StrFormat(
      "[%d, %d] %s by %d x %d to %s, rows %d and %d apart, aligned to %d, %d and %d bytes%s%s", rows, in,
      Name(a_type), out, in, Name(out_type), a_stride, out_stride, align_a, align_w, align_out,
      align_bias == 0 ? "" : ", a bias", accumulate ? ", added" : ""));
}

void GemmEngine::Run(const TensorView& a, const CudaPackedMatrix& w, const float* bias, bool accumulate,
                     const TensorView& out, CudaStream& stream) {
  if (HasScales(w.format())) return MultiplyScaled(a, w, bias, accumulate, out, stream);
  if (batch_gemm_ && a.rows >= kBatchLeastRows && a.rows <= kBatchRows && TakesBatches(a, out)) {
    return MultiplyBatch(a, w.data(), bias, accumulate, out, stream);
  }
  if (a.rows <= kSkinnyRows && ReadsPieces(a)) {
    const SkinnyArgs args{w.data(), nullptr, a.data, nullptr, a.stride, a.cols, bias, accumulate, out};
    stream.Launch("launch SkinnyGemm", LaunchSkinnyGemm, args, w.format(),
                  SkinnyBlocks(a.rows, multiprocessors_), stream.dependent_launch());
    return;
  }
  Multiply(a, w.data(), bias, accumulate, out, stream);
}

bool GemmEngine::TakesBatches(const TensorView& a, const TensorView& out) {
  return ReadsPieces(a) && BatchTiles(out.cols) <= CudaStream::kCounters;
}

void GemmEngine::MultiplyBatch(const TensorView& a, const void* w, const float* bias, bool accumulate,
                               const TensorView& out, CudaStream& stream) const {
  const BatchArgs args{static_cast<const Bf16*>(w),
                       a.bf16(),
                       a.stride,
                       a.cols,
                       bias,
                       accumulate,
                       out,
                       CutBatch(out.cols, a.cols, multiprocessors_, CudaStream::kWorkspaceBytes),
                       static_cast<float*>(stream.workspace()),
                       stream.counters()};
  stream.Launch("launch BatchGemm", LaunchBatchGemm, args);
}

void GemmEngine::MultiplyScaled(const TensorView& a, const CudaPackedMatrix& w, const float* bias,
                                bool accumulate, const TensorView& out, CudaStream& stream) {
  if (a.rows > kScaledRows) {
    const auto row_bytes = static_cast<int64_t>(a.cols * SizeOf(a.dtype));
    const int64_t piece = std::max<int64_t>(1, CudaStream::kScratchBytes / row_bytes / 64 * 64);
    void* const scratch = stream.Scratch();
    if (scratch == nullptr) return;
    ALUDEL_CHECK(row_bytes * piece <= CudaStream::kScratchBytes);
    for (int64_t begin = 0; begin < out.cols; begin += piece) {
      const int64_t count = std::min(piece, out.cols - begin);
      const TensorView numbers{scratch, a.dtype, count, a.cols, a.cols};
      stream.Launch("launch Dequantize", LaunchDequantize, w.data(), w.scales(0), w.format(), begin, numbers);
      Multiply(a, scratch, bias == nullptr ? nullptr : bias + begin, accumulate, out.Cols(begin, count),
               stream);
    }
    return;
  }
  for (int64_t begin = 0; begin < a.rows; begin += kSkinnyRows) {
    const int64_t count = std::min<int64_t>(kSkinnyRows, a.rows - begin);
    MultiplyFewScaled(a.Rows(begin, count), w, bias, accumulate, out.Rows(begin, count), stream);
  }
}

void GemmEngine::MultiplyFewScaled(const TensorView& a, const CudaPackedMatrix& w, const float* bias,
                                   bool accumulate, const TensorView& out, CudaStream& stream) {
  const int64_t groups = RunsOf(a.cols) * kRunGroups;
  const int64_t padded = groups * kScaleInputs;
  // Scales first: they and the rows after them are aligned to 16 bytes.
  auto* const scales = static_cast<float*>(stream.workspace());
  auto* const values = reinterpret_cast<int8_t*>(scales + groups * kSkinnyRows);
  ALUDEL_CHECK(groups * kSkinnyRows * sizeof(float) + a.rows * padded <= CudaStream::kWorkspaceBytes);
  stream.Launch("launch QuantizeRows", LaunchQuantizeRows, a, values, scales);
  const SkinnyArgs args{w.data(), w.scales(0), values, scales, padded, a.cols, bias, accumulate, out};
  stream.Launch("launch SkinnyGemm", LaunchSkinnyGemm, args, w.format(),
                SkinnyBlocks(a.rows, multiprocessors_), stream.dependent_launch());
}

// Sums in f32, as many rows of them as fit, which a second pass adds the bias to and rounds. A bias added to
// a rounded product would round twice, and a rounded bias where it cancels the product would be off by steps
// of the result; both read and write less, but are not what other devices compute.
void GemmEngine::MultiplyRoundingOnce(const TensorView& a, const void* w, const float* bias,
                                      const TensorView& out, CudaStream& stream) {
  const auto row_bytes = static_cast<int64_t>(out.cols * sizeof(float));
  const int64_t piece = std::max<int64_t>(1, CudaStream::kSumsBytes / row_bytes);
  ALUDEL_CHECK(row_bytes * piece <= CudaStream::kSumsBytes);
  auto* const sums = static_cast<float*>(stream.Sums());
  if (sums == nullptr) return;
  for (int64_t begin = 0; begin < out.rows; begin += piece) {
    const int64_t count = std::min(piece, out.rows - begin);
    const TensorView exact = TensorView::Of(sums, count, out.cols);
    Multiply(a.Rows(begin, count), w, nullptr, /*accumulate=*/false, exact, stream);
    stream.Launch("launch AddBias", LaunchAddBias, exact, bias, out.Rows(begin, count));
  }
}

void GemmEngine::Multiply(const TensorView& a, const void* w, const float* bias, bool accumulate,
                          const TensorView& out, CudaStream& stream) {
  if (bias != nullptr && !accumulate && out.dtype == DType::kBf16) {
    return MultiplyRoundingOnce(a, w, bias, out, stream);
  }
  const LtAlignment alignment{Alignment(w, a.dtype), Alignment(a.data, a.dtype),
                              Alignment(out.data, out.dtype)};
  const Key key{a.rows,      out.cols,    a.cols,        a.stride,
                out.stride,  a.dtype,     out.dtype,     accumulate,
                alignment.a, alignment.w, alignment.out, bias == nullptr ? 0 : Alignment(bias, DType::kF32)};
  const auto describe = [&] { return Describe(key, bias); };
  const auto fastest = [&](absl::Span<const LtPlan> plans) {
    const auto run = [&](size_t i, void* to) {
      return RunPlan(plans[i], a, w, bias, accumulate, out, to, stream.workspace(), stream.get()).ok();
    };
    return FastestProduct(plans.size(), accumulate, out, run, stream);
  };
  const std::optional<LtPlan> plan = plans_.Find(key, Flops(out, a.cols), alignment, describe, fastest);
  if (!plan.has_value() && bias != nullptr && !accumulate) {
    // The bias in every row, and the product added to it.
    const TensorView repeated{const_cast<float*>(bias), DType::kF32, out.rows, out.cols, /*stride=*/0};
    const auto copy = [](const auto&... args) { return LaunchCopyRows(args...); };
    stream.Launch("launch CopyRows", copy, repeated, static_cast<const int32_t*>(nullptr), out);
    return Multiply(a, w, nullptr, /*accumulate=*/true, out, stream);
  }
  if (!plan.has_value()) {
    ReportSlow(key);
    return MultiplyWithoutLibrary(a, w, bias, accumulate, out, stream);
  }
  const auto multiply = [&](const TensorView&, const void*, const float*, bool, const TensorView&,
                            cudaStream_t on) {
    stream.Collect(RunPlan(*plan, a, w, bias, accumulate, out, out.data, stream.workspace(), on));
    return cudaSuccess;
  };
  stream.Launch("multiply", multiply, a, w, bias, accumulate, out);
}

void GemmEngine::MultiplyWithoutLibrary(const TensorView& a, const void* w, const float* bias,
                                        bool accumulate, const TensorView& out, CudaStream& stream) {
  if (!TakesBatches(a, out)) {
    stream.Launch("launch TileGemm", LaunchTileGemm, a, w, bias, accumulate, out);
    return;
  }
  for (int64_t begin = 0; begin < a.rows; begin += kBatchRows) {
    const int64_t count = std::min<int64_t>(kBatchRows, a.rows - begin);
    MultiplyBatch(a.Rows(begin, count), w, bias, accumulate, out.Rows(begin, count), stream);
  }
}

absl::Status GemmEngine::RunPlan(LtPlan plan, const TensorView& a, const void* w, const float* bias,
                                 bool accumulate, const TensorView& out, void* to, void* workspace,
                                 cudaStream_t stream) const {
  if (bias != nullptr && !SetAttribute(&plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias)) {
    return absl::InternalError("cuBLASLt refuses the address of a bias");
  }
  const float alpha = 1.0f;
  const float beta = accumulate ? 1.0f : 0.0f;
  const cublasStatus_t status = cublasLtMatmul(handle_, &plan.operation, &alpha, w, &plan.w, a.data, &plan.a,
                                               &beta, out.data, &plan.out, to, &plan.out, &plan.algorithm,
                                               workspace, CudaStream::kWorkspaceBytes, stream);
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return FromCublas(status, absl::StrFormat("multiply [%d, %d] by a %d x %d %s matrix", a.rows, a.cols,
                                            out.cols, a.cols, Name(a.dtype)));
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> CudaOps::NewPacked(int64_t out, int64_t in,
                                                                 WeightFormat format) {
  if (format == WeightFormat::kFp8) return fp8_->NewPacked(device_, out, in);
  absl::StatusOr<Buffer> memory = device_->Allocate(CudaPackedMatrix::Bytes(out, in, format));
  if (!memory.ok()) return memory.status();
  return std::make_unique<CudaPackedMatrix>(*std::move(memory), out, in, format);
}

// Copies the rows as the format stores them, and waits: host_rows may be a caller's temporary.
absl::Status CudaOps::PackRows(const TensorView& host_rows, int64_t row_begin, PackedMatrix& w) {
  ALUDEL_CHECK(host_rows.contiguous() && host_rows.cols == w.in_features());
  ALUDEL_CHECK(row_begin >= 0 && row_begin + host_rows.rows <= w.out_features());
  if (w.format() == WeightFormat::kFp8) return PackAsFp8(host_rows, row_begin, w);
  auto& packed = static_cast<CudaPackedMatrix&>(w);
  cudaError_t error = cudaSetDevice(ordinal_);
  if (error == cudaSuccess) {
    error = HasScales(packed.format()) ? CopyQuantized(host_rows, row_begin, packed)
                                       : CopyAsNumbers(host_rows, row_begin, packed);
  }
  // A copy from pageable memory may return once it is staged; the next reader is on another stream.
  if (error == cudaSuccess) error = cudaStreamSynchronize(cudaStreamLegacy);
  if (error == cudaSuccess) return absl::OkStatus();
  return FromCuda(error, absl::StrFormat("%s: copy %d rows of a %d x %d matrix", device_->name(),
                                         host_rows.rows, w.out_features(), w.in_features()));
}

void CudaOps::Gemm(const TensorView& a, const PackedMatrix& w, const float* bias, bool accumulate,
                   const TensorView& out, Stream stream) {
  ALUDEL_CHECK(a.cols == w.in_features() && out.cols == w.out_features() && a.rows == out.rows);
  ALUDEL_CHECK(HasScales(w.format()) || FormatOf(a.dtype) == w.format());
  if (a.rows == 0) return;
  if (w.format() == WeightFormat::kFp8) {
    return fp8_->Run(a, static_cast<const CudaFp8Matrix&>(w), bias, accumulate, out, Enter(stream));
  }
  const auto& packed = static_cast<const CudaPackedMatrix&>(w);
  gemm_->Run(a, packed, bias, accumulate, out, Enter(stream));
}

}  // namespace aludel::cuda
