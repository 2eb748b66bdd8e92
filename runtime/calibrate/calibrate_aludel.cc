#include "runtime/calibrate/calibrate_aludel.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "runtime/calibrate/aludel/fit_decays.h"
#include "runtime/calibrate/aludel/fit_side.h"
#include "runtime/codec/aludel/latent_packing.h"
#include "runtime/codec/artifact/weight_file.h"
#include "runtime/evaluate/compute_share.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int64_t kChunk = 1024;
constexpr int kUniformBits = 4;

// Decoder inputs of one consumer and group: its side information, then the codes as they arrive.
class InputReader {
 public:
  InputReader(const AludelEncoderGroup& encoder, const AludelShape& shape, const AludelGroup& group,
              const HostMatrix& directions, const StateFile& producer, const StateFile& consumer)
      : encoder_(encoder),
        shape_(shape),
        group_(group),
        directions_(directions),
        producer_(producer),
        consumer_(consumer) {}

  int64_t rank() const { return encoder_.matrix.rows; }
  int64_t side() const {
    if (!shape_.has_side()) return 0;
    return directions_.rows > 0 ? directions_.rows : consumer_.layout().hidden;
  }
  int64_t inputs() const { return side() + rank(); }

  // Rows [begin, begin + count), row-major [count, inputs].
  void Read(int64_t begin, int64_t count, float* u) const {
    std::vector<float> z(count * rank());
    EncodeRows(encoder_.matrix, encoder_.side, encoder_.offset, producer_, shape_.recomputed_layers, group_,
               begin, count, /*stride=*/1, z.data());
    std::vector<uint8_t> bytes(MaxPackedBytes(encoder_.grid, LatentPacking::kFixed, count));
    PackLatents(z.data(), count, encoder_.grid, LatentPacking::kFixed, absl::MakeSpan(bytes));
    ALUDEL_CHECK(UnpackLatents(bytes, count, encoder_.grid, LatentPacking::kFixed, z.data()).ok());
    if (side() > 0) {
      ReadSide(consumer_, shape_.recomputed_layers, directions_, begin, count, /*stride=*/1, u, inputs());
    }
    for (int64_t t = 0; t < count; ++t) {
      std::copy_n(z.data() + t * rank(), rank(), u + t * inputs() + side());
    }
  }

 private:
  const AludelEncoderGroup& encoder_;
  const AludelShape& shape_;
  const AludelGroup& group_;
  const HostMatrix& directions_;
  const StateFile& producer_;
  const StateFile& consumer_;
};

InputScale MeasureInputs(const InputReader& reader, int64_t rows) {
  const int64_t n = reader.inputs();
  std::vector<double> sum(n), square(n);
  std::vector<float> u(kChunk * n);
  int64_t seen = 0;
  // Every fourth chunk: thousands of rows know a mean well enough.
  for (int64_t begin = 0; begin < rows; begin += 4 * kChunk) {
    const int64_t count = std::min(kChunk, rows - begin);
    reader.Read(begin, count, u.data());
    for (int64_t i = 0; i < count * n; ++i) {
      sum[i % n] += u[i];
      square[i % n] += static_cast<double>(u[i]) * u[i];
    }
    seen += count;
  }
  InputScale scale;
  for (int64_t j = 0; j < n; ++j) {
    const double mean = sum[j] / static_cast<double>(seen);
    const double variance = square[j] / static_cast<double>(seen) - mean * mean;
    scale.mean.push_back(static_cast<float>(mean));
    scale.inverse.push_back(static_cast<float>(1.0 / std::sqrt(std::max(variance, 1e-8))));
  }
  return scale;
}

