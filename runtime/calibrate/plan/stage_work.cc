#include "runtime/calibrate/plan/stage_work.h"

#include <algorithm>
#include <cmath>

#include "runtime/calibrate/calibrate_aludel.h"
#include "runtime/calibrate/tune_aludel.h"
#include "runtime/calibrate/tune_passages_job.h"
#include "runtime/evaluate/compute_share.h"

namespace aludel {
namespace {

using Prompts = absl::Span<const std::vector<int32_t>>;

constexpr double kSampledRows = 20480;    // that SampleLatents encodes
constexpr double kTrainShare = 0.9;       // see TrainingRows
constexpr double kStretchAt = 0.6;        // of a prompt, where a stretch begins on average
constexpr int64_t kMeasuresOfSearch = 6;  // a search measures cuts of a candidate that meets the loss
constexpr int64_t kTrialsOfSearch = 6;    // and fits at most so many more
constexpr double kCheckpoint = 3;         // weights and Adam's moments
constexpr double kRowBuffers = 3;         // of a prompt's cache in f32, in passes back
constexpr double kMomentRows = 4096;      // that encoders' moments take at once, decoders' fewer
constexpr double kTailRows = 512;         // about, of a pass on a given cache

double Cube(double n) { return n * n * n; }

double Tokens(Prompts prompts) {
  size_t tokens = 0;
  for (const auto& prompt : prompts) tokens += prompt.size();
  return static_cast<double>(tokens);
}

double Longest(Prompts prompts) {
  size_t longest = 2;
  for (const auto& prompt : prompts) longest = std::max(longest, prompt.size());
  return static_cast<double>(longest);
}

double Size(DType type) { return type == DType::kF32 ? 4 : 2; }

// One plan's count. Everything is in double: figures of 8B models over millions of tokens are beyond 2^53 only where
// nobody would wait for them.
class Counter {
 public:
  Counter(const PlanInput& input, double answer_tokens)
      : input_(input),
        job_(input.job),
        config_(input.config),
        answer_(answer_tokens),
        consumers_(static_cast<double>(job_.base.consumers.size())),
        columns_(2.0 * config_.layers * config_.kv_dim()),
        net_(PlannedNet(input)) {
    options_ = job_.options;
    options_.recomputed_layers = Recomputed();
    groups_ = input.extended.has_value()
                  ? input.extended->groups
                  : MakeGroups(config_, options_.recomputed_layers, options_.group_layers);
    side_ = static_cast<double>(SideColumns(config_, options_));
    encoded_side_ = options_.recomputed_layers >= 0 ? config_.hidden : 0;
    TransformerOptions transformer;
    transformer.compute = job_.base.compute;
    const double models =
        (1 + consumers_) * (Parameters(config_) * Size(job_.base.compute) +
                            static_cast<double>(Transformer::WorkspaceBytes(config_, transformer)));
    (input.on_gpu ? gpu_models_ : models_) = models;
    models_ += input.process_bytes;
    train_tokens_ = Tokens(input.train);
    const auto head = static_cast<double>(RecomputedOf(input).head);
    rows_ = std::max(1.0, train_tokens_ - head * static_cast<double>(input.train.size()));
    longest_ = std::max({Longest(input.train), Longest(input.held_out), Longest(input.more)});
    senses_ = job_.sensitivity_prompts > 0 && !job_.retune;
    tunes_ = TuningPasses(options_) > 0 || !input.more.empty();
  }

  std::vector<StageWork> Count() {
    std::vector<StageWork> stages = {Loading(), Prefills(), Answers()};
    if (senses_) stages.push_back(Sensitivity());
    if (!input_.extended.has_value()) stages.push_back(Encoders());
    if (!job_.retune) stages.push_back(Training());
    if (tunes_) stages.push_back(Tuning());
    stages.push_back(Measurement());
    stages.push_back(Writing());
    if (input_.on_gpu) {
      for (StageWork& stage : stages) stage.device = DeviceBytes(stage.stage);
    }
    return stages;
  }

