#pragma once

#include <cstdint>
#include <vector>

#include "runtime/calibrate/aludel/decoder_net.h"

namespace aludel {

// A correction of low rank to a linear decoder, y = up (down u) + bias, trained while the decoder stays as it
// is and then added to it. Few weights learn less by heart from few answers than all of them do.
struct LowRank {
  HostMatrix down;          // [rank, inputs]
  HostMatrix up;            // [outputs, rank]
  std::vector<float> bias;  // [outputs]
};

// Corrects nothing yet: `up` is zero, and `down` is noise that keeps a standardized input's size.
LowRank StartLowRank(int64_t rank, int64_t inputs, int64_t outputs, uint64_t seed);

WeightList WeightsOf(LowRank* correction);

// One pass through a correction and back.
class LowRankPass {
 public:
  // y [rows, outputs] += the correction of u [rows, inputs], which must live until Backward.
  void AddForward(const LowRank& correction, const float* u, int64_t rows, float* y);
  // gradient += d loss / d correction, for `slope` = d loss / d y. Once after each forward.
  void Backward(const LowRank& correction, const float* slope, LowRank* gradient);

 private:
  const float* u_ = nullptr;
  int64_t rows_ = 0;
  std::vector<float> inner_, inner_slope_;  // [rows, rank]
};

// Adds the correction to the weights of `net`, whose part it was.
void Merge(const LowRank& correction, DecoderNet* net);

}  // namespace aludel
