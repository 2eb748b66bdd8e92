#include "runtime/calibrate/aludel_job.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/calibrate/aludel/sensitivity_file.h"
#include "runtime/calibrate/aludel_candidate.h"
#include "runtime/calibrate/calibration_setup.h"
#include "runtime/calibrate/handoff_probe.h"
#include "runtime/calibrate/rate_search.h"
#include "runtime/calibrate/tune_aludel.h"
#include "runtime/codec/aludel/encode.h"
#include "runtime/codec/aludel/reconstruct.h"
#include "runtime/codec/aludel/weight_files.h"
#include "runtime/codec/artifact/artifact.h"
#include "runtime/codec/artifact/artifact_files.h"
#include "runtime/status_macros.h"
#include "runtime/tool/progress.h"

namespace aludel {
namespace {

constexpr int kBisections = 6;

class AludelCalibration {
 public:
  AludelCalibration(const AludelJob& job, Device* device) : job_(job), device_(device) {}

  absl::Status Run() {
    ALUDEL_RETURN_IF_ERROR(Prepare());
    if (extends()) {
      ALUDEL_RETURN_IF_ERROR(FitConsumers());
    } else if (job_.max_kl.has_value()) {
      ALUDEL_RETURN_IF_ERROR(Search());
    } else {
      const double bytes = job_.bytes_per_token.value_or(raw_bytes_ / 16);
      ALUDEL_ASSIGN_OR_RETURN(chosen_, Fit(job_.recomputed_layers.value_or(0), bytes));
    }
    ALUDEL_RETURN_IF_ERROR(Save());
    std::error_code ignored;
    if (!job_.keep_work) std::filesystem::remove_all(work_, ignored);
    return absl::OkStatus();
  }

 private:
  absl::Status Prepare() {
    ALUDEL_ASSIGN_OR_RETURN(producer_, LoadForCalibration(job_.base, device_, job_.base.producer));
    for (const std::string& directory : job_.base.consumers) {
      ALUDEL_ASSIGN_OR_RETURN(auto consumer, LoadForCalibration(job_.base, device_, directory));
      consumers_.push_back(std::move(consumer));
    }
    const ModelConfig& config = producer_->config();
    raw_bytes_ = 2.0 * config.layers * config.kv_dim() * sizeof(Bf16);
    ALUDEL_ASSIGN_OR_RETURN(prompts_, LoadCalibrationPrompts(job_.base, config));
    if (!job_.tuning_data.empty()) {
      ALUDEL_ASSIGN_OR_RETURN(more_prompts_, LoadPrompts(job_.base, job_.tuning_data, 0, config));
    }
    ALUDEL_ASSIGN_OR_RETURN(old_, FindArtifact(job_.base.out));
    work_ = job_.work.empty() ? absl::StrCat(job_.base.out, ".work") : job_.work;
    most_recomputed_ = job_.recomputed_layers.value_or(job_.max_kl.has_value() ? config.layers / 4 : 0);
    head_tokens_ = job_.head_tokens < 0 ? kHeadTokens : job_.head_tokens;
    if (extends()) ALUDEL_RETURN_IF_ERROR(LoadFormat());
    if (most_recomputed_ < -1 || most_recomputed_ > config.layers - 2) {
      return absl::InvalidArgumentError(
          absl::StrFormat("--recomputed-layers is %d, want -1 to %d", most_recomputed_, config.layers - 2));
    }
    PrintPlan();
    return CollectStates();
  }

  void PrintPlan() const {
    const ModelConfig& config = producer_->config();
    const int64_t tokens = TokenCount(prompts_.train);
    int64_t chunk = 0;  // of the text for tuning
    for (size_t i = 0; i < std::min(more_prompts_.size(), kTuningChunk); ++i) {
      chunk += static_cast<int64_t>(more_prompts_[i].size());
    }
    const size_t disk =
        StateBytes(config, std::max(most_recomputed_, config.layers / 4) + 1, tokens + chunk) *
        (1 + consumers_.size());
    const std::vector<AludelGroup> groups =
        MakeGroups(config, std::min(0, most_recomputed_), job_.options.group_layers);
    const size_t moments = EncoderFitBytes(config, most_recomputed_, groups.front(), consumers_.size());
    const size_t columns = config.hidden + groups.front().layers * 2 * config.kv_dim() + 512;
    PrintLine(absl::StrFormat(
        "producer %s, consumers %s; %d prompts with %d tokens to fit, %d held out; memory at peak about %s "
        "beside the models, %s of states in %s",
        job_.base.producer, absl::StrJoin(job_.base.consumers, ", "), prompts_.train.size(), tokens,
        prompts_.held_out.size(), MiB(std::max(moments, static_cast<size_t>(tokens) * columns * 2)),
        MiB(disk), work_));
    const int64_t unknowns = config.hidden + groups.front().layers * 2 * config.kv_dim();
    if (tokens < 20 * unknowns) {
      PrintLine(
          absl::StrFormat("warning: %d tokens to fit maps of %d inputs; want at least %d, use more text",
                          tokens, unknowns, 20 * unknowns));
    }
    std::fflush(stdout);
  }

