#include "runtime/calibrate/plan/work_rates.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <random>

#include "absl/cleanup/cleanup.h"
#include "runtime/calibrate/aludel/gradient/cache_gradient.h"
#include "runtime/calibrate/aludel/state_file.h"
#include "runtime/calibrate/aludel/train_decoder.h"
#include "runtime/calibrate/fit/dense.h"
#include "runtime/calibrate/tune_passages_job.h"
#include "runtime/codec/handoff.h"
#include "runtime/evaluate/compute_share.h"
#include "runtime/evaluate/oracle.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr double kEnough = 0.4;  // seconds of a measurement
constexpr size_t kMostPrompts = 16;
constexpr size_t kAnswers = 3;
// The first closed form that is measured has so small a part of the job's columns; larger ones are no slower a FLOP.
constexpr int64_t kSolverParts = 16;

double SecondsOf(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// A second's repetitions of what `body` does, the first of which only warms caches.
double PerSecond(double amount, const std::function<void()>& body) {
  const double first = SecondsOf(body);
  if (first >= kEnough) return amount / first;
  const auto times =
      std::clamp(static_cast<int64_t>(kEnough / std::max(first, 1e-6)), int64_t{1}, int64_t{256});
  const double took = SecondsOf([&] {
    for (int64_t i = 0; i < times; ++i) body();
  });
  return amount * static_cast<double>(times) / took;
}

std::vector<float> Noise(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random() >> 40) * 0x1p-23f - 1.0f;
  return values;
}

std::vector<Bf16> Narrow(const std::vector<float>& values) {
  std::vector<Bf16> narrow;
  narrow.reserve(values.size());
  for (const float value : values) narrow.push_back(ToBf16(value));
  return narrow;
}

// Of the training prompts, those nearest to the median length.
std::vector<std::vector<int32_t>> TypicalPrompts(absl::Span<const std::vector<int32_t>> prompts) {
  std::vector<const std::vector<int32_t>*> sorted;
  for (const auto& prompt : prompts) sorted.push_back(&prompt);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->size() < b->size(); });
  const size_t count = std::min(kMostPrompts, sorted.size());
  const size_t begin = (sorted.size() - count) / 2;
  std::vector<std::vector<int32_t>> typical;
  for (size_t i = begin; i < begin + count; ++i) typical.push_back(*sorted[i]);
  return typical;
}

class Pilot {
 public:
  Pilot(const PlanInput& input, Transformer& consumer, std::string work)
      : input_(input),
        config_(input.config),
        consumer_(consumer),
        directory_(std::move(work) + "/pilot"),
        prompts_(TypicalPrompts(input.train)),
        net_(PlannedNet(input)) {}

  absl::StatusOr<WorkRates> Run() {
    const auto tidy = absl::MakeCleanup([this] { Remove(); });
    Remove();  // states that a killed run has left would be found and not computed
    rates_.per_second[Work::kLoad] = Parameters(config_) / std::max(consumer_.load_report().seconds, 1e-3);
    ALUDEL_RETURN_IF_ERROR(Prefills());
    ALUDEL_RETURN_IF_ERROR(Answers());
    const std::vector<StageWork> stages = CountWork(input_, rates_.answer_tokens);
    const bool back = std::any_of(stages.begin(), stages.end(),
                                  [](const StageWork& stage) { return stage.once[Work::kTail] > 0; });
    rates_.per_second[Work::kTail] = rates_.per_second[Work::kPrefill];
    const bool senses = std::any_of(stages.begin(), stages.end(), [](const StageWork& stage) {
      return stage.stage == Stage::kSensitivity;
    });
    if (back) ALUDEL_RETURN_IF_ERROR(input_.by_passages && !senses ? PassagePasses() : Tails());
    const bool solves = std::any_of(stages.begin(), stages.end(),
                                    [](const StageWork& stage) { return stage.once[Work::kSolver] > 0; });
    ALUDEL_RETURN_IF_ERROR(Networks());
    return Fits(solves);
  }

 private:
  void Remove() const {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }

  static bool Ignore(absl::string_view, int64_t, int64_t) { return true; }

  // Through the files that it makes: writing them costs small models as much as computing.
  absl::Status Prefills() {
    absl::Status status;
    const int sides = config_.layers / 4 + 1;
    const auto measure = [&](absl::Span<const std::vector<int32_t>> prompts) {
      double flops = 0;
      for (const auto& prompt : prompts) {
        flops += LayerFlops(config_, config_.layers, 0, static_cast<int64_t>(prompt.size()));
      }
      const double seconds = SecondsOf([&] {
        status.Update(OpenStates(directory_, consumer_, prompts, sides, /*head=*/0, "", Ignore).status());
      });
      rates_.per_second[Work::kPrefill] = flops / seconds;
      return seconds;
    };
    const auto all = absl::MakeConstSpan(prompts_);
    const double first = measure(all.first(1));
    const auto more = static_cast<size_t>(kEnough / std::max(first, 1e-6));
    if (more > 0 && all.size() > 1) measure(all.subspan(1, more));
    return status;
  }

