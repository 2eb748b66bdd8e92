#include "runtime/calibrate/aludel_inputs.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/calibrate/aludel/sensitivity_file.h"
#include "runtime/calibrate/calibration_setup.h"
#include "runtime/calibrate/plan/machine_room.h"
#include "runtime/calibrate/tune_passages_job.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

void PrintTexts(const AludelJob& job, const AludelInputs& inputs) {
  const ModelConfig& config = inputs.config;
  const int64_t tokens = TokenCount(inputs.prompts.train);
  PrintLine(absl::StrFormat("producer %s, consumers %s; %s; states in %s", job.base.producer,
                            absl::StrJoin(job.base.consumers, ", "), DescribePrompts(inputs), inputs.work));
  if (inputs.by_passages) {
    const PassagePlan plan =
        CountPassages(config, inputs.consumers.size(), inputs.more_prompts, job.options.passages, DType::kF32,
                      std::max(0, inputs.most_recomputed), std::max<int64_t>(0, job.tail_tokens));
    PrintLine(absl::StrFormat("tuning: %d prompts about %d passages with %d tokens", plan.prompts,
                              plan.passages, plan.tokens));
  }
  const std::vector<AludelGroup> groups =
      MakeGroups(config, std::min(0, inputs.most_recomputed), job.options.group_layers);
  const int64_t side = inputs.most_recomputed < 0  ? 0
                       : job.options.side_rank > 0 ? job.options.side_rank
                                                   : config.hidden;
  const int64_t unknowns = side + groups.front().layers * 2 * config.kv_dim();
  if (tokens < 20 * unknowns) {
    PrintLine(absl::StrFormat("warning: %d tokens to fit maps of %d inputs; want at least %d, use more text",
                              tokens, unknowns, 20 * unknowns));
  }
  std::fflush(stdout);
}

// From the prompts that decoders are fitted to: held-out ones stay unseen.
absl::Status CollectSensitivities(const AludelJob& job, const CalibrationProgress& progress,
                                  AludelInputs& inputs) {
  const ModelConfig& config = inputs.producer->config();
  const auto kv_dim = static_cast<int>(config.kv_dim());
  // All layers together where a host holds that matrix, else layer by layer.
  const bool whole = int64_t{config.layers} * 2 * kv_dim <= kMaxGroupColumns;
  const int step = whole ? config.layers : 1;
  for (int layer = 0; layer < config.layers; layer += step) {
    inputs.states.ranges.push_back(CacheColumns::OfLayers(layer, step, kv_dim));
  }
  SensitivityOptions options;
  options.max_answer_tokens = job.base.scd.max_answer_tokens;
  options.seed = job.options.training.seed;
  options.head_tokens = inputs.head_tokens;
  const size_t count = std::min(inputs.prompts.train.size(), static_cast<size_t>(job.sensitivity_prompts));
  const auto prompts = absl::MakeConstSpan(inputs.prompts.train).first(count);
  for (size_t c = 0; c < inputs.consumers.size(); ++c) {
    const auto measure = [&]() -> absl::StatusOr<Sensitivity> {
      ALUDEL_ASSIGN_OR_RETURN(const auto gradients,
                              CacheGradient::Load(ModelPath::Parse(job.base.consumers[c])));
      return MeasureSensitivity(*inputs.consumers[c], *gradients, prompts, inputs.states.ranges, options,
                                progress);
    };
    ALUDEL_ASSIGN_OR_RETURN(
        Sensitivity sensitivity,
        OpenSensitivity(inputs.work, *inputs.consumers[c], prompts, inputs.states.ranges, options, measure));
    inputs.states.sensitivities.push_back(std::move(sensitivity));
  }
  return absl::OkStatus();
}

}  // namespace

double AludelInputs::raw_bytes() const { return 2.0 * config.layers * config.kv_dim() * sizeof(Bf16); }