  absl::Status CollectStates() {
    // As many for every structure that a search may try, so that all runs share the files.
    const int sides = std::max(most_recomputed_, producer_->config().layers / 4) + 1;
    ALUDEL_ASSIGN_OR_RETURN(states_.producer, OpenStates(work_, *producer_, prompts_.train, sides,
                                                         head_tokens_, "producer prefills", Progress()));
    for (const auto& consumer : consumers_) {
      ALUDEL_ASSIGN_OR_RETURN(auto states, OpenStates(work_, *consumer, prompts_.train, sides, head_tokens_,
                                                      "consumers prefill", Progress()));
      states_.consumers.push_back(std::move(states));
      ALUDEL_ASSIGN_OR_RETURN(auto probe, HandoffProbe::Create(*producer_, *consumer, prompts_.held_out,
                                                               job_.base.scd.max_answer_tokens, Progress()));
      probes_.push_back(std::move(probe));
    }
    states_.ids = RowIds(prompts_.train, head_tokens_);
    if (job_.sensitivity_prompts > 0 && !job_.retune) ALUDEL_RETURN_IF_ERROR(CollectSensitivities());
    return absl::OkStatus();
  }

  // An encoder that is there stays as it is.
  bool extends() const { return job_.base.add || job_.retune; }

  bool tunes() const {
    return (job_.options.tuning.passes > 0 || !more_prompts_.empty()) && !job_.options.linear;
  }

  // From the prompts that decoders are fitted to: held-out ones stay unseen.
  absl::Status CollectSensitivities() {
    const ModelConfig& config = producer_->config();
    const auto kv_dim = static_cast<int>(config.kv_dim());
    // All layers together where a host holds that matrix, else layer by layer.
    const bool whole = int64_t{config.layers} * 2 * kv_dim <= kMaxGroupColumns;
    const int step = whole ? config.layers : 1;
    for (int layer = 0; layer < config.layers; layer += step) {
      states_.ranges.push_back(CacheColumns::OfLayers(layer, step, kv_dim));
    }
    SensitivityOptions options;
    options.max_answer_tokens = job_.base.scd.max_answer_tokens;
    options.seed = job_.options.training.seed;
    options.head_tokens = head_tokens_;
    const size_t count = std::min(prompts_.train.size(), static_cast<size_t>(job_.sensitivity_prompts));
    const auto prompts = absl::MakeConstSpan(prompts_.train).first(count);
    for (size_t c = 0; c < consumers_.size(); ++c) {
      const auto measure = [&]() -> absl::StatusOr<Sensitivity> {
        ALUDEL_ASSIGN_OR_RETURN(const auto gradients,
                                CacheGradient::Load(ModelPath::Parse(job_.base.consumers[c])));
        return MeasureSensitivity(*consumers_[c], *gradients, prompts, states_.ranges, options, Progress());
      };
      ALUDEL_ASSIGN_OR_RETURN(Sensitivity sensitivity, OpenSensitivity(work_, *consumers_[c], prompts,
                                                                       states_.ranges, options, measure));
      states_.sensitivities.push_back(std::move(sensitivity));
    }
    return absl::OkStatus();
  }

  CalibrationProgress Progress() {
    return [this](absl::string_view stage, int64_t done, int64_t total) {
      if (!stage.empty()) bar_.Update(stage, done, total);
      return !StopAsked();
    };
  }

