#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/launch.h"
#include "kernels/fused_decode.h"
#include "kernels/ops.h"
#include "kernels/training_ops.h"

namespace aludel::cuda {

class Fp8Gemm;
class GemmEngine;

// The operations on one GPU: shape checks, staging of host arrays and launches; the kernels are in the .cu
// file of each stem. Owned by its device. Host arrays that an op takes (ids, rows, draws, planes, sequences,
// block lists, frequencies) are copied before it returns. What a launch reports is collected in the stream
// and returned by Synchronize; after a failure the stream's results are undefined until then.
class CudaOps final : public Ops, public FusedDecode, public TrainingOps {
 public:
  // `device` owns this; `default_stream` stands for Stream{}. `wgmma`: prefill attention uses it where it can.
  static absl::StatusOr<std::unique_ptr<CudaOps>> Create(Device* device, int ordinal,
                                                         const DeviceOptions& options, bool wgmma,
                                                         CudaStream* default_stream);
  ~CudaOps() override;

  absl::StatusOr<std::unique_ptr<PackedMatrix>> NewPacked(int64_t out, int64_t in,
                                                          WeightFormat format) override;
  absl::Status PackRows(const TensorView& host_rows, int64_t row_begin, PackedMatrix& w) override;
  absl::Status PackFp8Rows(const Fp8Rows& host_rows, int64_t row_begin, PackedMatrix& w) override;
  bool KeepsFp8() const override;
  bool KeepsNarrow() const override { return true; }
  void Embed(absl::Span<const int32_t> ids, const PackedMatrix& table, const TensorView& out,
             Stream stream) override;
  void RmsNorm(const TensorView& x, const float* weight, float eps, const TensorView& out,
               Stream stream) override;
  void Gemm(const TensorView& a, const PackedMatrix& w, const float* bias, bool accumulate,
            const TensorView& out, Stream stream) override;
  absl::StatusOr<std::unique_ptr<PackedLowRank>> PackLowRank(absl::Span<const LowRankPart> parts, int64_t out,
                                                             int64_t in, DType dtype) override;
  void AddLowRank(const TensorView& x, absl::Span<const LowRankRows> groups, const TensorView& out,
                  Stream stream) override;
  void HeadNorm(const TensorView& x, int head_dim, const float* weight, float eps, Stream stream) override;
  void Rope(const TensorView& q, int head_dim, const RopeTable& rope,
            absl::Span<const SequenceRows> sequences, Stream stream) override;
  void RopeWriteKv(const TensorView& k, const TensorView& v, const RopeTable& rope,
                   absl::Span<const SequenceRows> sequences, const PagedKv& kv, Stream stream) override;
  void RopeWriteLayers(const TensorView& rows, const RopeTable& rope,
                       absl::Span<const SequenceRows> sequences, absl::Span<const PagedKv> layers,
                       Stream stream) override;
  void Attention(const TensorView& q, const AttentionParams& params, absl::Span<const SequenceRows> sequences,
                 const PagedKv& kv, const TensorView& out, Stream stream) override;
  void SiluMul(const TensorView& gate_up, const TensorView& out, Stream stream) override;
  void Silu(const TensorView& x, const TensorView& out, Stream stream) override;
  void GatherRows(const TensorView& x, absl::Span<const int64_t> rows, const TensorView& out,
                  Stream stream) override;
  void SampleRows(const TensorView& logits, absl::Span<const RowSampling> draws, int32_t* tokens,
                  Stream stream) override;
  void PackLatents(const TensorView& z, float inverse_step, absl::Span<const LatentPlane> planes,
                   uint8_t* bytes, Stream stream) override;
  void UnpackLatents(const uint8_t* bytes, absl::Span<const LatentPlane> planes, int64_t first, float step,
                     const TensorView& z, Stream stream) override;
  void QuantizeTokens(const TensorView& x, int bits, uint8_t* scales, uint8_t* codes, Stream stream) override;
  void DequantizeTokens(const uint8_t* scales, const uint8_t* codes, int bits, const TensorView& x,
                        Stream stream) override;
  void Convert(const TensorView& src, const TensorView& dst, Stream stream) override;

  bool Takes(int64_t rows, const PackedMatrix& w, int head_dim) const override;
  void RopeAngles(const RopeTable& rope, absl::Span<const SequenceRows> sequences, float* angles,
                  Stream stream) override;
  void QkvRopeWrite(const LayerInput& input, absl::Span<const SequenceRows> sequences, const PagedKv& kv,
                    Stream stream) override;
  void GateUpSilu(const LayerGate& gate, Stream stream) override;
  void GemmLowRank(const TensorView& a, const PackedMatrix& w, const float* bias, bool accumulate,
                   absl::Span<const LowRankRows> groups, const TensorView& out, Stream stream) override;

  void Multiply(const Factor& a, const Factor& b, bool accumulate, const TensorView& out,
                Stream stream) override;
  void AddTo(double* sums, const TensorView& x, Stream stream) override;

 private:
  CudaOps(Device* device, int ordinal, int multiprocessors, bool wgmma, CudaStream* default_stream,
          std::unique_ptr<GemmEngine> gemm, std::unique_ptr<Fp8Gemm> fp8);

  // RopeWriteKv of `run` layers, of which k, v and kv are the first one's.
  void WriteRun(const TensorView& k, const TensorView& v, const RopeTable& rope,
                absl::Span<const SequenceRows> sequences, const PagedKv& kv, const LayerRun& run,
                Stream stream);
  // PackRows into a matrix of kFp8.
  absl::Status PackAsFp8(const TensorView& host_rows, int64_t row_begin, PackedMatrix& w);

  // The stream's state, with this GPU made current for the calling thread.
  CudaStream& Enter(Stream stream) const;

  Device* device_;
  int ordinal_;
  int multiprocessors_;
  bool wgmma_;
  CudaStream* default_stream_;
  std::unique_ptr<GemmEngine> gemm_;
  std::unique_ptr<Fp8Gemm> fp8_;
};

}  // namespace aludel::cuda