// Rows [begin, end), or about `most` of them: of every piece its first ones, so that all text has a part. 0: all.
// `weights` of all rows, or none.
DecoderData ReadData(const InputReader& reader, const InputScale& scale, const StateFile& consumer,
                     const AludelGroup& group, const TargetMetric& metric, int64_t begin, int64_t end,
                     int64_t most, const std::vector<float>& weights) {
  const int64_t taken =
      most > 0 && most < end - begin ? std::max<int64_t>(1, kChunk * most / (end - begin)) : kChunk;
  DecoderData data;
  data.inputs = reader.inputs();
  data.outputs = metric.outputs();
  const int64_t rows = (end - begin) * taken / kChunk + taken;
  data.u.reserve(rows * data.inputs);
  data.y.reserve(rows * data.outputs);
  std::vector<float> u(kChunk * data.inputs), y(kChunk * data.outputs);
  for (int64_t at = begin; at < end; at += kChunk) {
    const int64_t count = std::min(taken, end - at);
    reader.Read(at, count, u.data());
    scale.Apply(count, u.data());
    for (int64_t i = 0; i < count * data.inputs; ++i) data.u.push_back(ToBf16(u[i]));
    for (int64_t t = 0; t < count; ++t) {
      consumer.Read(at + t, consumer.layout().kv(group.first_layer), data.outputs,
                    y.data() + t * data.outputs);
    }
    metric.Apply(y.data(), count);
    for (int64_t i = 0; i < count * data.outputs; ++i) data.y.push_back(ToBf16(y[i]));
    if (!weights.empty()) {
      data.weight.insert(data.weight.end(), weights.begin() + at, weights.begin() + at + count);
    }
    data.rows += count;
  }
  return data;
}

// Rows that layers' errors are measured on, from all over the held-out ones.
constexpr int64_t kErrorRows = 2048;
constexpr int64_t kErrorRowsAtOnce = 256;  // which read the decoder's weights once

// `net` gives (y - mean) / scale of the group's columns.
void MeasureLayers(const DecoderNet& net, const InputReader& reader, const InputScale& scale,
                   const TargetMetric& metric, const StateFile& consumer, const AludelGroup& group,
                   int64_t begin, std::vector<LayerLoss>* layers) {
  const int64_t kv_dim = consumer.layout().kv_dim, outputs = metric.outputs();
  const int64_t stride = std::max<int64_t>(1, (consumer.rows() - begin) / kErrorRows);
  std::vector<double> error(2 * group.layers), energy(2 * group.layers);
  std::vector<float> u(kErrorRowsAtOnce * reader.inputs()), y(outputs);
  for (int64_t first = begin; first < consumer.rows(); first += kErrorRowsAtOnce * stride) {
    const int64_t count = std::min(kErrorRowsAtOnce, (consumer.rows() - first + stride - 1) / stride);
    for (int64_t i = 0; i < count; ++i) reader.Read(first + i * stride, 1, u.data() + i * reader.inputs());
    scale.Apply(count, u.data());
    const std::vector<float> said = RunDecoder(net, u.data(), count);
    for (int64_t i = 0; i < count; ++i) {
      consumer.Read(first + i * stride, consumer.layout().kv(group.first_layer), outputs, y.data());
      for (int64_t j = 0; j < outputs; ++j) {
        const double wanted = (y[j] - metric.mean[j]) / metric.scale[j];
        const double missed = said[i * outputs + j] - wanted;
        error[j / kv_dim] += missed * missed;
        energy[j / kv_dim] += wanted * wanted;
      }
    }
  }
  for (int i = 0; i < group.layers; ++i) {
    const auto of = [&](int kind) { return error[2 * i + kind] / std::max(energy[2 * i + kind], 1e-30); };
    layers->push_back({group.first_layer + i, of(0), of(1)});
  }
}

