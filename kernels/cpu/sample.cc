#include "kernels/sample.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/vector/simd.h"
#include "kernels/sample_terms.h"

namespace aludel {
namespace {

// Distances that are told apart before any are sorted: 1/32 octave.
constexpr int kBucketShift = kOctaveBits - 5;
constexpr int kBuckets = (kFar >> kBucketShift) + 1;

// The tokens of one row that may still be drawn.
struct Candidates {
  std::vector<int32_t> distance;  // [vocab]
  std::vector<uint64_t> weight;   // [vocab]; 0: not kept
  std::vector<uint64_t> buckets = std::vector<uint64_t>(kBuckets);
  std::vector<uint64_t> members;  // of one bucket, as Place
};

// Position of a token in order of likelihood.
uint64_t Place(int32_t distance, size_t id) { return static_cast<uint64_t>(distance) << 32 | id; }

ALUDEL_SIMD int32_t LargestKey(const float* logits, int64_t vocab) {
  int32_t largest = std::numeric_limits<int32_t>::min();
  for (int64_t i = 0; i < vocab; ++i) largest = std::max(largest, KeyOf(logits[i]));
  return largest;
}

ALUDEL_SIMD void Weigh(const float* logits, int64_t vocab, float largest, float units_per_logit,
                       int32_t* distance, uint64_t* weight) {
  for (int64_t i = 0; i < vocab; ++i) {
    distance[i] = DistanceOf(largest, logits[i], units_per_logit);
    weight[i] = WeightOf(distance[i]);
  }
}

ALUDEL_SIMD void DropUnlikely(uint64_t least, int64_t vocab, uint64_t* weight) {
  for (int64_t i = 0; i < vocab; ++i) weight[i] = weight[i] < least ? 0 : weight[i];
}

ALUDEL_SIMD void DropBehind(uint64_t last, const int32_t* distance, int64_t vocab, uint64_t* weight) {
  for (int64_t i = 0; i < vocab; ++i) weight[i] = Place(distance[i], i) > last ? 0 : weight[i];
}

ALUDEL_SIMD uint64_t Sum(const uint64_t* weight, int64_t count) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += weight[i];
  return sum;
}

// Keeps the fewest candidates, in order of likelihood, whose measures' sum exceeds target(sum of all); all of
// them where that is never exceeded. Sorts the one bucket in which it is.
template <typename Measure, typename Target>
void KeepFirst(Candidates& row, const Measure& measure, const Target& target) {
  const size_t vocab = row.distance.size();
  std::fill(row.buckets.begin(), row.buckets.end(), 0);
  for (size_t i = 0; i < vocab; ++i) row.buckets[row.distance[i] >> kBucketShift] += measure(row.weight[i]);
  uint64_t left = target(Sum(row.buckets.data(), kBuckets));
  int32_t bucket = 0;
  while (bucket < kBuckets && row.buckets[bucket] <= left) left -= row.buckets[bucket++];
  if (bucket == kBuckets) return;
  row.members.clear();
  for (size_t i = 0; i < vocab; ++i) {
    if (row.distance[i] >> kBucketShift == bucket) row.members.push_back(Place(row.distance[i], i));
  }
  std::sort(row.members.begin(), row.members.end());
  auto last = row.members.begin();
  const auto measured = [&] { return measure(row.weight[*last & 0xffffffffu]); };
  while (measured() <= left) {
    left -= measured();
    ++last;
  }
  DropBehind(*last, row.distance.data(), static_cast<int64_t>(vocab), row.weight.data());
}

// The first token at which the sum of weights exceeds `left`, which is less than the sum of all.
int32_t FirstAbove(const std::vector<uint64_t>& weight, uint64_t left) {
  constexpr size_t kStretch = 1024;
  size_t i = 0;
  while (true) {
    const uint64_t sum = Sum(weight.data() + i, static_cast<int64_t>(std::min(kStretch, weight.size() - i)));
    if (sum > left) break;
    left -= sum;
    i += kStretch;
  }
  while (weight[i] <= left) left -= weight[i++];
  return static_cast<int32_t>(i);
}

}  // namespace

int32_t SampleRow(const float* logits, int64_t vocab, const RowSampling& sampling) {
  ALUDEL_CHECK(vocab > 0 && vocab <= kMaxSampledVocab);
  const DrawTerms terms = TermsOf(sampling);
  const int32_t key = LargestKey(logits, vocab);
  if (!IsNumber(key)) return kNoToken;
  const float largest = LogitOf(key);
  if (terms.greedy) return static_cast<int32_t>(std::find(logits, logits + vocab, largest) - logits);

  thread_local Candidates row;
  row.distance.resize(vocab);
  row.weight.resize(vocab);
  Weigh(logits, vocab, largest, terms.units_per_logit, row.distance.data(), row.weight.data());
  if (terms.top_k > 0) {
    KeepFirst(
        row, [](uint64_t weight) { return uint64_t{weight > 0}; },
        [&](uint64_t) { return static_cast<uint64_t>(terms.top_k) - 1; });
  }
  if (terms.top_p > 0) {
    KeepFirst(
        row, [](uint64_t weight) { return weight; },
        [&](uint64_t total) { return TopPTarget(terms.top_p, total); });
  }
  if (terms.least_weight > 0) DropUnlikely(terms.least_weight, vocab, row.weight.data());
  return FirstAbove(row.weight, DrawTarget(terms.uniform, Sum(row.weight.data(), vocab)));
}

void CpuOps::SampleRows(const TensorView& logits, absl::Span<const RowSampling> draws, int32_t* tokens,
                        Stream) {
  ALUDEL_CHECK(logits.rows == static_cast<int64_t>(draws.size()));
  constexpr int64_t kWork = 20;  // multiply-adds that a weight is, about
  const float* const rows = logits.f32();
  ForRows(logits.rows, kWork * logits.cols, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      tokens[i] = SampleRow(rows + i * logits.stride, logits.cols, draws[i]);
    }
  });
}

}  // namespace aludel
