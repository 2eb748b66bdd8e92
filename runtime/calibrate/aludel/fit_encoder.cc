#include "runtime/calibrate/aludel/fit_encoder.h"

#include <algorithm>
#include <cmath>

#include "kernels/check.h"
#include "runtime/calibrate/aludel/fit_side.h"
#include "runtime/calibrate/fit/dense.h"
#include "runtime/codec/aludel/latent_packing.h"
#include "runtime/codec/frame.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int64_t kChunk = 512;
constexpr int64_t kTypicalTokens = 256;  // of a frame

// Features of one group: the producer's [K V] of its layers, then its H of the recomputed layer or directions of it.
struct Features {
  const StateFile& states;
  int recomputed_layers;
  AludelGroup group;
  const HostMatrix& directions;  // empty: all of H

  int64_t main() const { return group.layers * 2 * states.layout().kv_dim; }
  int64_t side() const {
    if (recomputed_layers < 0) return 0;
    return directions.rows > 0 ? directions.rows : states.layout().hidden;
  }
  int64_t count() const { return main() + side(); }
  // Rows first, first + stride, ..., [rows, count()].
  std::vector<float> Read(int64_t first, int64_t rows, int64_t stride) const {
    std::vector<float> x(rows * count());
    for (int64_t t = 0; t < rows; ++t) {
      states.Read(first + t * stride, states.layout().kv(group.first_layer), main(), x.data() + t * count());
    }
    if (side() > 0) {
      ReadSide(states, recomputed_layers, directions, first, rows, stride, x.data() + main(), count());
    }
    return x;
  }
};

std::vector<float> MeanOf(const Features& features, const RowStride& rows) {
  const int64_t columns = features.count();
  std::vector<double> sum(columns);
  for (int64_t begin = 0; begin < rows.rows; begin += kChunk) {
    const int64_t count = std::min(kChunk, rows.rows - begin);
    const std::vector<float> x = features.Read(begin * rows.stride, count, rows.stride);
    for (int64_t i = 0; i < count * columns; ++i) sum[i % columns] += x[i];
  }
  std::vector<float> mean;
  for (const double value : sum) mean.push_back(static_cast<float>(value / static_cast<double>(rows.rows)));
  return mean;
}

// Targets of every consumer side by side, in their metrics. [count, sum of outputs]
std::vector<float> ReadJointTargets(absl::Span<const EncoderTarget> targets, const AludelGroup& group,
                                    int64_t first, int64_t count, int64_t stride) {
  int64_t columns = 0;
  for (const EncoderTarget& target : targets) columns += target.metric->outputs();
  std::vector<float> joint(count * columns);
  int64_t at = 0;
  for (const EncoderTarget& target : targets) {
    const int64_t n = target.metric->outputs();
    const std::vector<float> y = ReadTargets(*target.states, *target.metric, group, first, count, stride);
    for (int64_t t = 0; t < count; ++t) std::copy_n(y.data() + t * n, n, joint.data() + t * columns + at);
    at += n;
  }
  return joint;
}

HostMatrix Product(const HostMatrix& a, const HostMatrix& b) {
  HostMatrix c = HostMatrix::Zeros(a.rows, b.cols);
  Sgemm(false, false, a.rows, b.cols, a.cols, a.values.data(), a.cols, b.values.data(), b.cols, /*beta=*/0,
        c.values.data(), c.cols);
  return c;
}

}  // namespace

absl::StatusOr<EncoderFit> FitEncoder(const StateFile& producer, absl::Span<const EncoderTarget> targets,
                                      int recomputed_layers, const HostMatrix& directions,
                                      const AludelGroup& group, int64_t rank, const EncoderOptions& options) {
  ALUDEL_CHECK(!targets.empty());
  const Features features{producer, recomputed_layers, group, directions};
  const RowStride rows = RowStride::Of(producer, options.max_rows);
  const std::vector<float> mean = MeanOf(features, rows);
  int64_t outputs = 0;
  for (const EncoderTarget& target : targets) outputs += target.metric->outputs();
  Moments xx = Moments::Zeros(features.count(), features.count());
  Moments xy = Moments::Zeros(features.count(), outputs);
  // AddProduct works through the rows by itself; a large chunk allocates its sums less often.
  constexpr int64_t kRows = 8 * kChunk;
  for (int64_t begin = 0; begin < rows.rows; begin += kRows) {
    const int64_t count = std::min(kRows, rows.rows - begin);
    std::vector<float> x = features.Read(begin * rows.stride, count, rows.stride);
    for (int64_t t = 0; t < count; ++t) {
      float* row = x.data() + t * features.count();
      for (int64_t j = 0; j < features.count(); ++j) row[j] -= mean[j];
    }
    const std::vector<float> y = ReadJointTargets(targets, group, begin * rows.stride, count, rows.stride);
    AddGram(x.data(), count, &xx);
    AddProduct(x.data(), y.data(), count, &xy);
  }
  for (double& value : xx.values) value /= static_cast<double>(rows.rows);
  for (double& value : xy.values) value /= static_cast<double>(rows.rows);
  rank = std::min(rank, features.main());
  ALUDEL_ASSIGN_OR_RETURN(InnovationBasis basis, FitInnovation(xx, features.main(), xy, rank, options.ridge));
  EncoderFit fit{std::move(basis.main), std::move(basis.side), {}, std::move(basis.energy)};
  for (int64_t i = 0; i < rank; ++i) {
    double offset = 0;
    for (int64_t j = 0; j < features.main(); ++j)
      offset -= static_cast<double>(fit.matrix.row(i)[j]) * mean[j];
    for (int64_t j = 0; j < features.side(); ++j) {
      offset -= static_cast<double>(fit.side.row(i)[j]) * mean[features.main() + j];
    }
    fit.offset.push_back(static_cast<float>(offset));
  }
  if (directions.rows > 0 && features.side() > 0) fit.side = Product(fit.side, directions);
  return fit;
}

