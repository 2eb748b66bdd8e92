#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/gemm/fp8_gemm.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/sequence_table.h"
#include "kernels/token_quantizer.h"

namespace aludel::cuda {
namespace {

// Row numbers of either width.
constexpr auto kCopyRows = [](const auto&... args) { return LaunchCopyRows(args...); };

}  // namespace

absl::StatusOr<std::unique_ptr<CudaOps>> CudaOps::Create(Device* device, int ordinal,
                                                         const DeviceOptions& options, bool wgmma,
                                                         CudaStream* default_stream) {
  int multiprocessors = 0;
  const absl::Status status =
      FromCuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, ordinal),
               absl::StrCat(device->name(), ": count its multiprocessors"));
  if (!status.ok()) return status;
  absl::StatusOr<std::unique_ptr<GemmEngine>> gemm =
      GemmEngine::Create(device->name(), multiprocessors, options);
  if (!gemm.ok()) return gemm.status();
  absl::StatusOr<std::unique_ptr<Fp8Gemm>> fp8 =
      Fp8Gemm::Create(device->name(), ordinal, options.time_algorithms);
  if (!fp8.ok()) return fp8.status();
  return std::unique_ptr<CudaOps>(new CudaOps(device, ordinal, multiprocessors, wgmma, default_stream,
                                              *std::move(gemm), *std::move(fp8)));
}

CudaOps::CudaOps(Device* device, int ordinal, int multiprocessors, bool wgmma, CudaStream* default_stream,
                 std::unique_ptr<GemmEngine> gemm, std::unique_ptr<Fp8Gemm> fp8)
    : device_(device),
      ordinal_(ordinal),
      multiprocessors_(multiprocessors),
      wgmma_(wgmma),
      default_stream_(default_stream),
      gemm_(std::move(gemm)),
      fp8_(std::move(fp8)) {}

CudaOps::~CudaOps() = default;

CudaStream& CudaOps::Enter(Stream stream) const {
  CudaStream& state = stream.handle == nullptr ? *default_stream_ : *static_cast<CudaStream*>(stream.handle);
  // The current device is the thread's; setting it again costs nothing measurable.
  state.Collect(cudaSetDevice(ordinal_), "make the GPU current");
  return state;
}

void CudaOps::Embed(absl::Span<const int32_t> ids, const PackedMatrix& table, const TensorView& out,
                    Stream stream) {
  const TensorView rows = static_cast<const CudaPackedMatrix&>(table).rows();
  ALUDEL_CHECK(out.rows == static_cast<int64_t>(ids.size()) && out.cols == rows.cols);
  for (const int32_t id : ids) ALUDEL_CHECK(id >= 0 && id < rows.rows);
  if (ids.empty()) return;
  CudaStream& state = Enter(stream);
  const int32_t* staged = StageSpan(ids, state);
  if (staged == nullptr) return;
  state.Launch("launch Embed", kCopyRows, rows, staged, out);
}

void CudaOps::RmsNorm(const TensorView& x, const float* weight, float eps, const TensorView& out,
                      Stream stream) {
  ALUDEL_CHECK(x.rows == out.rows && x.cols == out.cols);
  CudaStream& state = Enter(stream);
  state.Launch("launch RmsNorm", LaunchNorm, x, x.cols, weight, eps, out);
}

void CudaOps::HeadNorm(const TensorView& x, int head_dim, const float* weight, float eps, Stream stream) {
  ALUDEL_CHECK(x.cols % head_dim == 0);
  CudaStream& state = Enter(stream);
  state.Launch("launch HeadNorm", LaunchNorm, x, head_dim, weight, eps, x);
}

void CudaOps::Rope(const TensorView& q, int head_dim, const RopeTable& rope,
                   absl::Span<const SequenceRows> sequences, Stream stream) {
  ALUDEL_CHECK(q.cols % head_dim == 0 && static_cast<int>(rope.inverse_frequency.size()) * 2 == head_dim);
  CheckSequences(sequences, q.rows, /*block_tokens=*/0);
  if (TotalRows(sequences) == 0) return;
  CudaStream& state = Enter(stream);
  const float* frequencies = StageSpan(rope.inverse_frequency, state);
  const SequenceTable table = StageSequences(sequences, state);
  if (frequencies == nullptr || table.entries == nullptr) return;
  state.Launch("launch Rope", LaunchRope, q, head_dim, frequencies, rope.attention_factor, table);
}

void CudaOps::RopeWriteKv(const TensorView& k, const TensorView& v, const RopeTable& rope,
                          absl::Span<const SequenceRows> sequences, const PagedKv& kv, Stream stream) {
  WriteRun(k, v, rope, sequences, kv, {1, 0, 0}, stream);
}

void CudaOps::RopeWriteLayers(const TensorView& rows, const RopeTable& rope,
                              absl::Span<const SequenceRows> sequences, absl::Span<const PagedKv> layers,
                              Stream stream) {
  if (layers.empty()) return;
  const PagedKv& first = layers.front();
  const int64_t kv_dim = int64_t{first.kv_heads} * first.head_dim;
  const auto count = static_cast<int64_t>(layers.size());
  ALUDEL_CHECK(rows.cols == count * 2 * kv_dim);
  const auto behind = [](const void* page, const void* of) {
    return static_cast<const char*>(page) - static_cast<const char*>(of);
  };
  const int64_t page_bytes = count > 1 ? behind(layers[1].k, first.k) : 0;
  for (int64_t i = 0; i < count; ++i) {
    ALUDEL_CHECK(layers[i].dtype == first.dtype && layers[i].block_tokens == first.block_tokens &&
                 layers[i].kv_heads == first.kv_heads && layers[i].head_dim == first.head_dim);
    ALUDEL_CHECK(behind(layers[i].k, first.k) == i * page_bytes &&
                 behind(layers[i].v, first.v) == i * page_bytes);
  }
  WriteRun(rows.Cols(0, kv_dim), rows.Cols(kv_dim, kv_dim), rope, sequences, first,
           {static_cast<int>(count), 2 * kv_dim, page_bytes}, stream);
}