absl::StatusOr<AludelInputs> LoadTexts(const AludelJob& job) {
  AludelInputs inputs;
  ALUDEL_ASSIGN_OR_RETURN(inputs.config, CheckPairs(job.base));
  const ModelConfig& config = inputs.config;
  ALUDEL_ASSIGN_OR_RETURN(inputs.prompts, LoadCalibrationPrompts(job.base, config));
  if (!job.tuning_data.empty()) {
    ALUDEL_ASSIGN_OR_RETURN(inputs.more_prompts, LoadPrompts(job.base, job.tuning_data, 0, config));
  }
  inputs.work = job.work.empty() ? absl::StrCat(job.base.out, ".work") : job.work;
  inputs.most_recomputed = job.recomputed_layers.value_or(job.max_kl.has_value() ? config.layers / 4 : 0);
  inputs.head_tokens = job.head_tokens < 0 ? kHeadTokens : job.head_tokens;
  inputs.process_bytes = static_cast<double>(HeldMemory());
  return inputs;
}

absl::Status LoadModels(const AludelJob& job, Device* device, AludelInputs* inputs) {
  ALUDEL_ASSIGN_OR_RETURN(inputs->producer, LoadForCalibration(job.base, device, job.base.producer));
  for (const std::string& directory : job.base.consumers) {
    ALUDEL_ASSIGN_OR_RETURN(auto consumer, LoadForCalibration(job.base, device, directory));
    inputs->consumers.push_back(std::move(consumer));
  }
  return absl::OkStatus();
}

std::string DescribePrompts(const AludelInputs& inputs) {
  return absl::StrFormat("%d prompts with %d tokens to fit, %d held out", inputs.prompts.train.size(),
                         TokenCount(inputs.prompts.train), inputs.prompts.held_out.size());
}

AludelTuning TuningOf(const AludelJob& job, const AludelInputs& inputs) {
  AludelTuning tuning;
  tuning.producer = inputs.producer.get();
  tuning.consumers = inputs.consumers;
  tuning.directories = job.base.consumers;
  tuning.states = &inputs.states;
  tuning.prompts = inputs.prompts.train;
  tuning.more_prompts = inputs.more_prompts;
  tuning.work = inputs.work;
  tuning.side_layers = std::max(inputs.most_recomputed, inputs.producer->config().layers / 4) + 1;
  tuning.max_answer_tokens = job.base.scd.max_answer_tokens;
  tuning.options = job.options.tuning;
  tuning.options.passes = TuningPasses(job.options);
  tuning.passages = job.options.passages;
  tuning.matrices = job.base.compute == DType::kF32 ? DType::kF32 : DType::kBf16;
  return tuning;
}

absl::Status CollectStates(const AludelJob& job, const CalibrationProgress& progress, StageMeter* meter,
                           AludelInputs* into) {
  AludelInputs& inputs = *into;
  PrintTexts(job, inputs);
  meter->Begin(Stage::kPrefills);
  // As many for every structure that a search may try, so that all runs share the files.
  const int sides = TuningOf(job, inputs).side_layers;
  ALUDEL_ASSIGN_OR_RETURN(inputs.states.producer,
                          OpenStates(inputs.work, *inputs.producer, inputs.prompts.train, sides,
                                     inputs.head_tokens, "producer prefills", progress));
  for (const auto& consumer : inputs.consumers) {
    ALUDEL_ASSIGN_OR_RETURN(auto states, OpenStates(inputs.work, *consumer, inputs.prompts.train, sides,
                                                    inputs.head_tokens, "consumers prefill", progress));
    inputs.states.consumers.push_back(std::move(states));
  }
  meter->Begin(Stage::kAnswers);
  for (const auto& consumer : inputs.consumers) {
    ALUDEL_ASSIGN_OR_RETURN(auto probe,
                            HandoffProbe::Create(*inputs.producer, *consumer, inputs.prompts.held_out,
                                                 job.base.scd.max_answer_tokens, progress));
    inputs.probes.push_back(std::move(probe));
  }
  inputs.states.ids = RowIds(inputs.prompts.train, inputs.head_tokens);
  if (job.sensitivity_prompts > 0 && !job.retune) {
    meter->Begin(Stage::kSensitivity);
    ALUDEL_RETURN_IF_ERROR(CollectSensitivities(job, progress, inputs));
  }
  meter->End();
  return absl::OkStatus();
}

}  // namespace aludel