// Of a training that an interrupted run may have begun: of everything that decides its course, its budget among it, for
// what one has cut short is not what another would. Of rows a few hundred stand for all, for those of other text or codes
// differ everywhere.
std::string CheckpointOf(const std::string& directory, double budget, const DecoderData& train,
                         const DecoderData& held_out, const DecoderTraining& training) {
  if (directory.empty() || training.width == 0) return "";
  std::string key = absl::StrCat("training 2 ", budget, " ", train.rows, " ", held_out.rows, " ",
                                 train.inputs, " ", train.outputs, " ", training.width, " ", training.steps,
                                 " ", training.batch, " ", training.learning_rate, " ", training.seed, " ",
                                 training.patience, " ", training.judgements, "\n");
  const auto add = [&key](const auto* values, int64_t count) {
    key.append(reinterpret_cast<const char*>(values), count * sizeof(*values));
  };
  for (const DecoderData* data : {&train, &held_out}) {
    const int64_t stride = std::max<int64_t>(1, data->rows / 256);
    for (int64_t row = 0; row < data->rows; row += stride) {
      add(data->u.data() + row * data->inputs, data->inputs);
      add(data->y.data() + row * data->outputs, data->outputs);
    }
  }
  add(train.weight.data(), static_cast<int64_t>(train.weight.size()));
  const std::string hash = Sha256Hex({reinterpret_cast<const uint8_t*>(key.data()), key.size()});
  return absl::StrCat(directory, "/", hash.substr(0, 24), ".training");
}

// A fit's part of the time that is left, when `left` of `all` fits are to come, itself among them; 0: any.
double SecondsFor(const TimeLimit& time, size_t left, size_t all) {
  if (!time.seconds_left || time.training_seconds <= 0) return 0;
  const double one = time.training_seconds / static_cast<double>(all);
  const double share =
      one / (static_cast<double>(left) * one + time.tuning_seconds + time.rest_seconds + time.later_seconds);
  return std::max(1e-3, share * time.seconds_left());
}

// From a net of the metric's coordinates to one of (y - mean) / scale.
DecoderNet FromMetric(DecoderNet net, const TargetMetric& metric) {
  if (net.linear.rows > 0) metric.Turn(&net.linear);
  if (net.out.rows > 0) metric.Turn(&net.out);
  HostMatrix bias{static_cast<int64_t>(net.bias.size()), 1, std::move(net.bias)};
  metric.Turn(&bias);
  net.bias = std::move(bias.values);
  return net;
}

double ShareOf(const AludelOptions& options, const ModelConfig& config, const AludelShape& shape) {
  return options.compute_share > 0 ? options.compute_share : SensibleShare(config, shape);
}

// Scales latents to one energy, so that a common step gives each the same bits.
void EqualiseEnergy(EncoderFit* fit) {
  for (int64_t i = 0; i < fit->matrix.rows; ++i) {
    const auto scale = static_cast<float>(1 / std::sqrt(std::max(fit->energy[i], 1e-12)));
    for (int64_t j = 0; j < fit->matrix.cols; ++j) fit->matrix.row(i)[j] *= scale;
    for (int64_t j = 0; j < fit->side.cols; ++j) fit->side.row(i)[j] *= scale;
    fit->offset[i] *= scale;
    fit->energy[i] = 1;
  }
}

}  // namespace

int64_t SideColumns(const ModelConfig& config, const AludelOptions& options) {
  if (options.recomputed_layers < 0) return 0;
  return options.side_rank > 0 ? options.side_rank : config.hidden;
}

std::vector<AludelGroup> MakeGroups(const ModelConfig& config, int recomputed_layers, int group_layers) {
  const int first = recomputed_layers + 1;
  const int coded = config.layers - first;
  if (group_layers == 0) {
    const int fitting = static_cast<int>(kMaxGroupColumns / (2 * config.kv_dim()));
    const int groups = (coded + fitting - 1) / std::max(1, fitting);
    group_layers = (coded + groups - 1) / groups;
  }
  std::vector<AludelGroup> groups;
  for (int layer = first; layer < config.layers; layer += group_layers) {
    groups.push_back({layer, std::min(group_layers, config.layers - layer), 0});
  }
  return groups;
}

int64_t MostRank(double bytes_per_token, const ModelConfig& config, const std::vector<AludelGroup>& groups,
                 const AludelOptions& options) {
  // No latent worth sending costs less than two bits.
  const int least_bits = options.allocation == BitAllocation::kUniform ? kUniformBits : 2;
  const auto wanted = static_cast<int64_t>(std::ceil(bytes_per_token * 8 / least_bits));
  AludelShape shape;
  shape.recomputed_layers = options.recomputed_layers;
  shape.groups = groups;
  return std::min(wanted, AffordableRank(ShareOf(options, config, shape), config, groups, shape.has_side()));
}

