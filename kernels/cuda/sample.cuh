#pragma once

#include <limits>

#include "kernels/cuda/warp.cuh"
#include "kernels/sample_terms.h"

// Draws tokens as sample.h defines it, to the bit: a block per row. Bound by passes over the row, which stays
// in the L2 cache: one for the largest logit, one for the weights, and where there are top_k or top_p three
// for each, that find the distance of the last token kept digit by digit. Nothing is sorted, and a histogram is the only
// memory needed.
//
// Bodies only, see mma_attention.cuh.
namespace aludel::cuda {

constexpr int kSampleThreads = 1024;
// Digits of a distance: the first is what lies above the others.
constexpr int kDigits = 3;
constexpr int kDigitBits = 10;
constexpr int kBins = 2048;
static_assert(kFar >> (kDigits - 1) * kDigitBits < kBins && 1 << kDigitBits <= kBins);

struct SampleArgs {
  const float* logits;  // [rows, vocab], rows `stride` apart
  int64_t stride;
  int vocab;
  const DrawTerms* terms;  // [rows]
  int32_t* tokens;         // [rows]
};

struct SampleShared {
  // Sums by digit, their halves: shared memory adds 32 bits at once.
  uint32_t low[kBins];
  uint32_t high[kBins];
  uint64_t sums[32];  // by warp
};

// Adds to a sum of 64 bits in two halves. The thread whose addition makes the lower half overflow adds the carry,
// so the sum is right when all have added.
__device__ inline void AddTo(uint32_t* low, uint32_t* high, uint64_t value) {
  const auto lower = static_cast<uint32_t>(value);
  const uint32_t before = atomicAdd(low, lower);
  const uint32_t upper = static_cast<uint32_t>(value >> 32) + (before + lower < lower ? 1 : 0);
  if (upper != 0) atomicAdd(high, upper);
}

// Calls f(id, logit) for ids from, from + step, ... below `to`, with several loads under way.
template <typename F>
__device__ void ForLogits(const float* logits, int from, int to, int step, const F& f) {
  constexpr int kAtOnce = 8;
  for (int first = from; first < to; first += kAtOnce * step) {
    float x[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) x[i] = first + i * step < to ? logits[first + i * step] : 0.0f;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i * step < to) f(first + i * step, x[i]);
    }
  }
}

__device__ inline uint64_t BlockMax(uint64_t value, uint64_t* scratch) {
  for (int offset = 16; offset > 0; offset /= 2) {
    const uint64_t other = __shfl_xor_sync(kAllLanes, value, offset);
    if (other > value) value = other;
  }
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) {
    if (scratch[warp] > value) value = scratch[warp];
  }
  return value;
}

struct Found {
  int index;
  uint64_t left;  // of the target, before that index
};

// The first index of [0, count) at which the running sum exceeds target(sum of all), for every thread;
// `count` where none does. Warps sum a stretch each, the one that it lies in is divided among them again.
// lane_sum(from, to) is what the calling lane has of the sum over [from, to).
template <typename LaneSum, typename Target>
__device__ Found FirstAbove(int count, const LaneSum& lane_sum, const Target& target, uint64_t* sums) {
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  int begin = 0;
  int end = count;
  uint64_t left = 0;
  do {
    const int length = (end - begin + warps - 1) / warps;
    const int from = begin + warp * length < end ? begin + warp * length : end;
    const int to = from + length < end ? from + length : end;
    uint64_t sum = lane_sum(from, to);
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
    __syncthreads();  // all threads have read the sums before
    if (threadIdx.x % 32 == 0) sums[warp] = sum;
    __syncthreads();
    if (end - begin == count) {
      uint64_t total = 0;
      for (int w = 0; w < warps; ++w) total += sums[w];
      left = target(total);
      if (left >= total) return {count, left - total};
    }
    int w = 0;
    while (sums[w] <= left) left -= sums[w++];
    begin += w * length;
    if (begin + length < end) end = begin + length;
  } while (end - begin > 1);
  return {begin, left};
}

// In order of likelihood, the last token that is kept.
struct LastKept {
  int32_t distance;
  int id;

  __device__ bool Keeps(int32_t other, int other_id) const {
    return other < distance || (other == distance && other_id <= id);
  }
};

struct SampledRow {
  const float* logits;
  int vocab;
  float largest;
  float units_per_logit;

  __device__ int32_t Distance(float logit) const { return DistanceOf(largest, logit, units_per_logit); }

  // f(id, distance) summed over [from, to), this lane's part.
  template <typename F>
  __device__ uint64_t LaneSum(int from, int to, const F& f) const {
    uint64_t sum = 0;
    ForLogits(logits, from + static_cast<int>(threadIdx.x) % 32, to, 32,
              [&](int id, float logit) { sum += f(id, Distance(logit)); });
    return sum;
  }
};