void CudaOps::WriteRun(const TensorView& k, const TensorView& v, const RopeTable& rope,
                       absl::Span<const SequenceRows> sequences, const PagedKv& kv, const LayerRun& run,
                       Stream stream) {
  const int64_t kv_dim = int64_t{kv.kv_heads} * kv.head_dim;
  ALUDEL_CHECK(k.cols == kv_dim && v.cols == kv_dim && k.rows == v.rows);
  ALUDEL_CHECK(static_cast<int>(rope.inverse_frequency.size()) * 2 == kv.head_dim);
  CheckSequences(sequences, k.rows, kv.block_tokens);
  if (TotalRows(sequences) == 0) return;
  CudaStream& state = Enter(stream);
  const float* frequencies = StageSpan(rope.inverse_frequency, state);
  const SequenceTable table = StageSequences(sequences, state);
  if (frequencies == nullptr || table.entries == nullptr) return;
  state.Launch("launch RopeWriteKv", LaunchRopeWriteKv, k, v, frequencies, rope.attention_factor, table,
               PlanesOf(kv), run);
}

void CudaOps::SiluMul(const TensorView& gate_up, const TensorView& out, Stream stream) {
  ALUDEL_CHECK(gate_up.rows == out.rows && gate_up.cols == 2 * out.cols);
  CudaStream& state = Enter(stream);
  state.Launch("launch SiluMul", LaunchSiluMul, gate_up, out);
}

void CudaOps::Silu(const TensorView& x, const TensorView& out, Stream stream) {
  ALUDEL_CHECK(x.rows == out.rows && x.cols == out.cols);
  CudaStream& state = Enter(stream);
  state.Launch("launch Silu", LaunchSilu, x, out);
}

void CudaOps::GatherRows(const TensorView& x, absl::Span<const int64_t> rows, const TensorView& out,
                         Stream stream) {
  ALUDEL_CHECK(out.rows == static_cast<int64_t>(rows.size()) && out.cols == x.cols);
  for (const int64_t row : rows) ALUDEL_CHECK(row >= 0 && row < x.rows);
  if (rows.empty()) return;
  CudaStream& state = Enter(stream);
  const int64_t* staged = StageSpan(rows, state);
  if (staged == nullptr) return;
  state.Launch("launch GatherRows", kCopyRows, x, staged, out);
}

void CudaOps::SampleRows(const TensorView& logits, absl::Span<const RowSampling> draws, int32_t* tokens,
                         Stream stream) {
  ALUDEL_CHECK(logits.rows == static_cast<int64_t>(draws.size()));
  if (draws.empty()) return;
  ALUDEL_CHECK(logits.cols > 0 && logits.cols <= kMaxSampledVocab);
  CudaStream& state = Enter(stream);
  std::vector<DrawTerms> terms(draws.size());
  std::transform(draws.begin(), draws.end(), terms.begin(), TermsOf);
  const DrawTerms* staged = StageSpan(absl::MakeConstSpan(terms), state);
  if (staged == nullptr) return;
  state.Launch("launch SampleRows", LaunchSampleRows, logits, staged, tokens);
}

void CudaOps::PackLatents(const TensorView& z, float inverse_step, absl::Span<const LatentPlane> planes,
                          uint8_t* bytes, Stream stream) {
  ALUDEL_CHECK(z.cols == static_cast<int64_t>(planes.size()));
  if (z.rows == 0 || planes.empty()) return;
  CudaStream& state = Enter(stream);
  const LatentPlane* staged = StageSpan(planes, state);
  if (staged == nullptr) return;
  state.Launch("launch PackLatents", LaunchPackLatents, z, inverse_step, staged, bytes);
}

void CudaOps::UnpackLatents(const uint8_t* bytes, absl::Span<const LatentPlane> planes, int64_t first,
                            float step, const TensorView& z, Stream stream) {
  ALUDEL_CHECK(z.cols == static_cast<int64_t>(planes.size()));
  if (z.rows == 0 || planes.empty()) return;
  CudaStream& state = Enter(stream);
  const LatentPlane* staged = StageSpan(planes, state);
  if (staged == nullptr) return;
  state.Launch("launch UnpackLatents", LaunchUnpackLatents, bytes, staged, first, step, z);
}

void CudaOps::QuantizeTokens(const TensorView& x, int bits, uint8_t* scales, uint8_t* codes, Stream stream) {
  if (x.rows == 0) return;
  ALUDEL_CHECK(x.cols <= kMaxTokenWidth);
  Enter(stream).Launch("launch QuantizeTokens", LaunchQuantizeTokens, x, bits,
                       TokenQuantizer(bits, x.cols).block(), scales, codes);
}

void CudaOps::DequantizeTokens(const uint8_t* scales, const uint8_t* codes, int bits, const TensorView& x,
                               Stream stream) {
  if (x.rows == 0) return;
  ALUDEL_CHECK(x.cols <= kMaxTokenWidth);
  Enter(stream).Launch("launch DequantizeTokens", LaunchDequantizeTokens, scales, codes, bits,
                       TokenQuantizer(bits, x.cols).block(), x);
}

void CudaOps::Convert(const TensorView& src, const TensorView& dst, Stream stream) {
  ALUDEL_CHECK(src.rows == dst.rows && src.cols == dst.cols);
  CudaStream& state = Enter(stream);
  state.Launch("launch Convert", kCopyRows, src, static_cast<const int32_t*>(nullptr), dst);
}

}  // namespace aludel::cuda