size_t EncoderFitBytes(const ModelConfig& config, int64_t side_columns, const AludelGroup& group,
                       size_t targets) {
  const size_t main = static_cast<size_t>(group.layers) * 2 * config.kv_dim();
  const auto side = static_cast<size_t>(side_columns);
  const size_t count = main + side, outputs = main * targets;
  const size_t moments = count * count + count * outputs;
  const size_t solver = 2 * side * side + side * main + main * outputs + 4 * main * main;
  return (moments + solver) * sizeof(double);
}

void EncodeRows(const HostMatrix& matrix, const HostMatrix& side, const std::vector<float>& offset,
                const StateFile& producer, int recomputed_layers, const AludelGroup& group, int64_t begin,
                int64_t count, int64_t stride, float* z) {
  const HostMatrix all;
  const Features features{producer, recomputed_layers, group, all};
  const std::vector<float> x = features.Read(begin, count, stride);
  for (int64_t t = 0; t < count; ++t) std::copy(offset.begin(), offset.end(), z + t * matrix.rows);
  Sgemm(false, true, count, matrix.rows, features.main(), x.data(), features.count(), matrix.values.data(),
        matrix.cols, 1.0f, z, matrix.rows);
  if (features.side() == 0) return;
  Sgemm(false, true, count, matrix.rows, features.side(), x.data() + features.main(), features.count(),
        side.values.data(), side.cols, 1.0f, z, matrix.rows);
}

LatentSample SampleLatents(const HostMatrix& matrix, const HostMatrix& side, const std::vector<float>& offset,
                           const StateFile& producer, int recomputed_layers, const AludelGroup& group) {
  LatentSample sample;
  sample.rank = matrix.rows;
  sample.largest.resize(sample.rank);
  const auto encode = [&](int64_t begin, int64_t count, int64_t stride, float* z) {
    EncodeRows(matrix, side, offset, producer, recomputed_layers, group, begin * stride, count, stride, z);
  };
  const RowStride rows = RowStride::Of(producer, 16384);
  std::vector<float> z(kChunk * sample.rank);
  for (int64_t begin = 0; begin < rows.rows; begin += kChunk) {
    const int64_t count = std::min(kChunk, rows.rows - begin);
    encode(begin, count, rows.stride, z.data());
    for (int64_t i = 0; i < count * sample.rank; ++i) {
      sample.largest[i % sample.rank] = std::max(sample.largest[i % sample.rank], std::abs(z[i]));
    }
  }
  sample.frame_tokens = std::min(kTypicalTokens, producer.rows());
  sample.frames = std::min<int64_t>(16, producer.rows() / std::max<int64_t>(1, sample.frame_tokens));
  sample.z.resize(sample.frames * sample.frame_tokens * sample.rank);
  for (int64_t i = 0; i < sample.frames; ++i) {
    encode(i * (producer.rows() - sample.frame_tokens) / sample.frames, sample.frame_tokens, 1,
           sample.z.data() + i * sample.frame_tokens * sample.rank);
  }
  return sample;
}

double PackedBytes(const LatentSample& sample, const LatentGrid& grid, LatentPacking packing) {
  const auto rank = static_cast<int64_t>(grid.bits.size());
  std::vector<uint8_t> payload(MaxPackedBytes(grid, packing, sample.frame_tokens));
  std::vector<float> z(sample.frame_tokens * rank);
  const std::unique_ptr<LatentCoder> coder = MakeLatentCoder(grid, packing);
  double bytes = 0;
  for (int64_t i = 0; i < sample.frames; ++i) {
    const float* from = sample.z.data() + i * sample.frame_tokens * sample.rank;
    for (int64_t t = 0; t < sample.frame_tokens; ++t) {
      std::copy_n(from + t * sample.rank, rank, z.data() + t * rank);
    }
    bytes += static_cast<double>(
        PackLatents(z.data(), sample.frame_tokens, grid, packing, coder.get(), absl::MakeSpan(payload)) +
        kFrameHeaderBytes);
  }
  return bytes / static_cast<double>(sample.frames * sample.frame_tokens);
}

AludelEncoderGroup Quantize(const EncoderFit& fit, const LatentSample& sample, float step) {
  const double least = 0.25 * static_cast<double>(step) * step;
  int64_t rank = 1;
  while (rank < fit.matrix.rows && fit.energy[rank] > least) ++rank;
  AludelEncoderGroup out;
  out.matrix = {
      rank, fit.matrix.cols, {fit.matrix.values.begin(), fit.matrix.values.begin() + rank * fit.matrix.cols}};
  if (fit.side.rows > 0) {
    out.side = {
        rank, fit.side.cols, {fit.side.values.begin(), fit.side.values.begin() + rank * fit.side.cols}};
  }
  out.offset.assign(fit.offset.begin(), fit.offset.begin() + rank);
  out.grid.step = step;
  for (int64_t i = 0; i < rank; ++i) {
    const float value = sample.largest[i];
    // One code of slack: what calibration did not see may be a little larger.
    const double codes = 2.0 * (std::ceil(value / step) + 1) + 1;
    out.grid.bits.push_back(std::clamp(static_cast<int>(std::ceil(std::log2(codes))), 2, kMaxLatentBits));
  }
  return out;
}

}  // namespace aludel