// Of the tokens up to `kept`, the fewest in order whose measures' sum exceeds target(sum of all): the last of
// them. `kept` itself where that is never exceeded. measure(distance) is 0 at kFar and nowhere else.
template <typename Measure, typename Target>
__device__ LastKept KeepFirst(const SampledRow& row, const LastKept& kept, const Measure& measure,
                              const Target& target, SampleShared* shared) {
  int32_t distance = 0;  // its upper digits
  uint64_t left = 0;
  for (int digit = 0; digit < kDigits; ++digit) {
    const int shift = (kDigits - 1 - digit) * kDigitBits;
    const int above = digit == 0 ? 31 : shift + kDigitBits;
    const int32_t mask = (1 << (above - shift)) - 1;
    __syncthreads();  // all threads have read the bins before
    for (int bin = threadIdx.x; bin < kBins; bin += blockDim.x) shared->low[bin] = shared->high[bin] = 0;
    __syncthreads();
    ForLogits(row.logits, threadIdx.x, row.vocab, blockDim.x, [&](int id, float logit) {
      const int32_t other = row.Distance(logit);
      if (other >> above != distance || other == kFar || !kept.Keeps(other, id)) return;
      const int32_t bin = other >> shift & mask;
      AddTo(&shared->low[bin], &shared->high[bin], measure(other));
    });
    __syncthreads();
    const auto sum_of = [&](int bin) {
      return static_cast<uint64_t>(shared->high[bin]) << 32 | shared->low[bin];
    };
    const Found found = FirstAbove(
        kBins,
        [&](int from, int to) {
          uint64_t sum = 0;
          for (int bin = from + static_cast<int>(threadIdx.x) % 32; bin < to; bin += 32) sum += sum_of(bin);
          return sum;
        },
        [&](uint64_t total) { return digit == 0 ? target(total) : left; }, shared->sums);
    if (found.index == kBins) return kept;
    distance = distance << (above - shift) | found.index;
    left = found.left;
    // Mostly one token has this distance, and else it may need all of them.
    if (shift == 0 && left + measure(distance) >= sum_of(found.index)) {
      return {distance, distance == kept.distance ? kept.id : row.vocab};
    }
  }
  // Of several alike, by id.
  const Found found = FirstAbove(
      row.vocab,
      [&](int from, int to) {
        return row.LaneSum(from, to, [&](int id, int32_t other) -> uint64_t {
          return other == distance && kept.Keeps(other, id) ? measure(other) : 0;
        });
      },
      [&](uint64_t) { return left; }, shared->sums);
  return {distance, found.index};
}

// grid (rows); two warps at least, kSampleThreads at most.
__device__ inline void SampleRowOf(const SampleArgs& args, SampleShared* shared) {
  const int64_t index = blockIdx.x;
  const DrawTerms terms = args.terms[index];
  SampledRow row{args.logits + index * args.stride, args.vocab, 0.0f, terms.units_per_logit};
  // The largest key, and of equals the lowest id.
  uint64_t best = 0;
  ForLogits(row.logits, threadIdx.x, row.vocab, blockDim.x, [&](int id, float logit) {
    const uint32_t key = static_cast<uint32_t>(KeyOf(logit)) ^ 0x80000000u;
    const uint64_t own = static_cast<uint64_t>(key) << 32 | ~static_cast<uint32_t>(id);
    if (own > best) best = own;
  });
  best = BlockMax(best, shared->sums);
  const auto key = static_cast<int32_t>(static_cast<uint32_t>(best >> 32) ^ 0x80000000u);
  int32_t token = IsNumber(key) ? static_cast<int32_t>(~static_cast<uint32_t>(best)) : kNoToken;
  if (token != kNoToken && !terms.greedy) {
    row.largest = LogitOf(key);
    LastKept kept{kFar, row.vocab};
    if (terms.top_k > 0) {
      kept = KeepFirst(
          row, kept, [](int32_t) { return uint64_t{1}; },
          [&](uint64_t) { return static_cast<uint64_t>(terms.top_k) - 1; }, shared);
    }
    if (terms.top_p > 0) {
      kept = KeepFirst(
          row, kept, [](int32_t distance) { return WeightOf(distance); },
          [&](uint64_t total) { return TopPTarget(terms.top_p, total); }, shared);
    }
    const Found found = FirstAbove(
        row.vocab,
        [&](int from, int to) {
          return row.LaneSum(from, to, [&](int id, int32_t distance) -> uint64_t {
            if (!kept.Keeps(distance, id)) return 0;
            const uint64_t weight = WeightOf(distance);
            return weight < terms.least_weight ? 0 : weight;
          });
        },
        [&](uint64_t total) { return DrawTarget(terms.uniform, total); }, shared->sums);
    token = found.index;
  }
  if (threadIdx.x == 0) args.tokens[index] = token;
}

}  // namespace aludel::cuda
