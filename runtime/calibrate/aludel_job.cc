#include "runtime/calibrate/aludel_job.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/device_health.h"
#include "runtime/calibrate/aludel/code_range_meter.h"
#include "runtime/calibrate/aludel_candidate.h"
#include "runtime/calibrate/aludel_format.h"
#include "runtime/calibrate/aludel_inputs.h"
#include "runtime/calibrate/calibration_setup.h"
#include "runtime/calibrate/candidate_search.h"
#include "runtime/calibrate/handoff_probe.h"
#include "runtime/calibrate/plan/budget.h"
#include "runtime/calibrate/plan/calibration_report.h"
#include "runtime/calibrate/plan/job_plan.h"
#include "runtime/calibrate/tune_aludel.h"
#include "runtime/calibrate/tune_passages_job.h"
#include "runtime/codec/aludel/encode.h"
#include "runtime/codec/aludel/latent_packing.h"
#include "runtime/codec/aludel/reconstruct.h"
#include "runtime/codec/artifact/artifact.h"
#include "runtime/codec/artifact/artifact_files.h"
#include "runtime/status_macros.h"
#include "runtime/tool/progress.h"

namespace aludel {
namespace {

CalibrationProgress ProgressOf(ProgressBar& bar) {
  return [&bar](absl::string_view stage, int64_t done, int64_t total) {
    if (!stage.empty()) bar.Update(stage, done, total);
    return !StopAsked();
  };
}

// Whether a group keeps all latents of its fit, and the rate would have let it have more.
bool ShareBounds(const AludelCandidate& candidate, double bytes, const AludelAnalysis& analysis,
                 const ModelConfig& config, AludelOptions options) {
  options.compute_share = 1;  // as good as none
  options.recomputed_layers = candidate.shape.recomputed_layers;
  const int64_t most = MostRank(bytes, config, candidate.shape.groups, options);
  for (size_t g = 0; g < candidate.shape.groups.size(); ++g) {
    const int64_t fitted = analysis.encoders[g].matrix.rows;
    if (candidate.shape.groups[g].rank == fitted && fitted < most &&
        fitted < int64_t{2} * config.kv_dim() * candidate.shape.groups[g].layers) {
      return true;
    }
  }
  return false;
}

// Fits structures at rates to the inputs of one job.
class AludelFitter : public CandidateFitter {
 public:
  AludelFitter(const AludelJob& job, const AludelInputs& inputs, ProgressBar& bar, StageMeter& meter)
      : job_(job), inputs_(inputs), bar_(bar), meter_(meter) {}

  // All that were fitted and measured, without weights.
  const std::vector<AludelCandidate>& tried() const { return tried_; }

  absl::StatusOr<AludelCandidate> Fit(int recomputed_layers, double bytes) override {
    ALUDEL_ASSIGN_OR_RETURN(const AludelAnalysis* analysis, Analysis(recomputed_layers, bytes));
    AludelCandidate candidate;
    candidate.shape.recomputed_layers = recomputed_layers;
    candidate.shape.packing = job_.options.packing;
    if (job_.options.packing == LatentPacking::kEmbedded) candidate.shape.planes = job_.options.planes;
    candidate.shape.head_tokens = inputs_.head_tokens;
    candidate.shape.tail_tokens = std::max<int64_t>(0, job_.tail_tokens);
    candidate.shape.groups =
        MakeGroups(inputs_.producer->config(), recomputed_layers, job_.options.group_layers);
    candidate.encoder = QuantizeTo(bytes, *analysis, &candidate.shape);
    if (ShareBounds(candidate, bytes, *analysis, inputs_.producer->config(), job_.options)) {
      bar_.Break();
      PrintLine(
          "warning: at this rate more latents would be kept than --compute-share pays for: with a larger one "
          "the same bytes may lose less");
    }
    for (size_t g = 0; g < candidate.encoder.size(); ++g) {
      candidate.spectra.push_back(
          MakeSpectrum(analysis->energies[g], candidate.shape.groups[g], candidate.encoder[g].grid.step));
    }
    ALUDEL_RETURN_IF_ERROR(FitDecoders(*analysis, &candidate));
    ALUDEL_RETURN_IF_ERROR(Measure(&candidate));
    Report(candidate);
    return candidate;
  }

  // The job's consumers to the encoder that is there.
  absl::StatusOr<AludelCandidate> FitConsumers(OldFormat old) {
    AludelCandidate candidate;
    candidate.shape = std::move(old.shape);
    candidate.encoder = std::move(old.encoder);
    old_decoders_ = std::move(old.decoders);
    AludelAnalysis analysis;
    analysis.side = std::move(old.side);
    ALUDEL_ASSIGN_OR_RETURN(analysis.metrics,
                            MetricsOf(inputs_.states, candidate.shape.groups, job_.options));
    ALUDEL_RETURN_IF_ERROR(FitDecoders(analysis, &candidate));
    ALUDEL_RETURN_IF_ERROR(Measure(&candidate));
    Report(candidate);
    return candidate;
  }