int64_t DecoderWidth(const AludelOptions& options, const ModelConfig& config, const AludelShape& shape) {
  return options.linear ? 0 : AffordableWidth(ShareOf(options, config, shape), config, shape);
}

std::vector<float> RowWeights(const std::vector<int32_t>& ids, const Sensitivity& sensitivity) {
  constexpr double kPrior = 20;  // occurrences at which an id's own mean counts half
  constexpr double kBound = 4;
  double energy = 0, count = 0;
  for (const auto& [id, sum] : sensitivity.by_id) {
    energy += sum.energy;
    count += static_cast<double>(sum.count);
  }
  const double mean = energy / std::max(1.0, count);
  std::vector<float> weights;
  for (const int32_t id : ids) {
    const auto found = sensitivity.by_id.find(id);
    double relative = 1;
    if (found != sensitivity.by_id.end() && mean > 0) {
      const auto seen = static_cast<double>(found->second.count);
      relative = (found->second.energy / mean + kPrior) / (seen + kPrior);
    }
    weights.push_back(static_cast<float>(std::clamp(relative, 1 / kBound, kBound)));
  }
  return weights;
}

absl::StatusOr<TargetMetric> MetricOf(const AludelStates& states, size_t consumer, const AludelGroup& group,
                                      const AludelOptions& options) {
  const StateFile& file = *states.consumers[consumer];
  TargetMetric metric = MeasureMetric(file, group, options.encoder.max_rows);
  if (states.sensitivities.empty()) return metric;
  const int64_t begin = file.layout().kv(group.first_layer);
  const int64_t end = begin + metric.outputs();
  Moments joint = Moments::Zeros(metric.outputs(), metric.outputs());
  for (size_t r = 0; r < states.ranges.size(); ++r) {
    const Moments& part = states.sensitivities[consumer].ranges[r];
    const int64_t first = states.ranges[r].first;
    for (int64_t i = std::max(begin, first); i < std::min(end, first + part.rows); ++i) {
      for (int64_t j = std::max(begin, first); j < std::min(end, first + part.cols); ++j) {
        joint.at(i - begin, j - begin) = part.at(i - first, j - first);
      }
    }
  }
  ALUDEL_RETURN_IF_ERROR(AddSensitivity(joint, options.sensitivity_blend, &metric));
  return metric;
}

absl::StatusOr<std::vector<std::vector<TargetMetric>>> MetricsOf(const AludelStates& states,
                                                                 const std::vector<AludelGroup>& groups,
                                                                 const AludelOptions& options) {
  std::vector<std::vector<TargetMetric>> metrics(states.consumers.size());
  for (size_t c = 0; c < metrics.size(); ++c) {
    for (const AludelGroup& group : groups) {
      ALUDEL_ASSIGN_OR_RETURN(TargetMetric metric, MetricOf(states, c, group, options));
      metrics[c].push_back(std::move(metric));
    }
  }
  return metrics;
}

