#pragma once

#include <cstdint>
#include <vector>

#include "runtime/codec/aludel/weights.h"

namespace aludel {

// y = linear u + bias + out silu(hidden u + hidden_bias); see AludelDecoderGroup. Either `linear` or the
// other three are empty.
struct DecoderNet {
  HostMatrix linear;
  std::vector<float> bias;
  HostMatrix hidden;
  std::vector<float> hidden_bias;
  HostMatrix out;

  int64_t inputs() const { return linear.rows > 0 ? linear.cols : hidden.cols; }
};

DecoderNet ZerosLike(const DecoderNet& net);

// net(u) for `rows` rows. [rows, outputs]
std::vector<float> RunDecoder(const DecoderNet& net, const float* u, int64_t rows);

// One pass through a net and back.
class DecoderPass {
 public:
  // net(u) [rows, outputs]. `u` [rows, inputs] must live until Backward.
  std::vector<float> Forward(const DecoderNet& net, const float* u, int64_t rows);
  // gradient += d loss / d net, for `slope` = d loss / d net(u) [rows, outputs]. Once after each Forward.
  void Backward(const DecoderNet& net, const std::vector<float>& slope, DecoderNet* gradient);

 private:
  const float* u_ = nullptr;
  int64_t rows_ = 0;
  std::vector<float> before_, after_;  // the activation of the hidden layer
};

// Every weight vector of something that is trained, in one order, to walk its gradient beside it.
using WeightList = std::vector<std::vector<float>*>;
WeightList WeightsOf(DecoderNet* net);

// Steps of Adam (Kingma & Ba 2015) with b1 = .9, b2 = .98, for all weights of a list.
class Adam {
 public:
  // For lists of vectors as long as these.
  explicit Adam(const WeightList& weights);

  void Step(double rate, const WeightList& gradient, const WeightList& weights);

  // What a run of it is resumed from: its moments, and how many steps they come from.
  WeightList Moments();
  void Resume(int64_t steps) { steps_ = steps; }

 private:
  std::vector<std::vector<float>> mean_, square_;
  int64_t steps_ = 0;
};

// The rate of step `step` of `steps`: up from 0 over the first `rise`, down to 0 along a cosine.
double CosineRate(double highest, int64_t step, int64_t steps, int64_t rise = 100);

}  // namespace aludel