  absl::Status Answers() {
    const auto prompts = input_.held_out.first(std::min(input_.held_out.size(), kAnswers));
    const int most = input_.job.base.scd.max_answer_tokens;
    double flops = 0, seconds = 0, tokens = 0;
    for (const auto& prompt : prompts) {
      const auto cached = static_cast<int64_t>(prompt.size()) - 1;
      constexpr int kBlockTokens = 16;
      ALUDEL_ASSIGN_OR_RETURN(
          const auto pool,
          BlockPool::Create(consumer_.device(), consumer_.MakeKvLayout((cached + most) / kBlockTokens + 1,
                                                                       kBlockTokens, DType::kBf16)));
      BlockTable table;
      ALUDEL_RETURN_IF_ERROR(table.Grow(*pool, cached + 1 + most));
      ALUDEL_RETURN_IF_ERROR(RunTokens(consumer_, *pool, table.ids(), prompt, 0, cached, nullptr, nullptr));
      absl::StatusOr<Answer> answer;
      seconds += SecondsOf([&] { answer = AnswerGreedily(consumer_, *pool, table.ids(), prompt, most); });
      ALUDEL_RETURN_IF_ERROR(answer.status());
      const auto said = static_cast<double>(answer->tokens.size());
      tokens += said;
      flops += said * TailFlops(config_, static_cast<double>(cached), 1);
    }
    rates_.answer_tokens = std::max(1.0, tokens / static_cast<double>(prompts.size()));
    rates_.per_second[Work::kDecode] = flops / std::max(seconds, 1e-9);
    return absl::OkStatus();
  }

  // Of a prompt's answer.
  absl::Status Tails() {
    const auto cached = static_cast<int64_t>(prompts_[prompts_.size() / 2].size()) - 1;
    const auto tail = static_cast<int64_t>(std::ceil(rates_.answer_tokens));
    return TimePass(DType::kF32, cached, tail,
                    3 * TailFlops(config_, static_cast<double>(cached), static_cast<double>(tail)));
  }

  // Of the answers to all questions about a passage, which share the reading of the weights.
  absl::Status PassagePasses() {
    const DType matrices = input_.job.base.compute == DType::kF32 ? DType::kF32 : DType::kBf16;
    const PassagePlan plan = CountPassages(config_, /*consumers=*/1, input_.more, input_.job.options.passages,
                                           matrices, /*recomputed_layers=*/0, RecomputedOf(input_).tail);
    return TimePass(matrices, plan.pass_rows, plan.pass_tail, 2 * 2 * plan.pass);
  }

  // `flops` forward and back, with the matrices as the stages load them: memory was checked for that alone.
  absl::Status TimePass(DType matrices, int64_t cached, int64_t tail, double flops) {
    absl::StatusOr<std::unique_ptr<CacheGradient>> model;
    const double load = SecondsOf([&] {
      model = CacheGradient::Load(ModelPath::Parse(input_.job.base.consumers.front()), /*rope_length=*/0,
                                  matrices);
    });
    ALUDEL_RETURN_IF_ERROR(model.status());
    rates_.per_second[Work::kLoad] = Parameters(config_) / std::max(load, 1e-3);
    const std::vector<float> cache = Noise(cached * (*model)->columns(), 1);
    const std::vector<int32_t> ids(tail, prompts_.front().front());
    const std::vector<float> uniform(tail * config_.vocab, -std::log(static_cast<float>(config_.vocab)));
    std::vector<float> gradient;
    absl::Status status;
    rates_.per_second[Work::kTail] = PerSecond(flops, [&] {
      status.Update((*model)->Kl({cache, cached, ids}, uniform, &gradient).status());
    });
    return status;
  }

