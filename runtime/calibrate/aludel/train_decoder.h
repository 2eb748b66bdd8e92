#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor.h"
#include "runtime/calibrate/aludel/decoder_net.h"

namespace aludel {

// Pairs of decoder inputs and targets, in coordinates where errors count alike. Row-major. bf16, because the
// token matrix is the largest thing that calibration holds.
struct DecoderData {
  int64_t rows = 0;
  int64_t inputs = 0;
  int64_t outputs = 0;
  std::vector<Bf16> u;  // [rows, inputs], standardized
  std::vector<Bf16> y;  // [rows, outputs]
  // How much each row counts; empty: all alike. [rows]
  std::vector<float> weight;

  size_t bytes() const { return (u.size() + y.size()) * sizeof(Bf16); }
};

// Of a network whose time is over: its rate rises for a hundred, and what comes out before is its random start.
inline constexpr int64_t kFewestTrainingSteps = 200;

struct DecoderTraining {
  int64_t width = 0;  // of the hidden layer; 0: a linear decoder in closed form
  int64_t steps = 6000;
  int64_t batch = 1024;
  double learning_rate = 2e-3;  // of Adam, down to 0 along a cosine
  // Of a linear decoder: what the held-out rows like best is taken. Too little shrinkage fits the rows of few
  // prompts better and all others worse, and how little that is depends on the text. Rising.
  std::vector<double> ridges = {1e-6, 1e-3, 1e-2, 3e-2, 1e-1};
  uint64_t seed = 1;
  // Of a network: looks at the held-out rows this often, and ends after `patience` looks that found no lower error than
  // an earlier one; the net of the lowest is kept. 0: takes all steps and keeps the last net.
  int64_t judgements = 20;
  int64_t patience = 0;
  // Seconds that a network's steps may take: where they turn out slower the course is shortened, to no fewer than
  // kFewestTrainingSteps, its rate still falling to 0. 0: any. What comes out then depends on the machine's load.
  double seconds = 0;
  // A file that training is resumed from and that nothing else goes by, written every `save_seconds`; "": none.
  std::string checkpoint;
  double save_seconds = 20;
};

// Ridges that are tried at most, of so many, where the middle one gives a fit.
inline int64_t RidgesTried(size_t ridges) { return static_cast<int64_t>(std::min(ridges, ridges / 2 + 2)); }

struct DecoderFit {
  DecoderNet net;
  // Mean squared error per component, over the mean square of the targets.
  double train_error = 0;
  double held_out_error = 0;
  double ridge = 0;   // taken; 0 for an MLP
  int64_t steps = 0;  // of an MLP, until it ended
  bool cut = false;   // its time ended it, not its steps or its patience
};

// Fits under L2 loss: ridge regression, or an MLP by Adam on random batches. `progress` is
// called with (done, steps) now and then; false ends with Cancelled. One thread's GEMMs decide the speed.
absl::StatusOr<DecoderFit> TrainDecoder(const DecoderData& train, const DecoderData& held_out,
                                        const DecoderTraining& options,
                                        const std::function<bool(int64_t, int64_t)>& progress);

// loss = mean over rows and components of (net(u) - y)^2 and its gradient, for an MLP; f32 rows. Split out to
// be checked against finite differences. `gradient` has the net's shapes.
double DecoderLoss(const DecoderNet& net, const float* u, const float* y, int64_t rows, DecoderNet* gradient);

}  // namespace aludel