  // With water-filling analysis depends on the recomputed layers alone, and every rate tried shares it; with
  // uniform bits the rate is the rank.
  absl::StatusOr<const AludelAnalysis*> Analysis(int recomputed_layers, double bytes) {
    if (job_.options.allocation == BitAllocation::kWaterFilling) {
      if (analyzed_ == recomputed_layers) return &analysis_;
      bytes = std::max(bytes, raw_bytes_ / 16);
    }
    AludelOptions options = job_.options;
    options.recomputed_layers = recomputed_layers;
    const auto groups = MakeGroups(producer_->config(), recomputed_layers, options.group_layers);
    ALUDEL_ASSIGN_OR_RETURN(analysis_,
                            AnalyzeAludel(states_, producer_->config(), groups, options, bytes, Progress()));
    analyzed_ = recomputed_layers;
    return &analysis_;
  }

  absl::StatusOr<AludelCandidate> Fit(int recomputed_layers, double bytes) {
    ALUDEL_ASSIGN_OR_RETURN(const AludelAnalysis* analysis, Analysis(recomputed_layers, bytes));
    AludelCandidate candidate;
    candidate.shape.recomputed_layers = recomputed_layers;
    candidate.shape.packing = job_.options.packing;
    candidate.shape.head_tokens = head_tokens_;
    candidate.shape.tail_tokens = std::max<int64_t>(0, job_.tail_tokens);
    candidate.shape.groups = MakeGroups(producer_->config(), recomputed_layers, job_.options.group_layers);
    candidate.encoder = QuantizeTo(bytes, *analysis, &candidate.shape);
    ALUDEL_RETURN_IF_ERROR(FitDecoders(*analysis, &candidate));
    ALUDEL_RETURN_IF_ERROR(Measure(&candidate));
    Report(candidate);
    return candidate;
  }

  absl::Status FitDecoders(const AludelAnalysis& analysis, AludelCandidate* candidate) {
    std::vector<TrainedDecoder> trained;
    for (size_t c = 0; c < consumers_.size(); ++c) {
      if (job_.retune) {
        trained.push_back(OldDecoder(c, analysis.metrics[c]));
        continue;
      }
      ALUDEL_ASSIGN_OR_RETURN(
          TrainedDecoder decoder,
          TrainAludelDecoder(candidate->encoder, candidate->shape, states_, c, analysis.metrics[c],
                             consumers_[c]->config(), job_.options, Progress()));
      trained.push_back(std::move(decoder));
    }
    std::vector<TuningResult> tuned;
    if (tunes()) {
      ALUDEL_ASSIGN_OR_RETURN(tuned, TuneAludelDecoders(Tuning(), candidate->encoder, candidate->shape,
                                                        analysis.metrics, Progress(), &trained));
    }
    for (size_t c = 0; c < consumers_.size(); ++c) {
      FittedDecoder fitted{{}, trained[c].train_error, trained[c].held_out_error, trained[c].width, {}};
      if (tunes()) fitted.tuned = tuned[c];
      fitted.weights = FoldDecoder(std::move(trained[c]), candidate->encoder, analysis.metrics[c]);
      candidate->decoders.push_back(std::move(fitted));
    }
    return absl::OkStatus();
  }

  // What is there of it, for --retune.
  TrainedDecoder OldDecoder(size_t consumer, const std::vector<TargetMetric>& metrics) {
    return UnfoldDecoder(
        std::move(old_decoders_[consumer]),
        MeasureDecoderInputs(chosen_.encoder, chosen_.shape, *states_.producer, *states_.consumers[consumer]),
        metrics);
  }

  AludelTuning Tuning() const {
    AludelTuning tuning;
    tuning.producer = producer_.get();
    tuning.consumers = consumers_;
    tuning.directories = job_.base.consumers;
    tuning.states = &states_;
    tuning.prompts = prompts_.train;
    tuning.more_prompts = more_prompts_;
    tuning.work = work_;
    tuning.side_layers = states_.producer->layout().side_layers;
    tuning.max_answer_tokens = job_.base.scd.max_answer_tokens;
    tuning.options = job_.options.tuning;
    return tuning;
  }

