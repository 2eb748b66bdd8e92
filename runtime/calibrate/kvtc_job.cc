#include "runtime/calibrate/kvtc_job.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/calibrate/aludel/code_range_meter.h"
#include "runtime/calibrate/aludel/kvtc.h"
#include "runtime/calibrate/calibration_setup.h"
#include "runtime/calibrate/handoff_probe.h"
#include "runtime/codec/aludel/encode.h"
#include "runtime/codec/aludel/reconstruct.h"
#include "runtime/codec/artifact/artifact.h"
#include "runtime/codec/artifact/artifact_files.h"
#include "runtime/status_macros.h"
#include "runtime/tool/progress.h"

namespace aludel {
namespace {

// Rows that choose widths and steps; the covariance takes all.
constexpr int64_t kWidthRows = 4096;
// Components looked at: far more than any rate of interest can pay for.
constexpr int64_t kMaxRank = 1024;
constexpr int kRounds = 4;
// Attention sinks and the recent window, which KVTC leaves exact; with the last token, 16.
constexpr int64_t kPublishedHead = 4, kPublishedTail = 11;

class KvtcCalibration {
 public:
  KvtcCalibration(const AludelJob& job, Device* device) : job_(job), device_(device) {}

  absl::Status Run() {
    if (job_.base.consumers.size() != 1 || job_.max_kl.has_value()) {
      return absl::InvalidArgumentError(
          "preset kvtc takes one --consumer, the producer itself, and --bytes-per-token");
    }
    ALUDEL_ASSIGN_OR_RETURN(producer_, LoadForCalibration(job_.base, device_, job_.base.producer));
    ALUDEL_ASSIGN_OR_RETURN(consumer_, LoadForCalibration(job_.base, device_, job_.base.consumers.front()));
    if (producer_->hash() != consumer_->hash()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("preset kvtc is for one model on both sides; %s and %s are two", job_.base.producer,
                          job_.base.consumers.front()));
    }
    ALUDEL_ASSIGN_OR_RETURN(prompts_, LoadCalibrationPrompts(job_.base, producer_->config()));
    work_ = job_.work.empty() ? absl::StrCat(job_.base.out, ".work") : job_.work;
    PrintPlan();
    ALUDEL_ASSIGN_OR_RETURN(
        states_, OpenStates(work_, *producer_, prompts_.train, 0, shape_.head_tokens, "prefill", Progress()));
    ALUDEL_ASSIGN_OR_RETURN(probe_, HandoffProbe::Create(*producer_, *consumer_, prompts_.held_out,
                                                         job_.base.scd.max_answer_tokens, Progress()));
    ALUDEL_RETURN_IF_ERROR(FitBases());
    ALUDEL_RETURN_IF_ERROR(MeetRate());
    ALUDEL_RETURN_IF_ERROR(Save());
    std::error_code ignored;
    if (!job_.keep_work) std::filesystem::remove_all(work_, ignored);
    return absl::OkStatus();
  }

 private:
  CalibrationProgress Progress() {
    return [this](absl::string_view stage, int64_t done, int64_t total) {
      if (!stage.empty()) bar_.Update(stage, done, total);
      return !StopAsked();
    };
  }

  void PrintPlan() {
    shape_.recomputed_layers = -1;
    shape_.head_tokens = job_.head_tokens < 0 ? kPublishedHead : job_.head_tokens;
    shape_.tail_tokens = job_.tail_tokens < 0 ? kPublishedTail : job_.tail_tokens;
    shape_.groups = MakeGroups(producer_->config(), -1, job_.options.group_layers);
    const int64_t columns = Columns(shape_.groups.front());
    const int64_t tokens = TokenCount(prompts_.train);
    PrintLine(
        absl::StrFormat("%s; %d prompts with %d tokens to fit, %d held out; memory at peak about %s "
                        "beside the model, %s of states in %s",
                        job_.base.producer, prompts_.train.size(), tokens, prompts_.held_out.size(),
                        MiB(static_cast<size_t>(columns * columns) * 3 * sizeof(double)),
                        MiB(StateBytes(producer_->config(), 0, tokens)), work_));
    if (tokens < 20 * columns) {
      PrintLine(
          absl::StrFormat("warning: %d tokens for a covariance of %d columns; want at least %d, use "
                          "more text",
                          tokens, columns, 20 * columns));
    }
  }

