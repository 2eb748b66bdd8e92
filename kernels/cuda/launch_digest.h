#pragma once

#include <utility>

#include "kernels/cuda/attention/attention_args.h"
#include "kernels/cuda/gemm/batch_index.h"
#include "kernels/cuda/gemm/low_rank_index.h"
#include "kernels/cuda/gemm/skinny_index.h"
#include "kernels/tensor.h"

// Every field of what launchers take, for absl::Hash. The bindings name all of them, so that a new one does
// not compile until it is here, too.
namespace aludel {

template <typename H>
H AbslHashValue(H h, const TensorView& view) {
  const auto& [data, dtype, rows, cols, stride] = view;
  return H::combine(std::move(h), data, dtype, rows, cols, stride);
}

namespace cuda {

template <typename H>
H AbslHashValue(H h, const KvPlanes& kv) {
  const auto& [k, v, dtype, block_tokens, kv_heads, head_dim] = kv;
  return H::combine(std::move(h), k, v, dtype, block_tokens, kv_heads, head_dim);
}

template <typename H>
H AbslHashValue(H h, const LayerRun& run) {
  const auto& [layers, columns, page_bytes] = run;
  return H::combine(std::move(h), layers, columns, page_bytes);
}

template <typename H>
H AbslHashValue(H h, const SequenceTable& table) {
  const auto& [first_token, entries, blocks, count, tokens] = table;
  return H::combine(std::move(h), first_token, entries, blocks, count, tokens);
}

template <typename H>
H AbslHashValue(H h, const QueryTiling& tiling) {
  const auto& [group, chunk_heads, chunks, rows_per_tile] = tiling;
  return H::combine(std::move(h), group, chunk_heads, chunks, rows_per_tile);
}

template <typename H>
H AbslHashValue(H h, const AttentionWork& work) {
  const auto& [tiling, first_unit, first_tile, splits, split_keys] = work;
  return H::combine(std::move(h), tiling, first_unit, first_tile, splits, split_keys);
}

template <typename H>
H AbslHashValue(H h, const AttentionArgs& args) {
  const auto& [q, out, scale, window, table, work, kv, partial, arrived] = args;
  return H::combine(std::move(h), q, out, scale, window, table, work, kv, partial, arrived);
}

template <typename H>
H AbslHashValue(H h, const SkinnyArgs& args) {
  const auto& [w, w_scales, a, a_scales, a_stride, in, bias, accumulate, out] = args;
  return H::combine(std::move(h), w, w_scales, a, a_scales, a_stride, in, bias, accumulate, out);
}

template <typename H>
H AbslHashValue(H h, const BatchCut& cut) {
  const auto& [tiles, steps, blocks] = cut;
  return H::combine(std::move(h), tiles, steps, blocks);
}

template <typename H>
H AbslHashValue(H h, const BatchArgs& args) {
  const auto& [w, a, a_stride, in, bias, accumulate, out, cut, pieces, arrived] = args;
  return H::combine(std::move(h), w, a, a_stride, in, bias, accumulate, out, cut, pieces, arrived);
}

template <typename H>
H AbslHashValue(H h, const LowRankArgs& args) {
  const auto& [tiles, count, most_rank, most_out_tiles, x, out, sums] = args;
  return H::combine(std::move(h), tiles, count, most_rank, most_out_tiles, x, out, sums);
}

}  // namespace cuda
}  // namespace aludel