  absl::Status Measure(AludelCandidate* candidate) {
    candidate->measured.clear();
    ALUDEL_ASSIGN_OR_RETURN(const auto encoder, MakeAludelEncoderCodec("candidate", "", candidate->shape,
                                                                       candidate->encoder, *producer_));
    for (size_t c = 0; c < consumers_.size(); ++c) {
      ALUDEL_ASSIGN_OR_RETURN(const auto decoder,
                              MakeAludelDecoderCodec("candidate", "", candidate->shape,
                                                     candidate->decoders[c].weights, *consumers_[c]));
      ALUDEL_ASSIGN_OR_RETURN(const HandoffProbe::Result result, probes_[c]->Measure(*encoder, *decoder));
      candidate->measured.push_back(result);
    }
    return absl::OkStatus();
  }

  void Report(const AludelCandidate& candidate) {
    bar_.Break();
    for (size_t c = 0; c < consumers_.size(); ++c) {
      PrintLine(candidate.Describe(c, ModelName(job_.base.consumers[c]), raw_bytes_));
    }
    std::fflush(stdout);
  }

  // The fewest recomputed layers, then the fewest bytes, that meet the loss.
  absl::Status Search() {
    const double target = *job_.max_kl;
    std::string floors;
    for (int p = job_.recomputed_layers.value_or(0); p <= most_recomputed_; ++p) {
      // Fewer latents leave the decoder more width at the same cost, so that less may lose less.
      for (const double bytes : {raw_bytes_ / 16, raw_bytes_ / 64}) {
        ALUDEL_ASSIGN_OR_RETURN(AludelCandidate first, Fit(p, bytes));
        if (first.kl_bound() <= target) return Narrow(std::move(first), bytes, target);
        absl::StrAppendFormat(&floors, "%sp=%d, %.0f bytes/token: %.4f (mean %.4f)",
                              floors.empty() ? "" : "; ", p, bytes, first.kl_bound(), first.kl());
      }
    }
    return absl::OutOfRangeError(
        absl::StrFormat("--max-kl %g cannot be met with 95 %% confidence; floors: %s. More recomputed "
                        "layers, more calibration "
                        "text, a larger --compute-share or more --steps lower them",
                        target, floors));
  }

  // `best` was fitted to `bytes_met` and meets the loss.
  absl::Status Narrow(AludelCandidate best, double bytes_met, double target) {
    RateSearch search(bytes_met);
    while (true) {
      ALUDEL_ASSIGN_OR_RETURN(const double guess, CoarsestBytes(best, target));
      const std::optional<double> bytes = search.Next(guess);
      if (!bytes.has_value()) break;
      ALUDEL_ASSIGN_OR_RETURN(AludelCandidate candidate, Fit(best.shape.recomputed_layers, *bytes));
      if (candidate.kl_bound() > target) {
        search.Missed(*bytes);
      } else {
        search.Met(*bytes);
        best = std::move(candidate);
      }
    }
    chosen_ = std::move(best);
    PrintLine(absl::StrFormat(
        "loss %.4f asked, %.4f (at most %.4f) bought for %.1f bytes/token and %d recomputed layers", target,
        chosen_.kl(), chosen_.kl_bound(), chosen_.bytes(), chosen_.shape.recomputed_layers));
    return absl::OkStatus();
  }

  // Where the loss would be met by coarser steps alone, the decoder as it is.
  absl::StatusOr<double> CoarsestBytes(const AludelCandidate& from, double target) {
    double low = 1, high = 32;  // factors of the step
    double bytes = from.bytes();
    for (int i = 0; i < kBisections; ++i) {
      const double factor = std::sqrt(low * high);
      AludelCandidate trial = from;
      for (size_t g = 0; g < trial.encoder.size(); ++g) {
        trial.encoder[g].grid.step *= static_cast<float>(factor);
        for (FittedDecoder& decoder : trial.decoders) decoder.weights[g].grid = trial.encoder[g].grid;
      }
      ALUDEL_RETURN_IF_ERROR(Measure(&trial));
      if (trial.kl_bound() <= target) {
        low = factor;
        AludelShape cut = trial.shape;
        bytes = EstimateBytes(QuantizeAt(trial.encoder.front().grid.step, analysis_, &cut), cut.packing,
                              analysis_.samples);
      } else {
        high = factor;
      }
    }
    return bytes;
  }

  std::string FormatName() const {
    return job_.format.empty() ? absl::StrCat("aludel-p", std::max(0, chosen_.shape.recomputed_layers))
                               : job_.format;
  }

