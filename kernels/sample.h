#pragma once

#include <cstdint>

// How a token is chosen from a row of logits: defined in integers, whose sums do not depend on the order of
// addition, so that every device chooses the same token, however it divides the work.
//
//   distance   of a token: (largest logit - its logit) / temperature, in octaves (halvings of probability) of
//              2^25 units, cut to an integer; from 44 octaves on it is out of reach
//   weight     2^44 * 2^-octaves, cut to an integer; out of reach: 0
//   order      by distance, equal ones by id
//   kept       the first top_k; of them the first, as few as do, whose weights reach top_p of their sum; of
//              them those whose weight is at least min_p of the largest
//   token      by ascending id, the first of the kept at which the sum of weights exceeds `uniform` of all
//
// The draw goes by id, not by likelihood, so that nothing has to be sorted for it.
namespace aludel {

struct RowSampling {
  double temperature = 0.0;  // below kGreedyBelow, or with a top_k of 1: the first of the largest logits
  int top_k = 0;             // 0: off
  double top_p = 1.0;        // off unless between 0 and 1
  double min_p = 0.0;        // 0: off
  double uniform = 0.0;      // in [0, 1): the random number
};

// The likeliest token has practically all the weight, and one over a smaller number leaves the range
// of floats.
constexpr double kGreedyBelow = 1e-5;

// In place of a token where a logit is NaN or +infinity, or all are -infinity.
constexpr int32_t kNoToken = -1;

// What sums of weights have room for.
constexpr int64_t kMaxSampledVocab = (int64_t{1} << 20) - 1;

// The token of one row [vocab] in host memory. Works in memory that the calling thread keeps: 12 bytes per
// token of the vocabulary.
int32_t SampleRow(const float* logits, int64_t vocab, const RowSampling& sampling);

}  // namespace aludel