absl::StatusOr<AludelAnalysis> AnalyzeAludel(const AludelStates& states, const ModelConfig& config,
                                             const std::vector<AludelGroup>& groups,
                                             const AludelOptions& options, double bytes_per_token,
                                             const CalibrationProgress& progress) {
  AludelAnalysis analysis;
  ALUDEL_ASSIGN_OR_RETURN(analysis.metrics, MetricsOf(states, groups, options));
  if (options.side_rank > 0 && options.recomputed_layers >= 0) {
    if (!progress("fit side information", 0, 1)) return absl::CancelledError("calibration was interrupted");
    std::vector<SideTarget> targets;
    for (size_t c = 0; c < states.consumers.size(); ++c) {
      targets.push_back({states.consumers[c].get(), &analysis.metrics[c]});
    }
    ALUDEL_ASSIGN_OR_RETURN(analysis.side,
                            FitSideDirections(targets, options.recomputed_layers, groups, options.side_rank,
                                              options.encoder.ridge, options.encoder.max_rows));
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    if (!progress("fit encoders", static_cast<int64_t>(g), static_cast<int64_t>(groups.size()))) {
      return absl::CancelledError("calibration was interrupted");
    }
    const TargetMetric own = MeasureMetric(*states.producer, groups[g], options.encoder.max_rows);
    std::vector<EncoderTarget> targets;
    if (options.encoder_source == EncoderSource::kProducer) targets.push_back({states.producer.get(), &own});
    if (options.encoder_source == EncoderSource::kConsumers) {
      for (size_t c = 0; c < states.consumers.size(); ++c) {
        targets.push_back({states.consumers[c].get(), &analysis.metrics[c][g]});
      }
    }
    ALUDEL_ASSIGN_OR_RETURN(
        EncoderFit fit,
        FitEncoder(*states.producer, targets, options.recomputed_layers, analysis.side, groups[g],
                   MostRank(bytes_per_token, config, groups, options), options.encoder));
    analysis.energies.push_back(fit.energy);
    if (options.allocation == BitAllocation::kUniform) EqualiseEnergy(&fit);
    analysis.samples.push_back(SampleLatents(fit.matrix, fit.side, fit.offset, *states.producer,
                                             options.recomputed_layers, groups[g]));
    analysis.encoders.push_back(std::move(fit));
  }
  progress("fit encoders", static_cast<int64_t>(groups.size()), static_cast<int64_t>(groups.size()));
  return analysis;
}

AludelEncoderWeights QuantizeAt(float step, const AludelAnalysis& analysis, AludelShape* shape) {
  AludelEncoderWeights encoder;
  for (size_t g = 0; g < shape->groups.size(); ++g) {
    encoder.push_back(Quantize(analysis.encoders[g], analysis.samples[g], step));
    shape->groups[g].rank = encoder.back().matrix.rows;
    if (shape->packing == LatentPacking::kVideo) encoder.back().grid.video = kVideoLayout;
    if (!HasScales(shape->packing)) continue;
    encoder.back().grid.planes = shape->planes;
    const LatentSample& sample = analysis.samples[g];
    SymbolCounts counts(encoder.back().grid);
    counts.Add(sample.z.data(), sample.frames * sample.frame_tokens, sample.rank);
    encoder.back().grid.decays = counts.FitDecays();
  }
  return encoder;
}

double EstimateBytes(const AludelEncoderWeights& encoder, LatentPacking packing,
                     absl::Span<const LatentSample> samples) {
  double bytes = 0;
  for (size_t g = 0; g < encoder.size(); ++g) bytes += PackedBytes(samples[g], encoder[g].grid, packing);
  return bytes;
}

AludelEncoderWeights QuantizeTo(double bytes_per_token, const AludelAnalysis& analysis, AludelShape* shape) {
  // Bytes fall as the step grows: bisection on its logarithm.
  double low = 1e-4, high = 1e2;
  for (int i = 0; i < 24; ++i) {
    const double step = std::sqrt(low * high);
    const AludelEncoderWeights trial = QuantizeAt(static_cast<float>(step), analysis, shape);
    (EstimateBytes(trial, shape->packing, analysis.samples) > bytes_per_token ? low : high) = step;
    if (high / low < 1.002) break;
  }
  return QuantizeAt(static_cast<float>(high), analysis, shape);
}

std::vector<InputScale> MeasureDecoderInputs(const AludelEncoderWeights& encoder, const AludelShape& shape,
                                             const HostMatrix& directions, const StateFile& producer,
                                             const StateFile& consumer) {
  std::vector<InputScale> scales;
  for (size_t g = 0; g < encoder.size(); ++g) {
    const InputReader reader(encoder[g], shape, shape.groups[g], directions, producer, consumer);
    scales.push_back(MeasureInputs(reader, TrainingRows(consumer)));
  }
  return scales;
}