  // The format that --add or --retune extends.
  absl::Status LoadFormat() {
    if (!old_.has_value()) {
      return absl::NotFoundError(absl::StrCat(job_.base.out, " holds no artifact to extend"));
    }
    ALUDEL_RETURN_IF_ERROR(CheckProducer(*old_, producer_->hash()));
    const std::string name =
        job_.format.empty() ? absl::StrCat("aludel-p", std::max(0, most_recomputed_)) : job_.format;
    ALUDEL_ASSIGN_OR_RETURN(const ArtifactFormat* format, old_->Find(name));
    if (format->kind != ArtifactKind::kAludel) {
      return absl::FailedPreconditionError(absl::StrCat("format \"", name, "\" is of another preset"));
    }
    const ModelConfig& config = producer_->config();
    ALUDEL_ASSIGN_OR_RETURN(chosen_.encoder,
                            LoadAludelEncoder(*old_, *format, config.kv_dim(), config.hidden));
    chosen_.shape = format->aludel;
    most_recomputed_ = chosen_.shape.recomputed_layers;
    head_tokens_ = chosen_.shape.head_tokens;
    return job_.retune ? LoadDecoders(*format) : absl::OkStatus();
  }

  absl::Status LoadDecoders(const ArtifactFormat& format) {
    const ModelConfig& config = producer_->config();
    for (const auto& consumer : consumers_) {
      ALUDEL_ASSIGN_OR_RETURN(const ArtifactDecoder* entry,
                              FindDecoder(*old_, format.name, format.decoders, consumer->hash()));
      ALUDEL_ASSIGN_OR_RETURN(AludelDecoderWeights weights,
                              LoadAludelDecoder(*old_, format, *entry, config.kv_dim(), config.hidden));
      if (weights.empty() || weights.front().hidden.rows == 0) {
        return absl::FailedPreconditionError(absl::StrCat("--retune: format \"", format.name,
                                                          "\" decodes for \"", entry->consumer,
                                                          "\" without a network to tune"));
      }
      old_decoders_.push_back(std::move(weights));
    }
    return absl::OkStatus();
  }

  absl::Status FitConsumers() {
    AludelAnalysis analysis;
    for (size_t c = 0; c < consumers_.size(); ++c) {
      analysis.metrics.emplace_back();
      for (const AludelGroup& group : chosen_.shape.groups) {
        ALUDEL_ASSIGN_OR_RETURN(TargetMetric metric, MetricOf(states_, c, group, job_.options));
        analysis.metrics.back().push_back(std::move(metric));
      }
    }
    ALUDEL_RETURN_IF_ERROR(FitDecoders(analysis, &chosen_));
    ALUDEL_RETURN_IF_ERROR(Measure(&chosen_));
    Report(chosen_);
    return absl::OkStatus();
  }

  absl::Status Save() {
    if (StopAsked()) return absl::CancelledError("calibration was interrupted");
    ALUDEL_ASSIGN_OR_RETURN(ArtifactWriter writer, ArtifactWriter::Begin(job_.base.out, job_.base.storage));
    ArtifactManifest manifest;
    manifest.producer = ModelName(job_.base.producer);
    manifest.producer_hash = producer_->hash();
    ArtifactFormat format;
    format.name = FormatName();
    if (old_.has_value()) {
      ALUDEL_RETURN_IF_ERROR(
          KeepFormats(*old_, {format.name}, /*replace_controls=*/false, &writer, &manifest));
    }
    format.kind = ArtifactKind::kAludel;
    format.aludel = chosen_.shape;
    ALUDEL_RETURN_IF_ERROR(FillNotes(&format));
    ALUDEL_ASSIGN_OR_RETURN(format.encoder, writer.AddEncoder(format.name, chosen_.encoder));
    ALUDEL_RETURN_IF_ERROR(AddDecoders(&format, &writer));
    const std::string name = format.name;
    // A new format stands first: servers offer it before the others.
    size_t place = 0;
    for (size_t i = 0; old_.has_value() && i < old_->formats.size(); ++i) {
      if (old_->formats[i].name == name) place = i;
    }
    manifest.formats.insert(manifest.formats.begin() + static_cast<int64_t>(place), std::move(format));
    ALUDEL_RETURN_IF_ERROR(writer.Publish(manifest));
    PrintLine(absl::StrFormat("wrote %s: format %s", job_.base.out, name));
    return absl::OkStatus();
  }