  absl::Status Measure(AludelCandidate* candidate) override {
    meter_.Begin(Stage::kMeasurement);
    candidate->measured.clear();
    CodeRangeMeter codes(candidate->shape, candidate->encoder);
    ALUDEL_ASSIGN_OR_RETURN(const auto encoder, MakeAludelEncoders("candidate", "", candidate->shape,
                                                                   candidate->encoder, *inputs_.producer));
    for (size_t c = 0; c < inputs_.consumers.size(); ++c) {
      ALUDEL_ASSIGN_OR_RETURN(const auto decoder,
                              MakeAludelDecoders("candidate", "", candidate->shape,
                                                 candidate->decoders[c].weights, *inputs_.consumers[c]));
      ALUDEL_ASSIGN_OR_RETURN(
          const HandoffProbe::Result result,
          inputs_.probes[c]->Measure(*encoder, *decoder,
                                     [&codes](const WireFrame& frame) { return codes.Add(frame); }));
      candidate->measured.push_back(result);
    }
    candidate->range = codes.range();
    return absl::OkStatus();
  }

  double BytesAt(const AludelCandidate& candidate, float step) override {
    AludelShape cut = candidate.shape;
    return EstimateBytes(QuantizeAt(step, analysis_, &cut), cut.packing, analysis_.samples);
  }

 private:
  bool tunes() const { return TuningPasses(job_.options) > 0 || !inputs_.more_prompts.empty(); }

  // With water-filling analysis depends on the recomputed layers alone, and every rate tried shares it; with
  // uniform bits the rate is the rank.
  absl::StatusOr<const AludelAnalysis*> Analysis(int recomputed_layers, double bytes) {
    if (job_.options.allocation == BitAllocation::kWaterFilling) {
      if (analyzed_ == recomputed_layers) return &analysis_;
      bytes = std::max(bytes, inputs_.raw_bytes() / 16);
    }
    meter_.Begin(Stage::kEncoders);
    AludelOptions options = job_.options;
    options.recomputed_layers = recomputed_layers;
    const auto groups = MakeGroups(inputs_.producer->config(), recomputed_layers, options.group_layers);
    ALUDEL_ASSIGN_OR_RETURN(analysis_, AnalyzeAludel(inputs_.states, inputs_.producer->config(), groups,
                                                     options, bytes, ProgressOf(bar_)));
    analyzed_ = recomputed_layers;
    return &analysis_;
  }

  absl::Status FitDecoders(const AludelAnalysis& analysis, AludelCandidate* candidate) {
    if (!job_.retune) meter_.Begin(Stage::kTraining);
    AludelOptions options = job_.options;
    const double later = options.time.fits - 1 - static_cast<double>(tried_.size());
    options.time.later_seconds = std::max(0.0, later) * options.time.fit_seconds();
    std::vector<TrainedDecoder> trained;
    for (size_t c = 0; c < inputs_.consumers.size(); ++c) {
      if (job_.retune) {
        trained.push_back(OldDecoder(*candidate, c, analysis.metrics[c]));
        continue;
      }
      ALUDEL_ASSIGN_OR_RETURN(
          TrainedDecoder decoder,
          TrainAludelDecoder(candidate->encoder, candidate->shape, inputs_.states, c, analysis.metrics[c],
                             analysis.side, inputs_.consumers[c]->config(), options, ProgressOf(bar_)));
      trained.push_back(std::move(decoder));
    }
    std::vector<TuningResult> tuned;
    if (tunes()) {
      meter_.Begin(Stage::kTuning);
      const auto tune = inputs_.by_passages ? TuneByPassages : TuneAludelDecoders;
      AludelTuning tuning = TuningOf(job_, inputs_);
      tuning.time = options.time;
      ALUDEL_ASSIGN_OR_RETURN(tuned, tune(tuning, candidate->encoder, candidate->shape, analysis.metrics,
                                          ProgressOf(bar_), &trained));
      if (tuned.empty()) {
        bar_.Break();
        PrintLine("decoders are as they were trained: --budget was over before they could be tuned");
      }
    }
    for (size_t c = 0; c < inputs_.consumers.size(); ++c) {
      FittedDecoder fitted{{}, trained[c].train_error, trained[c].held_out_error, trained[c].width,
                           {}, trained[c].layers,      trained[c].steps,          trained[c].cut_from};
      if (!tuned.empty()) fitted.tuned = tuned[c];
      fitted.weights = FoldDecoder(std::move(trained[c]), candidate->encoder, analysis.metrics[c]);
      candidate->decoders.push_back(std::move(fitted));
    }
    return absl::OkStatus();
  }

