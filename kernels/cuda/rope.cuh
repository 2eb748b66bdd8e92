#pragma once

#include "kernels/cuda/attention/attention_args.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/index.h"
#include "kernels/cuda/kv_page.cuh"
#include "kernels/cuda/vector.cuh"

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

// x_i and x_{i + half} of eight pairs, turned, times `scale`.
__device__ inline void Turn(const float* cosine, const float* sine, float scale, float (&low)[kVector],
                            float (&high)[kVector]) {
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const float a = low[i], b = high[i];
    low[i] = (a * cosine[i] - b * sine[i]) * scale;
    high[i] = (b * cosine[i] + a * sine[i]) * scale;
  }
}

// One block per token. `shared` [2 * half]. With kVectors, eight numbers at once: rows are whole vectors, as are half heads.
template <typename T, bool kVectors>
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
  if constexpr (kVectors) {
    const int pieces = half / kVector;
    for (int p = threadIdx.x; p < heads * pieces; p += blockDim.x) {
      const int i = p % pieces * kVector;
      T* x = row + p / pieces * 2 * half + i;
      float low[kVector], high[kVector];
      LoadVector(x, low);
      LoadVector(x + half, high);
      Turn(cosine + i, sine + i, 1.0f, low, high);
      StoreVector(x, low);
      StoreVector(x + half, high);
    }
  } else {
    for (int p = threadIdx.x; p < heads * half; p += blockDim.x) {
      const int i = p % half;
      T* x = row + p / half * 2 * half + i;
      const float a = Load(x);
      const float b = Load(x + half);
      Store(x, a * cosine[i] - b * sine[i]);
      Store(x + half, b * cosine[i] + a * sine[i]);
    }
  }
}

// A token's pages of one layer.
template <typename Page>
struct TokenPages {
  const KvPlanes& kv;
  int64_t layer_bytes;  // to that layer
  int32_t block;
  int slot;

  __device__ Page* K(int head) const { return At(kv.k, head); }
  __device__ Page* V(int head) const { return At(kv.v, head); }

 private:
  __device__ Page* At(void* pages, int head) const {
    return reinterpret_cast<Page*>(static_cast<char*>(pages) + layer_bytes) +
           PageOffset(block, kv.kv_heads, head, kv.block_tokens, slot, kv.head_dim);
  }
};

template <typename In, typename V, typename Page>
__device__ void WriteNumbers(const In* k, const V* v, const float* cosine, const float* sine,
                             const TokenPages<Page>& to) {
  const int dim = to.kv.head_dim, half = dim / 2;
  for (int p = threadIdx.x; p < to.kv.kv_heads * half; p += blockDim.x) {
    const int head = p / half;
    const int i = p % half;
    const float a = AsRow<Page>(Load(k + head * dim + i));
    const float b = AsRow<Page>(Load(k + head * dim + i + half));
    Page* page = to.K(head) + i;
    Store(page, (a * cosine[i] - b * sine[i]) * kKeyScale<Page>);
    Store(page + half, (b * cosine[i] + a * sine[i]) * kKeyScale<Page>);
  }
  for (int c = threadIdx.x; c < to.kv.kv_heads * dim; c += blockDim.x) {
    Store(to.V(c / dim) + c % dim, AsRow<Page>(Load(v + c)));
  }
}

template <typename Page>
__device__ void RoundAsRow(float (&x)[kVector]) {
#pragma unroll
  for (float& value : x) value = AsRow<Page>(value);
}

// The same, eight at once.
template <typename In, typename V, typename Page>
__device__ void WriteVectors(const In* k, const V* v, const float* cosine, const float* sine,
                             const TokenPages<Page>& to) {
  const int dim = to.kv.head_dim, half = dim / 2, pieces = half / kVector;
  for (int p = threadIdx.x; p < to.kv.kv_heads * pieces; p += blockDim.x) {
    const int head = p / pieces;
    const int i = p % pieces * kVector;
    float low[kVector], high[kVector];
    LoadVector(k + head * dim + i, low);
    LoadVector(k + head * dim + i + half, high);
    RoundAsRow<Page>(low);
    RoundAsRow<Page>(high);
    Turn(cosine + i, sine + i, kKeyScale<Page>, low, high);
    StoreVector(to.K(head) + i, low);
    StoreVector(to.K(head) + i + half, high);
  }
  for (int c = threadIdx.x * kVector; c < to.kv.kv_heads * dim; c += blockDim.x * kVector) {
    float x[kVector];
    LoadVector(v + c, x);
    RoundAsRow<Page>(x);
    StoreVector(to.V(c / dim) + c % dim, x);
  }
}

// One block per token, for all layers of `run`. k and v keep their values. In and V are the types of the rows, Page that of
// the cache. With kVectors as above, and pages lie on 16 bytes.
template <typename In, typename V, typename Page, bool kVectors>
__device__ void RotateAndWriteToken(const In* k, int64_t k_stride, const V* v, int64_t v_stride,
                                    const float* inverse_frequency, float attention_factor,
                                    const SequenceTable& table, const KvPlanes& kv, const LayerRun& run,
                                    float* shared) {
  const int half = kv.head_dim / 2;
  float* cosine = shared;
  float* sine = shared + half;
  const int64_t token = blockIdx.x;
  const int index = FindInterval(table.first_token, table.count, token);
  const SequenceEntry entry = table.entries[index];
  const int64_t r = token - table.first_token[index];
  const int64_t position = entry.position_begin + r;
  TokenPages<Page> to{kv, 0, table.blocks[entry.block_begin + position / kv.block_tokens],
                      static_cast<int>(position % kv.block_tokens)};
  Angles(inverse_frequency, attention_factor, position, half, cosine, sine);
  k += (entry.row_begin + r) * k_stride;
  v += (entry.row_begin + r) * v_stride;
  for (int layer = 0; layer < run.layers; ++layer) {
    if constexpr (kVectors) {
      WriteVectors(k, v, cosine, sine, to);
    } else {
      WriteNumbers(k, v, cosine, sine, to);
    }
    k += run.columns;
    v += run.columns;
    to.layer_bytes += run.page_bytes;
  }
}

}  // namespace aludel::cuda