  absl::Status FillNotes(ArtifactFormat* format) const {
    if (extends()) {
      const ArtifactFormat& old = **old_->Find(format->name);
      format->notes = old.notes;
      format->max_kl = old.max_kl;
      return job_.retune ? NoteRetuning(&format->notes) : absl::OkStatus();
    }
    format->max_kl = job_.max_kl;
    ALUDEL_ASSIGN_OR_RETURN(format->notes["data"], DescribeData(job_.base.data));
    format->notes["prompts"] = absl::StrFormat("%d fitted (%d tokens), %d held out", prompts_.train.size(),
                                               TokenCount(prompts_.train), prompts_.held_out.size());
    if (!more_prompts_.empty()) {
      ALUDEL_ASSIGN_OR_RETURN(format->notes["tuning data"], DescribeTuningData());
    }
    format->notes["decoder"] =
        chosen_.decoders.front().width == 0
            ? std::string("linear, closed form")
            : absl::StrFormat("MLP of width %d, %d steps of %d tokens, seed %d",
                              chosen_.decoders.front().width, job_.options.training.steps,
                              job_.options.training.batch, job_.options.training.seed);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> DescribeTuningData() const {
    ALUDEL_ASSIGN_OR_RETURN(const std::string more, DescribeData(job_.tuning_data));
    return absl::StrCat(more_prompts_.size(), " prompts of ", more);
  }

  absl::Status NoteRetuning(std::map<std::string, std::string>* notes) const {
    std::vector<std::string> parts;
    for (const std::string& directory : job_.base.consumers) parts.push_back(ModelName(directory));
    std::string note = absl::StrJoin(parts, ", ");
    if (job_.options.tuning.passes > 0) {
      ALUDEL_ASSIGN_OR_RETURN(const std::string data, DescribeData(job_.base.data));
      absl::StrAppendFormat(&note, ": %d passes over %s", job_.options.tuning.passes, data);
    }
    if (!more_prompts_.empty()) {
      ALUDEL_ASSIGN_OR_RETURN(const std::string more, DescribeTuningData());
      absl::StrAppend(&note, ": ", more);
    }
    std::string& all = (*notes)["retuned"];
    all = absl::StrCat(all, all.empty() ? "" : "; ", note);
    return absl::OkStatus();
  }

  absl::Status AddDecoders(ArtifactFormat* format, ArtifactWriter* writer) {
    if (extends()) {
      for (const ArtifactDecoder& decoder : (*old_->Find(format->name))->decoders) {
        const bool replaced = std::any_of(consumers_.begin(), consumers_.end(), [&](const auto& consumer) {
          return consumer->hash() == decoder.consumer_hash;
        });
        if (replaced) continue;
        ALUDEL_RETURN_IF_ERROR(writer->Keep(*old_, decoder.file));
        format->decoders.push_back(decoder);
      }
    }
    for (size_t c = 0; c < consumers_.size(); ++c) {
      const HandoffProbe::Result& measured = chosen_.measured[c];
      ArtifactDecoder entry{ModelName(job_.base.consumers[c]),
                            consumers_[c]->hash(),
                            {},
                            ExpectedLoss{measured.kl, measured.bytes_per_token}};
      ALUDEL_ASSIGN_OR_RETURN(entry.file,
                              writer->AddDecoder(format->name, entry.consumer, chosen_.decoders[c].weights));
      format->decoders.push_back(std::move(entry));
    }
    return absl::OkStatus();
  }

  const AludelJob& job_;
  Device* device_;
  ProgressBar bar_;
  std::unique_ptr<Transformer> producer_;
  std::vector<std::unique_ptr<Transformer>> consumers_;
  std::vector<std::unique_ptr<HandoffProbe>> probes_;
  CalibrationPrompts prompts_;
  std::vector<std::vector<int32_t>> more_prompts_;  // for tuning
  AludelStates states_;
  std::optional<ArtifactManifest> old_;
  std::vector<AludelDecoderWeights> old_decoders_;  // [consumers] for --retune
  std::string work_;
  double raw_bytes_ = 0;
  int most_recomputed_ = 0;
  int64_t head_tokens_ = 0;
  AludelAnalysis analysis_;
  std::optional<int> analyzed_;
  AludelCandidate chosen_;
};

}  // namespace

absl::Status RunAludelJob(const AludelJob& job, Device* device) {
  return AludelCalibration(job, device).Run();
}

}  // namespace aludel