 private:
  int Recomputed() const {
    return input_.extended.has_value() ? input_.extended->recomputed_layers
                                       : job_.recomputed_layers.value_or(0);
  }
  bool searches() const { return job_.max_kl.has_value() && !input_.extended.has_value(); }
  // Structures and rates that a search may try.
  int64_t Structures() const {
    return searches() && !job_.recomputed_layers.has_value() ? config_.layers / 4 + 1 : 1;
  }
  int64_t MostFits() const { return searches() ? 2 * Structures() + kTrialsOfSearch : 1; }

  double Outputs(const AludelGroup& group) const { return group.layers * 2.0 * config_.kv_dim(); }
  double Prefill(double tokens, int layers) const {
    return LayerFlops(config_, layers, 0, static_cast<int64_t>(tokens));
  }
  double Prefills(Prompts prompts, int layers) const {
    double flops = 0;
    for (const auto& prompt : prompts) flops += Prefill(static_cast<double>(prompt.size()), layers);
    return flops;
  }
  double Decode(Prompts prompts) const {
    double flops = 0;
    for (const auto& prompt : prompts)
      flops += answer_ * TailFlops(config_, static_cast<double>(prompt.size()), 1);
    return flops;
  }
  double Tails(Prompts prompts, double share, double tokens) const {
    double flops = 0;
    for (const auto& prompt : prompts) {
      flops += TailFlops(config_, share * static_cast<double>(prompt.size()), tokens);
    }
    return flops;
  }
  // Of encoding and decoding a token, all groups.
  double CodeFlops() const {
    double flops = 0;
    for (const AludelGroup& group : groups_) {
      flops += 2 * (Outputs(group) + encoded_side_) * static_cast<double>(net_.rank) + NetFlops(group);
    }
    return flops + SideFlops();
  }
  // Of a token's directions of H.
  double SideFlops() const { return side_ < encoded_side_ ? 2 * encoded_side_ * side_ : 0; }
  double NetFlops(const AludelGroup& group) const {
    const auto inputs = static_cast<double>(net_.inputs), width = static_cast<double>(net_.width);
    return width > 0 ? 2 * width * (inputs + Outputs(group)) : 2 * inputs * Outputs(group);
  }
  // Numbers in a group's decoder.
  double NetNumbers(const AludelGroup& group) const { return NetFlops(group) / 2 + Outputs(group); }

  double NetBytes() const {  // of a consumer's, in f32
    double numbers = 0;
    for (const AludelGroup& group : groups_) numbers += NetNumbers(group);
    return 4 * numbers;
  }

  double Pools(double longest) const { return 2 * longest * columns_ * 2; }
  double HostPools(double longest) const { return input_.on_gpu ? 0 : Pools(longest); }

  // Of a product of moments, and of one of matrices [m, k] x [k, n], as DeviceProducts holds them.
  static double MomentBytes(double rows, double m, double n) { return 4 * rows * (m + n) + 12 * m * n; }
  static double ProductBytes(double m, double n, double k) { return 4 * (m * k + k * n + m * n); }
  // What the largest product takes, for which there is room from then on.
  double LargestProduct() const {
    const auto inputs = static_cast<double>(net_.inputs), width = static_cast<double>(net_.width);
    const auto batch = static_cast<double>(options_.training.batch);
    const double narrow = std::max<double>(config_.vocab, config_.ffn);
    double largest = senses_ || tunes_ ? 4 * kTailRows * (config_.ffn + narrow) : 0;
    for (const AludelGroup& group : groups_) {
      const double out = Outputs(group), count = out + side_;
      largest = std::max({largest, MomentBytes(kMomentRows, count, std::max(count, consumers_ * out)),
                          MomentBytes(kMomentRows, inputs, std::max(inputs, out)),
                          ProductBytes(batch, width, inputs), ProductBytes(batch, out, width),
                          ProductBytes(width, std::max(inputs, out), batch)});
    }
    return largest;
  }
  double DeviceBytes(Stage stage) const {
    if (stage == Stage::kLoading) return gpu_models_;
    double bytes = gpu_models_ + 2 * Pools(longest_);
    if (stage == Stage::kPrefills || stage == Stage::kAnswers) return bytes;
    bytes += LargestProduct();
    // The weights that passes on a given cache go through.
    if (stage == Stage::kSensitivity || stage == Stage::kTuning) {
      bytes += HostModel(stage == Stage::kTuning && input_.by_passages ? TuningType() : DType::kF32);
    }
    return bytes;
  }
  DType TuningType() const { return job_.base.compute == DType::kF32 ? DType::kF32 : DType::kBf16; }
  double HostModel(DType type) const { return Parameters(config_) * Size(type); }
  // Bytes of sensitivity matrices, which stay until the end.
  double SensitivityBytes() const {
    const bool whole = columns_ <= kMaxGroupColumns;
    const double of_layer = 2.0 * config_.kv_dim();
    return consumers_ * 8 * (whole ? columns_ * columns_ : config_.layers * of_layer * of_layer);
  }
  double Held() const {  // in memory beside the models once it is there
    const double answers = static_cast<double>(input_.held_out.size()) * answer_ * config_.vocab * 4;
    double bytes = consumers_ * answers + (senses_ ? SensitivityBytes() : 0) + 2 * HostPools(longest_);
    for (const AludelGroup& group : groups_) {
      const double out = Outputs(group);
      bytes += (out + encoded_side_) * static_cast<double>(net_.rank) * 4 + kSampledRows * net_.rank * 4;
      if (senses_) bytes += consumers_ * 2 * out * out * 4;  // roots and their inverses
      bytes += consumers_ * NetNumbers(group) * 4;
    }
    return bytes;
  }

