#include "runtime/calibrate/trained_decoder.h"

#include <utility>

namespace aludel {
namespace {

// W ((u - mean) inverse) + b = (W inverse) u + (b - W inverse mean).
void Unscale(const InputScale& scale, HostMatrix* matrix, std::vector<float>* bias) {
  for (int64_t i = 0; i < matrix->rows; ++i) {
    double shift = 0;
    for (int64_t j = 0; j < matrix->cols; ++j) {
      float& value = matrix->row(i)[j];
      value *= scale.inverse[j];
      shift += static_cast<double>(value) * scale.mean[j];
    }
    (*bias)[i] -= static_cast<float>(shift);
  }
}

void Rescale(const InputScale& scale, HostMatrix* matrix, std::vector<float>* bias) {
  for (int64_t i = 0; i < matrix->rows; ++i) {
    double shift = 0;
    for (int64_t j = 0; j < matrix->cols; ++j) {
      float& value = matrix->row(i)[j];
      shift += static_cast<double>(value) * scale.mean[j];
      value /= scale.inverse[j];
    }
    (*bias)[i] += static_cast<float>(shift);
  }
}

AludelDecoderGroup Fold(DecoderNet net, const InputScale& scale, const TargetMetric& metric,
                        const LatentGrid& grid) {
  AludelDecoderGroup out;
  out.grid = grid;
  if (net.linear.rows > 0) {
    Unscale(scale, &net.linear, &net.bias);
    metric.Unscale(&net.linear);
    out.linear = std::move(net.linear);
  }
  if (net.hidden.rows > 0) {
    Unscale(scale, &net.hidden, &net.hidden_bias);
    metric.Unscale(&net.out);
    out.hidden = std::move(net.hidden);
    out.hidden_bias = std::move(net.hidden_bias);
    out.out = std::move(net.out);
  }
  for (size_t j = 0; j < net.bias.size(); ++j) net.bias[j] = metric.mean[j] + metric.scale[j] * net.bias[j];
  out.bias = std::move(net.bias);
  return out;
}

void DivideRows(const std::vector<float>& scale, HostMatrix* matrix) {
  for (int64_t i = 0; i < matrix->rows; ++i) {
    for (int64_t j = 0; j < matrix->cols; ++j) matrix->row(i)[j] /= scale[i];
  }
}

DecoderNet Unfold(AludelDecoderGroup group, const InputScale& scale, const TargetMetric& metric) {
  DecoderNet net{std::move(group.linear), std::move(group.bias), std::move(group.hidden),
                 std::move(group.hidden_bias), std::move(group.out)};
  for (size_t j = 0; j < net.bias.size(); ++j) net.bias[j] = (net.bias[j] - metric.mean[j]) / metric.scale[j];
  DivideRows(metric.scale, &net.linear);
  DivideRows(metric.scale, &net.out);
  if (net.linear.rows > 0) Rescale(scale, &net.linear, &net.bias);
  if (net.hidden.rows > 0) Rescale(scale, &net.hidden, &net.hidden_bias);
  return net;
}

}  // namespace

void InputScale::Apply(int64_t rows, float* u) const {
  for (int64_t t = 0; t < rows; ++t, u += mean.size()) {
    for (size_t j = 0; j < mean.size(); ++j) u[j] = (u[j] - mean[j]) * inverse[j];
  }
}

AludelDecoderWeights FoldDecoder(TrainedDecoder decoder, const AludelEncoderWeights& encoder,
                                 const std::vector<TargetMetric>& metrics) {
  AludelDecoderWeights weights{std::move(decoder.side), {}};
  for (size_t g = 0; g < decoder.nets.size(); ++g) {
    weights.groups.push_back(
        Fold(std::move(decoder.nets[g]), decoder.scales[g], metrics[g], encoder[g].grid));
  }
  return weights;
}

TrainedDecoder UnfoldDecoder(AludelDecoderWeights weights, std::vector<InputScale> scales,
                             const std::vector<TargetMetric>& metrics) {
  TrainedDecoder decoder;
  decoder.side = std::move(weights.side);
  for (size_t g = 0; g < weights.groups.size(); ++g) {
    decoder.width = weights.groups[g].hidden.rows;
    decoder.nets.push_back(Unfold(std::move(weights.groups[g]), scales[g], metrics[g]));
  }
  decoder.scales = std::move(scales);
  return decoder;
}

}  // namespace aludel
