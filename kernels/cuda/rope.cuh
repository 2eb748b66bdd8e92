#pragma once

#include "kernels/cuda/attention/attention_args.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/index.h"
#include "kernels/cuda/kv_page.cuh"

// Bound by memory, except that the angles are formed in double like the CPU's: at position 100,000 a float
// angle has lost the digits that the fast-turning pairs live on. All heads of a token share one evaluation.
//
// Bodies only, see mma_attention.cuh.
namespace aludel::cuda {

// cos and sin of `position` for every pair.
__device__ inline void WriteAngles(const float* inverse_frequency, float attention_factor, int64_t position,
                                   int half, float* cosine, float* sine) {
  for (int i = threadIdx.x; i < half; i += blockDim.x) {
    double s, c;
    sincos(static_cast<double>(position) * static_cast<double>(inverse_frequency[i]), &s, &c);
    cosine[i] = static_cast<float>(c) * attention_factor;
    sine[i] = static_cast<float>(s) * attention_factor;
  }
}

// As above into shared memory [2, half]. Ends with a barrier.
__device__ inline void Angles(const float* inverse_frequency, float attention_factor, int64_t position,
                              int half, float* cosine, float* sine) {
  WriteAngles(inverse_frequency, attention_factor, position, half, cosine, sine);
  __syncthreads();
}

// One block per token of the table: angles [tokens, 2, half], for kernels that many blocks of a layer read them in.
__device__ inline void AnglesOfToken(const float* inverse_frequency, float attention_factor, int half,
                                     const SequenceTable& table, float* angles) {
  const int64_t token = blockIdx.x;
  const int index = FindInterval(table.first_token, table.count, token);
  float* const cosine = angles + token * 2 * half;
  WriteAngles(inverse_frequency, attention_factor,
              table.entries[index].position_begin + token - table.first_token[index], half, cosine,
              cosine + half);
}

// Where a token of the table stands in the cache.
struct KvSlot {
  int32_t block;
  int slot;
};
__device__ inline KvSlot SlotOf(const SequenceTable& table, int block_tokens, int64_t token) {
  const int index = FindInterval(table.first_token, table.count, token);
  const SequenceEntry& entry = table.entries[index];
  // Positions are below 2^31, and 32-bit division is several times as fast.
  const auto position = static_cast<uint32_t>(entry.position_begin + token - table.first_token[index]);
  const uint32_t block = position / static_cast<uint32_t>(block_tokens);
  return {table.blocks[entry.block_begin + block], static_cast<int>(position - block * block_tokens)};
}

// One block per token. `shared` [2 * half].
template <typename T>
__device__ void RotateToken(T* q, int64_t stride, int heads, int half, const float* inverse_frequency,
                            float attention_factor, const SequenceTable& table, float* shared) {
  float* cosine = shared;
  float* sine = shared + half;
  const int64_t token = blockIdx.x;
  const int index = FindInterval(table.first_token, table.count, token);
  const SequenceEntry entry = table.entries[index];
  const int64_t r = token - table.first_token[index];
  Angles(inverse_frequency, attention_factor, entry.position_begin + r, half, cosine, sine);
  T* row = q + (entry.row_begin + r) * stride;
  for (int p = threadIdx.x; p < heads * half; p += blockDim.x) {
    const int i = p % half;
    T* x = row + p / half * 2 * half + i;
    const float a = Load(x);
    const float b = Load(x + half);
    Store(x, a * cosine[i] - b * sine[i]);
    Store(x + half, b * cosine[i] + a * sine[i]);
  }
}

// One block per token. k and v keep their values. In and V are the types of the rows, Page that of the cache.
template <typename In, typename V, typename Page>
__device__ void RotateAndWriteToken(const In* k, int64_t k_stride, const V* v, int64_t v_stride,
                                    const float* inverse_frequency, float attention_factor,
                                    const SequenceTable& table, const KvPlanes& kv, float* shared) {
  const int half = kv.head_dim / 2;
  float* cosine = shared;
  float* sine = shared + half;
  const int64_t token = blockIdx.x;
  const int index = FindInterval(table.first_token, table.count, token);
  const SequenceEntry entry = table.entries[index];
  const int64_t r = token - table.first_token[index];
  const int64_t position = entry.position_begin + r;
  const int32_t block = table.blocks[entry.block_begin + position / kv.block_tokens];
  const int slot = static_cast<int>(position % kv.block_tokens);
  Angles(inverse_frequency, attention_factor, position, half, cosine, sine);
  const In* k_row = k + (entry.row_begin + r) * k_stride;
  const V* v_row = v + (entry.row_begin + r) * v_stride;
  for (int p = threadIdx.x; p < kv.kv_heads * half; p += blockDim.x) {
    const int head = p / half;
    const int i = p % half;
    const float a = AsRow<Page>(Load(k_row + head * kv.head_dim + i));
    const float b = AsRow<Page>(Load(k_row + head * kv.head_dim + i + half));
    Page* page = static_cast<Page*>(kv.k) +
                 PageOffset(block, kv.kv_heads, head, kv.block_tokens, slot, kv.head_dim) + i;
    Store(page, (a * cosine[i] - b * sine[i]) * kKeyScale<Page>);
    Store(page + half, (b * cosine[i] + a * sine[i]) * kKeyScale<Page>);
  }
  for (int c = threadIdx.x; c < kv.kv_heads * kv.head_dim; c += blockDim.x) {
    Page* page = static_cast<Page*>(kv.v) +
                 PageOffset(block, kv.kv_heads, c / kv.head_dim, kv.block_tokens, slot, kv.head_dim);
    Store(page + c % kv.head_dim, AsRow<Page>(Load(v_row + c)));
  }
}

}  // namespace aludel::cuda