  StageWork Loading() const {
    StageWork stage{.stage = Stage::kLoading, .memory = models_};
    stage.once[Work::kLoad] = (1 + consumers_) * Parameters(config_);
    return stage;
  }

  int SideLayers() const {
    const int most =
        job_.recomputed_layers.value_or(job_.max_kl.has_value() ? config_.layers / 4 : Recomputed());
    return std::max(most, config_.layers / 4) + 1;
  }

  StageWork Prefills() const {
    StageWork stage{.stage = Stage::kPrefills};
    stage.once[Work::kPrefill] = (1 + consumers_) * Prefills(input_.train, config_.layers);
    stage.memory = models_ + longest_ * config_.layers * (2.0 * config_.kv_dim() + config_.hidden) * 4 +
                   HostPools(longest_);
    stage.disk = (1 + consumers_) *
                 static_cast<double>(StateBytes(config_, SideLayers(), static_cast<int64_t>(train_tokens_)));
    return stage;
  }

  StageWork Answers() const {
    StageWork stage{.stage = Stage::kAnswers};
    stage.once[Work::kPrefill] = consumers_ * Prefills(input_.held_out, config_.layers);
    stage.once[Work::kDecode] = consumers_ * Decode(input_.held_out);
    stage.memory = models_ +
                   static_cast<double>(input_.held_out.size()) * consumers_ * answer_ * config_.vocab * 4 +
                   2 * HostPools(longest_);
    return stage;
  }

  StageWork Sensitivity() const {
    StageWork stage{.stage = Stage::kSensitivity};
    const Prompts prompts =
        input_.train.first(std::min(input_.train.size(), static_cast<size_t>(job_.sensitivity_prompts)));
    stage.once[Work::kPrefill] = consumers_ * Prefills(prompts, config_.layers);
    stage.once[Work::kDecode] = consumers_ * Decode(prompts);
    stage.once[Work::kTail] = consumers_ * 3 * Tails(prompts, 1, answer_);
    stage.once[Work::kMoments] = consumers_ * Tokens(prompts) * 2 * SensitivityBytes() / (8 * consumers_);
    stage.once[Work::kLoad] = consumers_ * Parameters(config_);
    stage.memory =
        models_ + HostModel(DType::kF32) + SensitivityBytes() + (kRowBuffers * longest_ + 512) * columns_ * 4;
    stage.disk = SensitivityBytes();
    return stage;
  }

