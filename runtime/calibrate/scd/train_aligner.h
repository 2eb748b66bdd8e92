#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/codec/scd/weights.h"

namespace aludel {

// Token pairs: codes of the producer's attention input beside the consumer's attention input. Row-major.
struct AlignerData {
  int64_t tokens = 0;
  std::vector<float> z;  // [tokens, rank]
  std::vector<float> h;  // [tokens, hidden]
};

struct AlignerTraining {
  int64_t width = 256;  // of the MLP
  int epochs = 12;
  int64_t batch = 256;
  double learning_rate = 2e-3;  // of Adam, down to 0 along a cosine
  uint64_t seed = 1;
};

struct AlignerResult {
  AlignerWeights weights;
  // Mean squared error per component of H over the held-out tokens, divided by the mean square of H.
  double linear_error = 0;   // of the linear map that training starts from
  double trained_error = 0;  // of the result; the better of start and end is returned
};

// Fits g to map z to h under L2 loss: `linear` [hidden, rank] (a ridge solution) is where the skip path
// starts, the MLP starts at zero output, and Adam (Kingma & Ba 2015) trains all of it on shuffled batches.
// `keep_going` is asked between epochs; false ends with Cancelled.
absl::StatusOr<AlignerResult> TrainAligner(const AlignerData& train, const AlignerData& held_out,
                                           const HostMatrix& linear, const AlignerTraining& options,
                                           const std::function<bool()>& keep_going);

// loss = mean over tokens and components of (g(z) - h)^2 over rows [begin, begin + count) of `data` in the
// given order, and its gradient with respect to every weight, written in the shapes of `weights`. `order` may
// be null. Split out to be checked against finite differences.
double AlignerLoss(const AlignerWeights& weights, const AlignerData& data, const int64_t* order,
                   int64_t begin, int64_t count, AlignerWeights* gradient);

}  // namespace aludel