  int64_t Columns(const AludelGroup& group) const { return group.layers * 2 * producer_->config().kv_dim(); }

  RowReader Reader(const AludelGroup& group) const {
    return [this, begin = states_->layout().kv(group.first_layer), count = Columns(group)](
               int64_t row, float* out) { states_->Read(row, begin, count, out); };
  }

  absl::Status FitBases() {
    const auto total = static_cast<int64_t>(shape_.groups.size());
    for (int64_t g = 0; g < total; ++g) {
      if (!Progress()("principal components", g, total)) return absl::CancelledError("interrupted");
      const AludelGroup& group = shape_.groups[g];
      const RowReader read = Reader(group);
      ALUDEL_ASSIGN_OR_RETURN(PrincipalBasis basis, FitPrincipalBasis(read, states_->rows(), Columns(group),
                                                                      std::min(Columns(group), kMaxRank)));
      const int64_t rows = std::min(kWidthRows, states_->rows());
      samples_.push_back(Coordinates(basis, read, rows, states_->rows() / rows));
      bases_.push_back(std::move(basis));
    }
    Progress()("principal components", total, total);
    return absl::OkStatus();
  }

  // Widths are chosen before DEFLATE: which byte budget gives the rate is found by measuring.
  absl::Status MeetRate() {
    const ModelConfig& config = producer_->config();
    const double raw = 2.0 * config.layers * config.kv_dim() * sizeof(Bf16);
    const double wanted = job_.bytes_per_token.value_or(raw / 16);
    double budget = wanted / static_cast<double>(shape_.groups.size());
    for (int round = 0; round < kRounds; ++round) {
      ALUDEL_RETURN_IF_ERROR(Fit(std::max<int64_t>(1, static_cast<int64_t>(budget))));
      bar_.Break();
      PrintLine(
          absl::StrFormat("widths of %d bytes: rank %d, %.1f bytes/token (1/%.0f of raw), KL %.4f on "
                          "held-out prompts",
                          static_cast<int64_t>(budget), shape_.groups.front().rank, measured_.bytes_per_token,
                          raw / measured_.bytes_per_token, measured_.kl));
      const double ratio = wanted / measured_.bytes_per_token;
      if (ratio >= 1 && ratio < 1.02) break;
      if (round + 1 < kRounds) budget *= round + 2 < kRounds ? ratio : std::min(1.0, ratio) * 0.99;
    }
    if (measured_.bytes_per_token <= wanted) return absl::OkStatus();
    return absl::OutOfRangeError(absl::StrFormat("%.1f bytes/token asked, the least found is %.1f", wanted,
                                                 measured_.bytes_per_token));
  }