  StageWork Encoders() const {
    StageWork stage{.stage = Stage::kEncoders, .most = Structures()};
    const double rows = std::min(rows_, static_cast<double>(options_.encoder.max_rows));
    const bool own = options_.encoder_source == EncoderSource::kProducer;
    double largest = 0;
    for (const AludelGroup& group : groups_) {
      const double main = Outputs(group), count = main + side_;
      const double targets = (own ? 1 : consumers_) * main;
      stage.once[Work::kMoments] += rows * (2 * count * count + 2 * count * targets);
      stage.once[Work::kSolver] += EncoderSolverFlops(main, side_, targets, static_cast<double>(net_.rank));
      stage.once[Work::kNetwork] +=
          kSampledRows * 2 * (main + encoded_side_) * static_cast<double>(net_.rank) + 2 * rows * SideFlops();
      if (senses_) {
        stage.once[Work::kSolver] += consumers_ * 4.0 / 3 * Cube(main);
        stage.once[Work::kNetwork] += consumers_ * rows * 2 * main * main;
      }
      largest =
          std::max(largest, static_cast<double>(EncoderFitBytes(config_, static_cast<int64_t>(side_), group,
                                                                static_cast<size_t>(consumers_))));
    }
    if (SideFlops() > 0) largest = std::max(largest, AddSideFit(rows, &stage));
    stage.memory = models_ + Held() + largest;
    return stage;
  }

  // FitSideDirections; its memory.
  double AddSideFit(double rows, StageWork* stage) const {
    const double h = config_.hidden;
    double outputs = 0;
    for (const AludelGroup& group : groups_) outputs += Outputs(group);
    stage->once[Work::kMoments] += consumers_ * rows * (2 * h * h + 2 * h * outputs);
    // Of each group's cross-products the gram; a factor, two solutions, eigenvectors, a third solution.
    stage->once[Work::kSolver] +=
        consumers_ * h * h * outputs + Cube(h) / 3 + 2 * Cube(h) + 4.0 / 3 * Cube(h) + 5 * h * h * side_;
    return 8 * (6 * h * h + h * outputs);
  }

  StageWork Training() const {
    const double rows = options_.training_tokens > 0
                            ? std::min(rows_, static_cast<double>(options_.training_tokens) / kTrainShare)
                            : rows_;
    StageWork stage{.stage = Stage::kTraining, .most = MostFits()};
    const auto inputs = static_cast<double>(net_.inputs), width = static_cast<double>(net_.width);
    double largest = 0;
    for (const AludelGroup& group : groups_) {
      const double out = Outputs(group);
      double& network = stage.once[Work::kNetwork];
      // Reading: codes, for the scales of every fourth row, too; then targets in their metric.
      network += consumers_ * rows *
                 (1.25 * (2 * (out + encoded_side_) * static_cast<double>(net_.rank) + SideFlops()) +
                  (senses_ ? 2 * out * out : 0));
      if (options_.linear) {
        const auto ridges = static_cast<double>(RidgesTried(options_.training.ridges.size()));
        stage.once[Work::kMoments] +=
            consumers_ * kTrainShare * rows * (2 * inputs * inputs + 2 * inputs * out);
        stage.once[Work::kSolver] += consumers_ * ridges * (Cube(inputs) / 3 + 2 * inputs * inputs * out);
        network += consumers_ * rows * (kTrainShare + (1 - kTrainShare) * ridges) * 2 * inputs * out;
      } else {
        network += consumers_ *
                   static_cast<double>(
                       options_.training.steps *
                       std::min<int64_t>(options_.training.batch, static_cast<int64_t>(kTrainShare * rows))) *
                   TrainingFlops(net_.inputs, net_.width, static_cast<int64_t>(out));
        network += consumers_ * rows * 2 * width * (inputs + out);
      }
      // Rows in bf16; weights, their gradient and Adam's moments; or moments in f64 and what solvers copy.
      const double fit =
          options_.linear ? 8 * (2 * inputs * inputs + 3 * inputs * out) : 5 * 4 * NetNumbers(group);
      largest = std::max(largest, rows * (inputs + out) * 2 + fit);
    }
    stage.memory = models_ + Held() + largest;
    // Those of all fits stay until the end, and a new one is written beside the old; patience keeps the best net, too.
    const double kept = (kCheckpoint + (options_.training.patience > 0 ? 1 : 0)) * NetBytes();
    if (!options_.linear) stage.disk = (static_cast<double>(stage.most) * consumers_ + 1) * kept;
    return stage;
  }