  // What is there of it, for --retune.
  TrainedDecoder OldDecoder(const AludelCandidate& candidate, size_t consumer,
                            const std::vector<TargetMetric>& metrics) {
    AludelDecoderWeights& old = old_decoders_[consumer];
    std::vector<InputScale> scales =
        MeasureDecoderInputs(candidate.encoder, candidate.shape, old.side, *inputs_.states.producer,
                             *inputs_.states.consumers[consumer]);
    return UnfoldDecoder(std::move(old), std::move(scales), metrics);
  }

  void Report(const AludelCandidate& candidate) {
    bar_.Break();
    for (size_t c = 0; c < inputs_.consumers.size(); ++c) {
      PrintLine(candidate.Describe(c, ModelName(job_.base.consumers[c]), inputs_.raw_bytes()));
    }
    std::fflush(stdout);
    meter_.End();
    tried_.push_back(Findings(candidate));
  }

  const AludelJob& job_;
  const AludelInputs& inputs_;
  ProgressBar& bar_;
  StageMeter& meter_;
  std::vector<AludelCandidate> tried_;
  std::vector<AludelDecoderWeights> old_decoders_;  // [consumers] for --retune
  AludelAnalysis analysis_;
  std::optional<int> analyzed_;
};

absl::StatusOr<AludelCandidate> Search(const AludelJob& job, const AludelInputs& inputs,
                                       AludelFitter& fitter) {
  const SearchGoal goal{.max_kl = *job.max_kl,
                        .raw_bytes = inputs.raw_bytes(),
                        .fewest_recomputed = job.recomputed_layers.value_or(0),
                        .most_recomputed = inputs.most_recomputed,
                        .time_is_up = [&job] { return job.options.time.Over(); }};
  ALUDEL_ASSIGN_OR_RETURN(AludelCandidate chosen, FindCandidate(goal, fitter));
  PrintLine(absl::StrFormat(
      "loss %.4f asked, %.4f (at most %.4f) bought for %.1f bytes/token and %d recomputed layers",
      goal.max_kl, chosen.kl(), chosen.kl_bound(), chosen.bytes(), chosen.shape.recomputed_layers));
  return chosen;
}

// Linear decoders learn from more prompts by corrections of low rank, unless all weights are asked for.
bool TunesByPassages(const AludelJob& job, const OldFormat& old, const AludelInputs& inputs) {
  const auto linear = [](const AludelDecoderWeights& decoder) {
    return std::all_of(decoder.groups.begin(), decoder.groups.end(),
                       [](const AludelDecoderGroup& group) { return group.hidden.rows == 0; });
  };
  return !inputs.more_prompts.empty() && job.options.passages.rank > 0 && job.options.tuning.passes <= 0 &&
         (job.retune ? std::all_of(old.decoders.begin(), old.decoders.end(), linear) : job.options.linear);
}

// Fits that turn out slower than planned are shortened. `meter` must outlive the job.
void LimitTime(const CalibrationPlan& plan, const StageMeter& meter, AludelJob* job) {
  if (job->budget <= 0) return;
  double training = 0, tuning = 0, rest = 0;
  for (const PlannedStage& stage : plan.stages) {
    const double once = stage.most_seconds / static_cast<double>(stage.work.most);
    if (stage.work.stage == Stage::kTraining) training = once;
    if (stage.work.stage == Stage::kTuning) tuning = once;
    if (stage.work.stage == Stage::kMeasurement || stage.work.stage == Stage::kWriting) rest += once;
  }
  const double budget = job->budget;
  TimeLimit& time = job->options.time;
  time = {.budget = budget,
          .seconds_left = [budget, &meter] { return budget - meter.Seconds(); },
          .training_seconds = training,
          .tuning_seconds = tuning,
          .rest_seconds = rest};
  // What a plan's range leaves beside one fit.
  const double more = ExpectedSeconds(plan) - plan.least_seconds;
  if (more > 0 && time.fit_seconds() > 0) time.fits += more / time.fit_seconds();
}

}  // namespace

absl::Status RunAludelJob(const AludelJob& asked, Device* device) {
  ProgressBar bar;
  StageMeter meter;
  AludelJob job = asked;
  // Without a packing's library steps would be chosen by sizes that are not its own, and the first measurement, hours later, fail.
  if (!Extends(job)) ALUDEL_RETURN_IF_ERROR(CheckPacking(job.options.packing));
  job.options.training.patience = job.patience.value_or(job.budget > 0 ? kBudgetPatience : 0);
  ALUDEL_ASSIGN_OR_RETURN(AludelInputs inputs, LoadTexts(job));
  if (FreeDeviceMemory(device->name()).has_value()) inputs.gpu = device->name();
  if (job.max_device_memory > 0 && inputs.gpu.empty() && job.device_flops <= 0) {
    return absl::InvalidArgumentError("--max-device-memory is of a GPU: it goes with --device cuda:N");
  }
  ALUDEL_ASSIGN_OR_RETURN(const std::optional<ArtifactManifest> old, FindArtifact(job.base.out));
  const ModelConfig& config = inputs.config;
  if (inputs.most_recomputed < -1 || inputs.most_recomputed > config.layers - 2) {
    return absl::InvalidArgumentError(absl::StrFormat("--recomputed-layers is %d, want -1 to %d",
                                                      inputs.most_recomputed, config.layers - 2));
  }
  if (job.options.side_rank > config.hidden) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--side-rank is %d, want at most %d, the width of the models", job.options.side_rank, config.hidden));
  }
  std::string groups;
  {
    ALUDEL_ASSIGN_OR_RETURN(const PlanInput plan, PlanOfJob(job, inputs, old));
    groups = GroupLayersPath(plan, inputs);
    job.options.group_layers = GroupLayersOfJob(plan, inputs);  // of the plan, too, which sees the job
    ALUDEL_RETURN_IF_ERROR(CheckRoomOfJob(plan, inputs));
    if (job.device_flops > 0) {
      return PrintPlanOfDevice(plan);
    }
  }
  meter.Begin(Stage::kLoading);
  ALUDEL_RETURN_IF_ERROR(LoadModels(job, device, &inputs));
  meter.End();
  ModelHashes models{.producer = inputs.producer->hash()};
  for (const auto& consumer : inputs.consumers) models.consumers.push_back(consumer->hash());
  OldFormat extended;
  if (Extends(job)) {
    ALUDEL_ASSIGN_OR_RETURN(extended,
                            LoadOldFormat(job, old, FormatName(job, inputs.most_recomputed), models, config));
    ALUDEL_RETURN_IF_ERROR(CheckPacking(extended.shape.packing));
    inputs.most_recomputed = extended.shape.recomputed_layers;
    inputs.head_tokens = extended.shape.head_tokens;
  }
  ALUDEL_ASSIGN_OR_RETURN(const TimedPlan timed, PlanOnMachine(old, &job, &inputs));
  if (job.dry_run) return absl::OkStatus();
  inputs.by_passages = TunesByPassages(job, extended, inputs);
  if (inputs.by_passages) job.options.tuning.passes = 0;
  LimitTime(timed.plan, meter, &job);
  job.options.checkpoints = inputs.work;
  ALUDEL_RETURN_IF_ERROR(KeepGroupLayers(groups, job.options.group_layers));
  ALUDEL_RETURN_IF_ERROR(CollectStates(job, ProgressOf(bar), &meter, &inputs));