  absl::Status Fit(int64_t bytes) {
    encoder_.clear();
    decoder_.groups.clear();
    for (size_t g = 0; g < bases_.size(); ++g) {
      const WidthPlan plan = ChooseWidths(samples_[g], bases_[g].axes.rows, bytes);
      KvtcGroup group = MakeKvtcGroup(bases_[g], plan);
      shape_.groups[g].rank = group.encoder.matrix.rows;
      encoder_.push_back(std::move(group.encoder));
      decoder_.groups.push_back(std::move(group.decoder));
    }
    std::vector<LatentSample> samples;
    for (size_t g = 0; g < encoder_.size(); ++g) {
      samples.push_back(SampleLatents(encoder_[g].matrix, encoder_[g].side, encoder_[g].offset, *states_,
                                      shape_.recomputed_layers, shape_.groups[g]));
    }
    // Few bits of a short frame are sometimes smaller as they are.
    const bool deflate = EstimateBytes(encoder_, LatentPacking::kDeflate, samples) <=
                         EstimateBytes(encoder_, LatentPacking::kFixed, samples);
    shape_.packing = deflate ? LatentPacking::kDeflate : LatentPacking::kFixed;
    ALUDEL_ASSIGN_OR_RETURN(const auto encoder,
                            MakeAludelEncoders("candidate", "", shape_, encoder_, *producer_));
    ALUDEL_ASSIGN_OR_RETURN(const auto decoder,
                            MakeAludelDecoders("candidate", "", shape_, decoder_, *consumer_));
    CodeRangeMeter codes(shape_, encoder_);
    ALUDEL_ASSIGN_OR_RETURN(measured_, probe_->Measure(*encoder, *decoder, [&codes](const WireFrame& frame) {
      return codes.Add(frame);
    }));
    range_ = codes.range();
    if (StopAsked()) return absl::CancelledError("calibration was interrupted");
    return absl::OkStatus();
  }

  absl::Status Save() {
    ALUDEL_ASSIGN_OR_RETURN(ArtifactWriter writer, ArtifactWriter::Begin(job_.base.out, job_.base.storage));
    ALUDEL_ASSIGN_OR_RETURN(const auto old, FindArtifact(job_.base.out));
    ArtifactManifest manifest;
    manifest.producer = ModelName(job_.base.producer);
    manifest.producer_hash = producer_->hash();
    ArtifactFormat format;
    format.name = job_.format.empty() ? "kvtc" : job_.format;
    if (old.has_value()) {
      ALUDEL_RETURN_IF_ERROR(
          KeepFormats(*old, {format.name}, /*replace_controls=*/false, &writer, &manifest));
    }
    format.kind = ArtifactKind::kAludel;
    format.aludel = shape_;
    format.aludel.range = range_;
    ALUDEL_ASSIGN_OR_RETURN(format.notes["data"], DescribeData(job_.base.data));
    format.notes["prompts"] = absl::StrFormat("%d fitted (%d tokens), %d held out", prompts_.train.size(),
                                              TokenCount(prompts_.train), prompts_.held_out.size());
    ALUDEL_ASSIGN_OR_RETURN(format.encoder, writer.AddEncoder(format.name, encoder_));
    ArtifactDecoder entry{ModelName(job_.base.consumers.front()),
                          consumer_->hash(),
                          {},
                          ExpectedLoss{measured_.kl, measured_.bytes_per_token}};
    ALUDEL_ASSIGN_OR_RETURN(entry.file, writer.AddDecoder(format.name, entry.consumer, decoder_));
    format.decoders.push_back(std::move(entry));
    const std::string name = format.name;
    manifest.formats.push_back(std::move(format));
    ALUDEL_RETURN_IF_ERROR(writer.Publish(manifest));
    PrintLine(absl::StrFormat("wrote %s: format %s", job_.base.out, name));
    return absl::OkStatus();
  }

  const AludelJob& job_;
  Device* device_;
  ProgressBar bar_;
  std::unique_ptr<Transformer> producer_, consumer_;
  std::unique_ptr<HandoffProbe> probe_;
  CalibrationPrompts prompts_;
  std::string work_;
  std::unique_ptr<StateFile> states_;
  AludelShape shape_;
  std::vector<PrincipalBasis> bases_;        // [groups]
  std::vector<std::vector<float>> samples_;  // [groups] of [rows, rank] coordinates
  AludelEncoderWeights encoder_;
  AludelDecoderWeights decoder_;
  HandoffProbe::Result measured_;
  CodeRange range_;
};

}  // namespace

absl::Status RunKvtcJob(const AludelJob& job, Device* device) { return KvtcCalibration(job, device).Run(); }

}  // namespace aludel