  StageWork Tuning() const {
    StageWork stage{.stage = Stage::kTuning, .most = MostFits()};
    if (input_.by_passages) {
      const PassagePlan plan =
          CountPassages(config_, job_.base.consumers.size(), input_.more, options_.passages, TuningType(),
                        Recomputed(), RecomputedOf(input_).tail);
      stage.once[Work::kPrefill] = 2 * plan.prefills;
      stage.once[Work::kTail] = 2 * plan.tails;
      stage.once[Work::kLoad] = consumers_ * Parameters(config_);
      stage.memory =
          models_ + Held() + static_cast<double>(plan.memory) + kRowBuffers * longest_ * columns_ * 4;
      stage.disk = static_cast<double>(Structures()) * static_cast<double>(plan.disk);
      return stage;
    }
    const Prompts own =
        input_.train.first(static_cast<size_t>(kTrainShare * static_cast<double>(input_.train.size())));
    const auto passes = static_cast<double>(TuningPasses(options_));
    const double chunks = std::ceil(static_cast<double>(input_.more.size()) / kTuningChunk);
    if (passes > 0) Tune(own, passes, &stage);
    Tune(input_.more, 1, &stage);
    stage.once[Work::kPrefill] += (1 + consumers_) * Prefills(input_.more, config_.layers);
    stage.once[Work::kLoad] += consumers_ * ((passes > 0 ? 1 : 0) + chunks) * Parameters(config_);
    stage.memory = models_ + Held() + HostModel(DType::kF32) + consumers_ * 4 * NetBytes() +
                   kRowBuffers * longest_ * (columns_ + static_cast<double>(net_.inputs + net_.width)) * 4;
    const Prompts chunk = input_.more.first(std::min(input_.more.size(), kTuningChunk));
    stage.disk = (1 + consumers_) * static_cast<double>(StateBytes(config_, SideLayers(),
                                                                   static_cast<int64_t>(Tokens(chunk)))) +
                 static_cast<double>(stage.most + 1) * consumers_ * kCheckpoint * NetBytes();
    return stage;
  }

  // Answers, a pass for each token, taken to be half as long as one of all of them; then the consumer on its own cache,
  // and forward and back on the decoded one, for the answer and for a stretch.
  void Tune(Prompts prompts, double passes, StageWork* stage) const {
    const auto stretch =
        static_cast<double>(options_.tuning.stretch_weight > 0 ? options_.tuning.stretch : 0);
    stage->once[Work::kTail] += consumers_ * ((passes * 4 + (answer_ + 1) / 2) * Tails(prompts, 1, answer_) +
                                              passes * 4 * Tails(prompts, kStretchAt, stretch));
    double per_token = 0;
    for (const AludelGroup& group : groups_) {
      per_token += 2 * (Outputs(group) + encoded_side_) * static_cast<double>(net_.rank) + SideFlops() +
                   3 * NetFlops(group);
    }
    stage->once[Work::kNetwork] +=
        consumers_ * passes * (1 + (stretch > 0 ? kStretchAt : 0)) * Tokens(prompts) * per_token;
  }

  StageWork Measurement() const {
    StageWork stage{.stage = Stage::kMeasurement, .most = MostFits()};
    if (searches()) {
      stage.least = 1 + kMeasuresOfSearch;
      stage.most += kMeasuresOfSearch * (1 + kTrialsOfSearch);
    }
    stage.once[Work::kPrefill] =
        consumers_ * (Prefills(input_.held_out, config_.layers) +
                      Prefills(input_.held_out, std::max(0, options_.recomputed_layers)) +
                      Tails(input_.held_out, 1, answer_));
    stage.once[Work::kNetwork] = consumers_ * Tokens(input_.held_out) * CodeFlops();
    stage.memory = models_ + Held();
    return stage;
  }

  // The new files beside what is there, which is copied before the switch.
  StageWork Writing() const {
    StageWork stage{.stage = Stage::kWriting, .memory = models_ + Held()};
    double numbers = 0;
    for (const AludelGroup& group : groups_) {
      numbers +=
          (Outputs(group) + encoded_side_) * static_cast<double>(net_.rank) + consumers_ * NetNumbers(group);
    }
    numbers += consumers_ * SideFlops() / 2;
    const double bytes = job_.base.storage == MatrixStorage::kF32    ? 4
                         : job_.base.storage == MatrixStorage::kBf16 ? 2
                                                                     : 1;
    stage.disk = numbers * bytes + input_.artifact_bytes;
    return stage;
  }