  absl::Status Networks() {
    DecoderTraining training = input_.job.options.training;
    const int64_t rows = training.batch;
    if (net_.width == 0) {
      DecoderNet net{
          HostMatrix::Zeros(net_.outputs, net_.inputs), std::vector<float>(net_.outputs), {}, {}, {}};
      const std::vector<float> u = Noise(rows * net_.inputs, 2);
      rates_.per_second[Work::kNetwork] =
          PerSecond(2.0 * static_cast<double>(rows * net_.inputs * net_.outputs),
                    [&] { RunDecoder(net, u.data(), rows); });
      return absl::OkStatus();
    }
    const auto made = [&](int64_t count) {
      return DecoderData{count,
                         net_.inputs,
                         net_.outputs,
                         Narrow(Noise(count * net_.inputs, 2)),
                         Narrow(Noise(count * net_.outputs, 3)),
                         {}};
    };
    const DecoderData train = made(rows), held_out = made(1);
    training.width = net_.width;
    training.patience = 0;  // noise gets no better, and the steps are counted
    absl::Status status;
    const auto seconds = [&](int64_t steps) {
      training.steps = steps;
      return SecondsOf([&] {
        status.Update(
            TrainDecoder(train, held_out, training, [](int64_t, int64_t) { return true; }).status());
      });
    };
    seconds(1);
    const double start = seconds(1), one = std::max(1e-6, (seconds(3) - start) / 2);
    const int64_t steps = std::clamp<int64_t>(static_cast<int64_t>(kEnough / one), 2, 64);
    const double step = std::max(1e-9, (seconds(1 + steps) - start) / static_cast<double>(steps));
    rates_.per_second[Work::kNetwork] =
        static_cast<double>(rows) * TrainingFlops(net_.inputs, net_.width, net_.outputs) / step;
    return status;
  }

  absl::StatusOr<WorkRates> Fits(bool solves) {
    const int64_t whole = std::min<int64_t>(net_.outputs + config_.hidden, 4096);
    constexpr int64_t kRows = 512;
    Moments gram = Moments::Zeros(whole, whole);
    const std::vector<float> rows = Noise(kRows * whole, 4);
    rates_.per_second[Work::kMoments] = PerSecond(2.0 * static_cast<double>(kRows * whole * whole),
                                                  [&] { AddGram(rows.data(), kRows, &gram); });
    if (solves) {
      ALUDEL_ASSIGN_OR_RETURN(rates_.per_second[Work::kSolver], MeasureSolverRate(input_, kEnough));
    }
    return rates_;
  }

  const PlanInput& input_;
  const ModelConfig& config_;
  Transformer& consumer_;
  const std::string directory_;
  const std::vector<std::vector<int32_t>> prompts_;
  const NetShape net_;
  WorkRates rates_;
};

}  // namespace

double WorkRates::Seconds(const WorkAmounts& work) const {
  double seconds = 0;
  for (size_t i = 0; i < work.values.size(); ++i) {
    if (work.values[i] > 0) seconds += work.values[i] / per_second.values[i];
  }
  return seconds;
}

absl::StatusOr<WorkRates> MeasureRates(const PlanInput& input, Transformer& consumer,
                                       const std::string& work) {
  return Pilot(input, consumer, work).Run();
}

absl::StatusOr<double> MeasureSolverRate(const PlanInput& input, double enough_seconds) {
  const NetShape net = PlannedNet(input);
  for (int64_t parts = kSolverParts;; parts /= 2) {
    const auto part = [parts](int64_t whole) { return std::max<int64_t>(1, whole / parts); };
    const int64_t main = part(net.outputs), side = net.inputs > net.rank ? part(net.inputs - net.rank) : 0;
    const int64_t columns = main + side, rank = std::min(part(net.rank), main);
    const int64_t rows = columns + columns / 4;
    Moments xx = Moments::Zeros(columns, columns), xy = Moments::Zeros(columns, main);
    {
      const std::vector<float> x = Noise(rows * columns, 5), y = Noise(rows * main, 6);
      AddGram(x.data(), rows, &xx);
      AddProduct(x.data(), y.data(), rows, &xy);
    }
    const double flops = EncoderSolverFlops(static_cast<double>(main), static_cast<double>(side),
                                            static_cast<double>(main), static_cast<double>(rank));
    absl::Status status;
    const auto solve = [&] { status.Update(FitInnovation(xx, main, xy, rank, 1e-5).status()); };
    const double seconds = SecondsOf(solve);
    ALUDEL_RETURN_IF_ERROR(status);
    if (seconds >= enough_seconds) return flops / seconds;
    if (parts == 1) return PerSecond(flops, solve);
  }
}

WorkRates RatesOfDevice(const ModelConfig& config, const DeviceSheet& device, DType compute,
                        double solver_rate, double answer_tokens) {
  const bool wide = compute == DType::kF32;
  const double weight_bytes = wide ? 4 : 2;
  const double products = device.share * (wide ? device.f32_flops : device.flops);
  WorkRates rates;
  rates.per_second[Work::kPrefill] = rates.per_second[Work::kTail] = products;
  rates.per_second[Work::kNetwork] = rates.per_second[Work::kMoments] = device.share * device.f32_flops;
  const double weights_a_second = device.share * device.bandwidth / (weight_bytes * Parameters(config));
  rates.per_second[Work::kDecode] = TailFlops(config, 0, 1) * weights_a_second;
  rates.per_second[Work::kSolver] = solver_rate;
  rates.per_second[Work::kLoad] = kReadBytes / weight_bytes;
  rates.answer_tokens = answer_tokens;
  return rates;
}

}  // namespace aludel