  AludelFitter fitter(job, inputs, bar, meter);
  absl::StatusOr<AludelCandidate> chosen =
      Extends(job)             ? fitter.FitConsumers(std::move(extended))
      : job.max_kl.has_value() ? Search(job, inputs, fitter)
                               : fitter.Fit(job.recomputed_layers.value_or(0),
                                            job.bytes_per_token.value_or(inputs.raw_bytes() / 16));
  ALUDEL_RETURN_IF_ERROR(chosen.status());
  if (StopAsked()) return absl::CancelledError("calibration was interrupted");
  meter.Begin(Stage::kWriting);
  ALUDEL_ASSIGN_OR_RETURN(
      const std::string name,
      SaveFormat(job, old, models, {*chosen, inputs.prompts, inputs.more_prompts.size()}));
  meter.End();
  PrintLine(absl::StrFormat("wrote %s: format %s", job.base.out, name));
  CalibrationReport report{.format = name,
                           .prompts = DescribePrompts(inputs),
                           .budget = timed.budget,
                           .plan = timed.plan,
                           .tried = fitter.tried(),
                           .chosen = Findings(*chosen),
                           .raw_bytes = inputs.raw_bytes()};
  for (const std::string& consumer : job.base.consumers) report.consumers.push_back(ModelName(consumer));
  std::printf("%s", report.PlanAndActual(meter).c_str());
  const std::string directory = absl::StrCat(job.base.out, ".report");
  // The artifact is there: a report that is not must not make the job look as if it had failed.
  const absl::Status reported = WriteReport(directory, report, meter);
  PrintLine(reported.ok() ? absl::StrFormat("report: %s/%s.txt and .json", directory, name)
                          : absl::StrCat("warning: there is no report: ", reported.message()));
  std::error_code ignored;
  if (!job.keep_work) std::filesystem::remove_all(inputs.work, ignored);
  return absl::OkStatus();
}

}  // namespace aludel