absl::StatusOr<TrainedDecoder> TrainAludelDecoder(
    const AludelEncoderWeights& encoder, const AludelShape& shape, const AludelStates& states,
    size_t consumer_index, const std::vector<TargetMetric>& metrics, const HostMatrix& directions,
    const ModelConfig& config, const AludelOptions& options, const CalibrationProgress& progress) {
  const StateFile& consumer = *states.consumers[consumer_index];
  TrainedDecoder decoder;
  decoder.side = directions;
  decoder.scales = MeasureDecoderInputs(encoder, shape, directions, *states.producer, consumer);
  decoder.width = DecoderWidth(options, config, shape);
  const int64_t train_rows = TrainingRows(consumer);
  for (size_t g = 0; g < encoder.size(); ++g) {
    const AludelGroup& group = shape.groups[g];
    const InputReader reader(encoder[g], shape, group, directions, *states.producer, consumer);
    const InputScale& scale = decoder.scales[g];
    std::vector<float> weights;
    if (!states.sensitivities.empty()) {
      weights = RowWeights(states.ids, states.sensitivities[consumer_index]);
    }
    const DecoderData train =
        ReadData(reader, scale, consumer, group, metrics[g], 0, train_rows, options.training_tokens, weights);
    // A ninth; 0 would be all.
    const int64_t measured =
        options.training_tokens > 0 ? std::max<int64_t>(1, options.training_tokens / 9) : 0;
    const DecoderData held_out =
        ReadData(reader, scale, consumer, group, metrics[g], train_rows, consumer.rows(), measured, {});
    DecoderTraining training = options.training;
    training.width = decoder.width;
    training.seed += g;
    training.checkpoint = CheckpointOf(options.checkpoints, options.time.budget, train, held_out, training);
    const size_t consumers_left = states.consumers.size() - consumer_index - 1;
    training.seconds = SecondsFor(options.time, consumers_left * encoder.size() + encoder.size() - g,
                                  states.consumers.size() * encoder.size());
    const std::string stage = encoder.size() == 1
                                  ? "train the decoder"
                                  : absl::StrCat("train decoder ", g + 1, " of ", encoder.size());
    ALUDEL_ASSIGN_OR_RETURN(DecoderFit fit,
                            TrainDecoder(train, held_out, training, [&](int64_t done, int64_t total) {
                              return progress(stage, done, total);
                            }));
    decoder.train_error.push_back(fit.train_error);
    decoder.held_out_error.push_back(fit.held_out_error);
    decoder.steps += fit.steps;
    if (fit.cut) decoder.cut_from = training.steps * static_cast<int64_t>(encoder.size());
    decoder.nets.push_back(FromMetric(std::move(fit.net), metrics[g]));
    MeasureLayers(decoder.nets.back(), reader, scale, metrics[g], consumer, group, train_rows,
                  &decoder.layers);
  }
  return decoder;
}

std::vector<TunedGroup> ToTuned(const AludelShape& shape, const StateLayout& layout,
                                const std::vector<TargetMetric>& metrics, TrainedDecoder* decoder) {
  std::vector<TunedGroup> groups;
  for (size_t g = 0; g < decoder->nets.size(); ++g) {
    groups.push_back({layout.kv(shape.groups[g].first_layer), metrics[g].mean, metrics[g].scale,
                      std::move(decoder->nets[g])});
  }
  return groups;
}

void FromTuned(std::vector<TunedGroup> groups, TrainedDecoder* decoder) {
  for (size_t g = 0; g < groups.size(); ++g) decoder->nets[g] = std::move(groups[g].net);
}

std::vector<TuningText::Inputs> DecoderInputs(const AludelEncoderWeights& encoder, const AludelShape& shape,
                                              const TrainedDecoder& decoder, const StateFile& producer,
                                              const StateFile& consumer) {
  std::vector<TuningText::Inputs> inputs;
  for (size_t g = 0; g < encoder.size(); ++g) {
    const InputReader reader(encoder[g], shape, shape.groups[g], decoder.side, producer, consumer);
    inputs.push_back([reader, &scale = decoder.scales[g]](int64_t begin, int64_t count, float* u) {
      reader.Read(begin, count, u);
      scale.Apply(count, u);
    });
  }
  return inputs;
}

}  // namespace aludel