  const PlanInput& input_;
  const AludelJob& job_;
  const ModelConfig& config_;
  const double answer_, consumers_;
  const double columns_;  // of a cache row
  const NetShape net_;
  AludelOptions options_;
  std::vector<AludelGroup> groups_;
  double side_ =
      0;  // columns of side information in fits and decoders; of an extended format, at most so many
  double encoded_side_ = 0;  // and in encoders, which have all of H
  double models_ = 0, gpu_models_ = 0, train_tokens_ = 0, rows_ = 0, longest_ = 0;
  bool senses_ = false, tunes_ = false;
};

}  // namespace

absl::string_view Name(Stage stage) {
  constexpr std::array<absl::string_view, kStages> kNames = {"loading",     "prefills",    "held-out answers",
                                                             "sensitivity", "encoders",    "training",
                                                             "tuning",      "measurement", "writing"};
  return kNames[static_cast<size_t>(stage)];
}

absl::string_view Name(Work work) {
  constexpr std::array<absl::string_view, kWorks> kNames = {"prefill", "decode", "tail", "network",
                                                            "moments", "solver", "load"};
  return kNames[static_cast<size_t>(work)];
}

std::vector<StageWork> CountWork(const PlanInput& input, double answer_tokens) {
  return Counter(input, answer_tokens).Count();
}

double Parameters(const ModelConfig& config) {
  const double layer =
      static_cast<double>(config.hidden) * (2.0 * config.q_dim() + 2.0 * config.kv_dim() + 3.0 * config.ffn);
  return config.layers * layer +
         static_cast<double>(config.vocab) * config.hidden * (config.tied_embeddings ? 1 : 2);
}

RecomputedTokens RecomputedOf(const PlanInput& input) {
  if (input.extended.has_value()) return {input.extended->head_tokens, input.extended->tail_tokens};
  return {input.job.head_tokens < 0 ? kHeadTokens : input.job.head_tokens,
          std::max<int64_t>(0, input.job.tail_tokens)};
}

double TailFlops(const ModelConfig& config, double cached, double tokens) {
  const auto begin = static_cast<int64_t>(cached);
  return LayerFlops(config, config.layers, begin, begin + static_cast<int64_t>(std::ceil(tokens))) +
         std::ceil(tokens) * 2 * config.hidden * config.vocab;
}

double TrainingFlops(int64_t inputs, int64_t width, int64_t outputs) {
  // Forward, the weights' gradients, and the slope of the hidden layer.
  return 4.0 * static_cast<double>(inputs * width) + 6.0 * static_cast<double>(width * outputs);
}

double EncoderSolverFlops(double main, double side, double outputs, double rank) {
  const double elimination = Cube(side) / 3 + 2 * side * main * (side + main + outputs);
  const double basis = Cube(main) / 3 + 2 * main * main * outputs;
  const double eigenvectors = 4.0 / 3 * Cube(main) + (4 * main + 2 * side) * main * rank;
  return elimination + basis + eigenvectors;
}

NetShape PlannedNet(const PlanInput& input) {
  const AludelJob& job = input.job;
  const ModelConfig& config = input.config;
  AludelShape shape;
  const double raw = 2.0 * config.layers * config.kv_dim() * sizeof(Bf16);
  if (input.extended.has_value()) {
    shape = *input.extended;
  } else {
    AludelOptions options = job.options;
    options.recomputed_layers = job.recomputed_layers.value_or(0);
    shape.recomputed_layers = options.recomputed_layers;
    shape.groups = MakeGroups(config, shape.recomputed_layers, options.group_layers);
    const int64_t rank = MostRank(job.bytes_per_token.value_or(raw / 16), config, shape.groups, options);
    for (AludelGroup& group : shape.groups) {
      group.rank = std::min<int64_t>(rank, int64_t{group.layers} * 2 * config.kv_dim());
    }
  }
  NetShape net;
  for (const AludelGroup& group : shape.groups) {
    net.rank = std::max(net.rank, group.rank);
    net.outputs = std::max(net.outputs, int64_t{group.layers} * 2 * config.kv_dim());
  }
  AludelOptions options = job.options;
  options.recomputed_layers = shape.recomputed_layers;
  net.inputs = net.rank + SideColumns(config, options);
  net.width = job.options.linear || input.linear ? 0 : DecoderWidth(job.options, config, shape);
  return net;
}

}  // namespace aludel
