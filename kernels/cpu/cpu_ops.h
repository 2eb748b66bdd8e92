#pragma once

#include <memory>

#include "kernels/cpu/host_memory.h"
#include "kernels/cpu/library_gemm.h"
#include "kernels/cpu/thread_team.h"
#include "kernels/cpu/vector/micro_kernels.h"
#include "kernels/ops.h"

namespace aludel {

namespace cpu {
struct AngleRows;
}  // namespace cpu

// The CPU operations: the reference for every other device, and fast enough to serve. One file per stem.
class CpuOps final : public Ops {
 public:
  // `threads` bounds the team of every call; 1 runs in the caller alone. `cores` as ThreadTeam takes them.
  // With `library`, oneDNN multiplies large bf16 matrices.
  CpuOps(int threads, absl::Span<const int> cores, const cpu::MicroKernels& kernels, bool library);

  absl::StatusOr<std::unique_ptr<PackedMatrix>> NewPacked(int64_t out, int64_t in,
                                                          WeightFormat format) override;
  absl::Status PackRows(const TensorView& host_rows, int64_t row_begin, PackedMatrix& w) override;
  absl::Status PackFp8Rows(const Fp8Rows& host_rows, int64_t row_begin, PackedMatrix& w) override;
  bool KeepsNarrow() const override { return false; }
  bool KeepsFp8() const override { return false; }
  void Embed(absl::Span<const int32_t> ids, const PackedMatrix& table, const TensorView& out,
             Stream) override;
  void RmsNorm(const TensorView& x, const float* weight, float eps, const TensorView& out, Stream) override;
  void Gemm(const TensorView& a, const PackedMatrix& w, const float* bias, bool accumulate,
            const TensorView& out, Stream) override;
  absl::StatusOr<std::unique_ptr<PackedLowRank>> PackLowRank(absl::Span<const LowRankPart> parts, int64_t out,
                                                             int64_t in, DType dtype) override;
  void AddLowRank(const TensorView& x, absl::Span<const LowRankRows> groups, const TensorView& out,
                  Stream) override;
  void HeadNorm(const TensorView& x, int head_dim, const float* weight, float eps, Stream) override;
  void Rope(const TensorView& q, int head_dim, const RopeTable& rope,
            absl::Span<const SequenceRows> sequences, Stream) override;
  void RopeWriteKv(const TensorView& k, const TensorView& v, const RopeTable& rope,
                   absl::Span<const SequenceRows> sequences, const PagedKv& kv, Stream) override;
  void Attention(const TensorView& q, const AttentionParams& params, absl::Span<const SequenceRows> sequences,
                 const PagedKv& kv, const TensorView& out, Stream) override;
  void SiluMul(const TensorView& gate_up, const TensorView& out, Stream) override;
  void Silu(const TensorView& x, const TensorView& out, Stream) override;
  void GatherRows(const TensorView& x, absl::Span<const int64_t> rows, const TensorView& out,
                  Stream) override;
  void SampleRows(const TensorView& logits, absl::Span<const RowSampling> draws, int32_t* tokens,
                  Stream) override;
  void PackLatents(const TensorView& z, float inverse_step, absl::Span<const LatentPlane> planes,
                   uint8_t* bytes, Stream) override;
  void UnpackLatents(const uint8_t* bytes, absl::Span<const LatentPlane> planes, int64_t first, float step,
                     const TensorView& z, Stream) override;
  void QuantizeTokens(const TensorView& x, int bits, uint8_t* scales, uint8_t* codes, Stream) override;
  void DequantizeTokens(const uint8_t* scales, const uint8_t* codes, int bits, const TensorView& x,
                        Stream) override;
  void Convert(const TensorView& src, const TensorView& dst, Stream) override;

 private:
  // Calls body(begin, end) for parts of [0, rows) on the team; `work` is what a row costs, about,
  // in multiply-adds.
  void ForRows(int64_t rows, int64_t work, absl::FunctionRef<void(int64_t begin, int64_t end)> body);
  // Good until the calling thread's next call.
  const cpu::AngleRows& MakeAngles(const RopeTable& rope, absl::Span<const SequenceRows> sequences);

  const cpu::MicroKernels& kernels_;
  cpu::ThreadTeam team_;
  HostSlabs low_rank_memory_;
  std::unique_ptr<cpu::LibraryGemm> library_;  // or null
};

}  // namespace aludel
