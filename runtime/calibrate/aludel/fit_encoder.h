#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/calibrate/aludel/metric.h"
#include "runtime/calibrate/aludel/state_file.h"
#include "runtime/codec/aludel/weights.h"

namespace aludel {

// One consumer's cache as what a group's latents are for.
struct EncoderTarget {
  const StateFile* states = nullptr;  // the consumer's, row by row beside the producer's
  const TargetMetric* metric = nullptr;
};

struct EncoderOptions {
  double ridge = 1e-5;
  int64_t max_rows = 65536;  // of the moments: closed form needs some tens of rows per feature
};

// A group's encoder before it is cut to a rate: as many latents as asked for, on the common scale of the
// targets' metrics. `energy` [rank] is the variance of each latent, in units of one target component's
// variance, summed over components.
struct EncoderFit {
  HostMatrix matrix;          // [rank, layers * 2 * kv_dim]
  HostMatrix side;            // [rank, hidden]
  std::vector<float> offset;  // [rank]
  std::vector<double> energy;
};

// Closed form (FitInnovation) over the producer's states and every target stacked: one encoder, many
// consumers. `recomputed_layers` as in AludelShape, `directions` of H as FitSideDirections has them, or all of it: what they
// leave out of H the latents may tell.
absl::StatusOr<EncoderFit> FitEncoder(const StateFile& producer, absl::Span<const EncoderTarget> targets,
                                      int recomputed_layers, const HostMatrix& directions,
                                      const AludelGroup& group, int64_t rank, const EncoderOptions& options);

// Memory of FitEncoder's moments and solvers for a group, with so many columns of side information.
size_t EncoderFitBytes(const ModelConfig& config, int64_t side_columns, const AludelGroup& group,
                       size_t targets);

// A group's latents in calibration text, before they are quantized: rates are tried on it.
struct LatentSample {
  int64_t rank = 0;
  std::vector<float> largest;  // [rank] largest magnitude in a sample of rows
  int64_t frames = 0;          // from all over the text
  int64_t frame_tokens = 0;
  std::vector<float> z;  // [frames * frame_tokens, rank]
};
LatentSample SampleLatents(const HostMatrix& matrix, const HostMatrix& side, const std::vector<float>& offset,
                           const StateFile& producer, int recomputed_layers, const AludelGroup& group);

// The first latents of `fit` under one step. A latent is kept while its deviation is at least half a step,
// codes cover the range of `sample`.
AludelEncoderGroup Quantize(const EncoderFit& fit, const LatentSample& sample, float step);

// Mean payload and header bytes per token of the sample's frames, whose first latents `grid` holds.
double PackedBytes(const LatentSample& sample, const LatentGrid& grid, LatentPacking packing);

// z [count, rank] of rows begin, begin + stride, ... of the producer's states.
void EncodeRows(const HostMatrix& matrix, const HostMatrix& side, const std::vector<float>& offset,
                const StateFile& producer, int recomputed_layers, const AludelGroup& group, int64_t begin,
                int64_t count, int64_t stride, float* z);

}  // namespace aludel
