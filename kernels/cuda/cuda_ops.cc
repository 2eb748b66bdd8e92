#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/gemm.h"

namespace aludel::cuda {
namespace {

KvPlanes PlanesOf(const PagedKv& kv) {
  return {kv.k, kv.v, kv.dtype, kv.block_tokens, kv.kv_heads, kv.head_dim};
}

template <typename T>
const T* StageSpan(absl::Span<const T> values, CudaStream& stream) {
  return static_cast<const T*>(stream.Stage(values.data(), values.size() * sizeof(T)));
}

// The sequences as one blob [first tokens | entries | blocks]. It is the same bytes for every op of a step,
// so that the ring sends it once. Null pointers where staging failed.
SequenceTable StageSequences(absl::Span<const SequenceRows> sequences, CudaStream& stream) {
  const size_t count = sequences.size();
  size_t block_count = 0;
  for (const SequenceRows& sequence : sequences) block_count += sequence.blocks.size();
  const size_t entries_at = count * sizeof(int64_t);
  const size_t blocks_at = entries_at + count * sizeof(SequenceEntry);
  std::vector<char> blob(blocks_at + block_count * sizeof(int32_t));
  int64_t tokens = 0;
  int64_t block_begin = 0;
  for (size_t i = 0; i < count; ++i) {
    const SequenceRows& sequence = sequences[i];
    const SequenceEntry entry{sequence.row_begin, sequence.rows, sequence.position_begin, block_begin};
    std::memcpy(blob.data() + i * sizeof(tokens), &tokens, sizeof(tokens));
    std::memcpy(blob.data() + entries_at + i * sizeof(entry), &entry, sizeof(entry));
    if (!sequence.blocks.empty()) {
      std::memcpy(blob.data() + blocks_at + block_begin * sizeof(int32_t), sequence.blocks.data(),
                  sequence.blocks.size() * sizeof(int32_t));
    }
    tokens += sequence.rows;
    block_begin += static_cast<int64_t>(sequence.blocks.size());
  }
  const auto* staged = static_cast<const char*>(stream.Stage(blob.data(), blob.size()));
  if (staged == nullptr) return {};
  return {reinterpret_cast<const int64_t*>(staged),
          reinterpret_cast<const SequenceEntry*>(staged + entries_at),
          reinterpret_cast<const int32_t*>(staged + blocks_at), static_cast<int>(count), tokens};
}

int64_t TotalRows(absl::Span<const SequenceRows> sequences) {
  int64_t rows = 0;
  for (const SequenceRows& sequence : sequences) rows += sequence.rows;
  return rows;
}

// What the kernels take for granted: rows that exist and, with block_tokens > 0, blocks for every position.
void CheckSequences(absl::Span<const SequenceRows> sequences, int64_t rows, int block_tokens) {
  for (const SequenceRows& sequence : sequences) {
    ALUDEL_CHECK(sequence.rows >= 0 && sequence.position_begin >= 0 && sequence.row_begin >= 0);
    ALUDEL_CHECK(sequence.row_begin + sequence.rows <= rows);
    if (block_tokens == 0) continue;
    ALUDEL_CHECK(sequence.position_begin + sequence.rows <=
                 static_cast<int64_t>(sequence.blocks.size()) * block_tokens);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaOps>> CudaOps::Create(Device* device, int ordinal,
                                                         CudaStream* default_stream) {
  absl::StatusOr<std::unique_ptr<GemmEngine>> gemm = GemmEngine::Create(device->name());
  if (!gemm.ok()) return gemm.status();
  return std::unique_ptr<CudaOps>(new CudaOps(device, ordinal, default_stream, *std::move(gemm)));
}

CudaOps::CudaOps(Device* device, int ordinal, CudaStream* default_stream, std::unique_ptr<GemmEngine> gemm)
    : device_(device), ordinal_(ordinal), default_stream_(default_stream), gemm_(std::move(gemm)) {}

CudaOps::~CudaOps() = default;

CudaStream& CudaOps::Enter(Stream stream) const {
  CudaStream& state = stream.handle == nullptr ? *default_stream_ : *static_cast<CudaStream*>(stream.handle);
  // The current device is the thread's; setting it again costs nothing measurable.
  state.Collect(cudaSetDevice(ordinal_), "make the GPU current");
  return state;
}

void CudaOps::Embed(absl::Span<const int32_t> ids, const TensorView& table, const TensorView& out,
                    Stream stream) {
  ALUDEL_CHECK(out.rows == static_cast<int64_t>(ids.size()) && out.cols == table.cols);
  for (const int32_t id : ids) ALUDEL_CHECK(id >= 0 && id < table.rows);
  if (ids.empty()) return;
  CudaStream& state = Enter(stream);
  const int32_t* staged = StageSpan(ids, state);
  if (staged == nullptr) return;
  state.Collect(LaunchCopyRows(table, staged, out, state.get()), "launch Embed");
}

void CudaOps::RmsNorm(const TensorView& x, const float* weight, float eps, const TensorView& out,
                      Stream stream) {
  ALUDEL_CHECK(x.rows == out.rows && x.cols == out.cols);
  CudaStream& state = Enter(stream);
  state.Collect(LaunchNorm(x, x.cols, weight, eps, out, state.get()), "launch RmsNorm");
}

void CudaOps::HeadNorm(const TensorView& x, int head_dim, const float* weight, float eps, Stream stream) {
  ALUDEL_CHECK(x.cols % head_dim == 0);
  CudaStream& state = Enter(stream);
  state.Collect(LaunchNorm(x, head_dim, weight, eps, x, state.get()), "launch HeadNorm");
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
  state.Collect(LaunchRope(q, head_dim, frequencies, rope.attention_factor, table, state.get()),
                "launch Rope");
}

void CudaOps::RopeWriteKv(const TensorView& k, const TensorView& v, const RopeTable& rope,
                          absl::Span<const SequenceRows> sequences, const PagedKv& kv, Stream stream) {
  const int64_t kv_dim = int64_t{kv.kv_heads} * kv.head_dim;
  ALUDEL_CHECK(k.cols == kv_dim && v.cols == kv_dim && k.rows == v.rows);
  ALUDEL_CHECK(static_cast<int>(rope.inverse_frequency.size()) * 2 == kv.head_dim);
  CheckSequences(sequences, k.rows, kv.block_tokens);
  if (TotalRows(sequences) == 0) return;
  CudaStream& state = Enter(stream);
  const float* frequencies = StageSpan(rope.inverse_frequency, state);
  const SequenceTable table = StageSequences(sequences, state);
  if (frequencies == nullptr || table.entries == nullptr) return;
  state.Collect(LaunchRopeWriteKv(k, v, frequencies, rope.attention_factor, table, PlanesOf(kv), state.get()),
                "launch RopeWriteKv");
}

void CudaOps::Attention(const TensorView& q, const AttentionParams& params,
                        absl::Span<const SequenceRows> sequences, const PagedKv& kv, const TensorView& out,
                        Stream stream) {
  ALUDEL_CHECK(params.heads % params.kv_heads == 0 && params.kv_heads == kv.kv_heads);
  ALUDEL_CHECK(params.head_dim == kv.head_dim && q.cols == int64_t{params.heads} * params.head_dim);
  ALUDEL_CHECK(out.cols == q.cols && params.head_dim <= kMaxAttentionHeadDim);
  CheckSequences(sequences, std::min(q.rows, out.rows), kv.block_tokens);
  if (TotalRows(sequences) == 0) return;
  CudaStream& state = Enter(stream);
  int64_t longest = 0;
  for (const SequenceRows& sequence : sequences) longest = std::max(longest, sequence.rows);
  const QueryTiling tiling = AttentionTiling(params.heads / params.kv_heads, longest);
  std::vector<int64_t> first_tile;
  int64_t tiles = 0;
  for (const SequenceRows& sequence : sequences) {
    first_tile.push_back(tiles);
    tiles += TileCount(tiling, sequence.rows);
  }
  const SequenceTable table = StageSequences(sequences, state);
  const int64_t* staged_tiles = StageSpan<int64_t>(first_tile, state);
  if (table.entries == nullptr || staged_tiles == nullptr) return;
  state.Collect(LaunchAttention(q, params.scale, params.window, table, tiling, staged_tiles, tiles,
                                PlanesOf(kv), out, state.get()),
                "launch Attention");
}

void CudaOps::SiluMul(const TensorView& gate_up, const TensorView& out, Stream stream) {
  ALUDEL_CHECK(gate_up.rows == out.rows && gate_up.cols == 2 * out.cols);
  CudaStream& state = Enter(stream);
  state.Collect(LaunchSiluMul(gate_up, out, state.get()), "launch SiluMul");
}

void CudaOps::Silu(const TensorView& x, const TensorView& out, Stream stream) {
  ALUDEL_CHECK(x.rows == out.rows && x.cols == out.cols);
  CudaStream& state = Enter(stream);
  state.Collect(LaunchSilu(x, out, state.get()), "launch Silu");
}

void CudaOps::GatherRows(const TensorView& x, absl::Span<const int64_t> rows, const TensorView& out,
                         Stream stream) {
  ALUDEL_CHECK(out.rows == static_cast<int64_t>(rows.size()) && out.cols == x.cols);
  for (const int64_t row : rows) ALUDEL_CHECK(row >= 0 && row < x.rows);
  if (rows.empty()) return;
  CudaStream& state = Enter(stream);
  const int64_t* staged = StageSpan(rows, state);
  if (staged == nullptr) return;
  state.Collect(LaunchCopyRows(x, staged, out, state.get()), "launch GatherRows");
}

void CudaOps::Convert(const TensorView& src, const TensorView& dst, Stream stream) {
  ALUDEL_CHECK(src.rows == dst.rows && src.cols == dst.cols);
  CudaStream& state = Enter(stream);
  state.Collect(LaunchCopyRows(src, static_cast<const int32_t*>(nullptr), dst, state.get()),
                "launch Convert");
}

}  // namespace aludel::cuda
