#include "runtime/calibrate/repack_job.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/calibrate/aludel/code_range_meter.h"
#include "runtime/calibrate/aludel/fit_decays.h"
#include "runtime/calibrate/calibration_setup.h"
#include "runtime/codec/aludel/code_range.h"
#include "runtime/codec/aludel/encode.h"
#include "runtime/codec/aludel/latent_packing.h"
#include "runtime/codec/aludel/weight_files.h"
#include "runtime/codec/artifact/artifact_files.h"
#include "runtime/codec/handoff.h"
#include "runtime/evaluate/in_process_handoff.h"
#include "runtime/status_macros.h"
#include "runtime/tool/progress.h"

namespace aludel {
namespace {

class Repacking {
 public:
  Repacking(const AludelJob& job, Device* device) : job_(job), device_(device) {}

  absl::Status Run() {
    if (!HasCoder(job_.options.packing)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--repack gives rans, embedded or video, not ", Name(job_.options.packing),
          ": encoders of deflate and fixed would be one file, by whose hash servers tell frames apart"));
    }
    ALUDEL_RETURN_IF_ERROR(CheckPacking(job_.options.packing));
    ALUDEL_ASSIGN_OR_RETURN(const std::optional<ArtifactManifest> found, FindArtifact(job_.base.out));
    if (!found.has_value())
      return absl::NotFoundError(absl::StrCat(job_.base.out, " holds no artifact to repack"));
    const ArtifactManifest& old = *found;
    ALUDEL_ASSIGN_OR_RETURN(producer_, LoadForCalibration(job_.base, device_, job_.base.producer));
    ALUDEL_RETURN_IF_ERROR(CheckProducer(old, producer_->hash()));
    std::vector<std::string> names;
    for (const ArtifactFormat& format : old.formats) {
      const bool named = job_.format.empty() || job_.format == format.name;
      if (named && format.kind == ArtifactKind::kAludel) names.push_back(format.name);
    }
    if (names.empty()) {
      return absl::NotFoundError(absl::StrCat(job_.base.out, " holds no aludel format",
                                              job_.format.empty() ? "" : " ", job_.format));
    }
    ALUDEL_ASSIGN_OR_RETURN(prompts_, LoadCalibrationPrompts(job_.base, producer_->config()));
    ALUDEL_RETURN_IF_ERROR(MakePool());
    ALUDEL_ASSIGN_OR_RETURN(ArtifactWriter writer, ArtifactWriter::Begin(job_.base.out));
    ArtifactManifest manifest;
    manifest.producer = old.producer;
    manifest.producer_hash = old.producer_hash;
    ALUDEL_RETURN_IF_ERROR(KeepFormats(old, names, /*replace_controls=*/false, &writer, &manifest));
    for (size_t i = 0; i < old.formats.size(); ++i) {
      if (std::find(names.begin(), names.end(), old.formats[i].name) == names.end()) continue;
      ALUDEL_ASSIGN_OR_RETURN(ArtifactFormat format, Repack(old, old.formats[i], &writer));
      manifest.formats.insert(manifest.formats.begin() + static_cast<int64_t>(i), std::move(format));
    }
    return writer.Publish(manifest);
  }

 private:
  absl::Status MakePool() {
    constexpr int kBlockTokens = 16;
    size_t longest = 0;
    for (const auto* prompts : {&prompts_.train, &prompts_.held_out}) {
      for (const std::vector<int32_t>& prompt : *prompts) longest = std::max(longest, prompt.size());
    }
    const int64_t blocks = static_cast<int64_t>(longest) / kBlockTokens + 1;
    ALUDEL_ASSIGN_OR_RETURN(
        pool_, BlockPool::Create(device_, producer_->MakeKvLayout(blocks, kBlockTokens, DType::kBf16)));
    return absl::OkStatus();
  }

  absl::StatusOr<ArtifactFormat> Repack(const ArtifactManifest& old, const ArtifactFormat& from,
                                        ArtifactWriter* writer) {
    const ModelConfig& config = producer_->config();
    ALUDEL_ASSIGN_OR_RETURN(AludelEncoderWeights encoder,
                            LoadAludelEncoder(old, from, config.kv_dim(), config.hidden));
    ArtifactFormat format = from;
    const bool embedded = job_.options.packing == LatentPacking::kEmbedded;
    const bool video = job_.options.packing == LatentPacking::kVideo;
    if (!embedded && !video && from.aludel.packing == LatentPacking::kEmbedded) {
      return absl::InvalidArgumentError(
          absl::StrCat("format ", from.name,
                       " is embedded already: rans would be the same file, whose hash tells frames apart"));
    }
    if (from.aludel.packing == LatentPacking::kVideo) {
      return absl::InvalidArgumentError(absl::StrCat(
          "format ", from.name,
          " has packing video, which leaves a trace in its files: repack the one that it was made of"));
    }
    format.aludel.packing = job_.options.packing;
    for (AludelEncoderGroup& group : encoder) {
      group.grid.planes = embedded ? job_.options.planes : 0;
      group.grid.video = video ? kVideoLayout : 0;
    }
    if (!video) ALUDEL_RETURN_IF_ERROR(FitScales(format.aludel, &encoder));
    ALUDEL_ASSIGN_OR_RETURN(const std::string data, DescribeData(job_.base.data));
    if (!video) format.notes["scales"] = absl::StrFormat("%d prompts of %s", prompts_.train.size(), data);
    ALUDEL_ASSIGN_OR_RETURN(const double bytes, BytesPerToken(encoder, &format.aludel));
    PrintLine(absl::StrFormat("%s: %s, %.2f bytes a token of %d held-out prompts", format.name,
                              Name(format.aludel.packing), bytes, prompts_.held_out.size()));
    const std::map<std::string, std::vector<float>> scales = ListScales(encoder, format.aludel.packing);
    ALUDEL_ASSIGN_OR_RETURN(format.encoder, writer->KeepWithVectors(old, format.encoder, scales));
    std::map<std::string, ArtifactFile> written;  // by the old file's name: several consumers may have one
    for (ArtifactDecoder& decoder : format.decoders) {
      const auto [file, added] = written.try_emplace(decoder.file.file);
      if (added) {
        ALUDEL_ASSIGN_OR_RETURN(file->second, writer->KeepWithVectors(old, decoder.file, scales));
      }
      decoder.file = file->second;
      if (decoder.expected.has_value()) decoder.expected->bytes_per_token = bytes;
    }
    return format;
  }

  // Encodes every prompt; `each` gets its frames.
  template <typename Each>
  absl::Status Encode(const AludelShape& shape, const AludelEncoderWeights& encoder, const char* stage,
                      const std::vector<std::vector<int32_t>>& prompts, const Each& each) {
    ALUDEL_ASSIGN_OR_RETURN(const auto codec, MakeAludelEncoders("repacked", "", shape, encoder, *producer_));
    for (size_t i = 0; i < prompts.size(); ++i) {
      if (StopAsked()) return absl::CancelledError("repacking was interrupted");
      bar_.Update(stage, static_cast<int64_t>(i), static_cast<int64_t>(prompts.size()));
      const auto tokens = static_cast<int64_t>(prompts[i].size());
      FrameStore frames(codec->spec());
      EncodeTask task{codec.get(), &frames, HandedOver(codec->spec(), tokens).end};
      ALUDEL_RETURN_IF_ERROR(
          EncodePrompt(*producer_, *pool_, prompts[i], tokens - 1, absl::MakeSpan(&task, 1)));
      ALUDEL_RETURN_IF_ERROR(each(frames));
    }
    bar_.Update(stage, static_cast<int64_t>(prompts.size()), static_cast<int64_t>(prompts.size()));
    return absl::OkStatus();
  }

  absl::Status FitScales(const AludelShape& shape, AludelEncoderWeights* encoder) {
    // Codes as they are, whatever the format did with them.
    AludelShape plain = shape;
    plain.packing = LatentPacking::kFixed;
    std::vector<SymbolCounts> counts;
    for (const AludelEncoderGroup& group : *encoder) counts.emplace_back(group.grid);
    const auto count = [&](const FrameStore& frames) -> absl::Status {
      for (const WireFrame& frame : frames.frames()) {
        ALUDEL_ASSIGN_OR_RETURN(const FrameHeader header, DecodeFrameHeader(frame.header));
        size_t g = 0;
        while (shape.groups[g].first_layer != header.coverage.first_layer) ++g;
        const int64_t tokens = header.coverage.tokens;
        std::vector<float> z(tokens * shape.groups[g].rank);
        ALUDEL_RETURN_IF_ERROR(
            UnpackLatents(frame.payload, tokens, (*encoder)[g].grid, LatentPacking::kFixed, z.data()));
        counts[g].Add(z.data(), tokens, shape.groups[g].rank);
      }
      return absl::OkStatus();
    };
    ALUDEL_RETURN_IF_ERROR(Encode(plain, *encoder, "count codes", prompts_.train, count));
    for (size_t g = 0; g < counts.size(); ++g) (*encoder)[g].grid.decays = counts[g].FitDecays();
    return absl::OkStatus();
  }

  // Of held-out prompts; with their codes the shape's range may widen.
  absl::StatusOr<double> BytesPerToken(const AludelEncoderWeights& encoder, AludelShape* shape) {
    double bytes = 0, tokens = 0;
    CodeRangeMeter codes(*shape, encoder);
    const auto measure = [&](const FrameStore& frames) -> absl::Status {
      bytes += static_cast<double>(frames.total_bytes());
      for (const WireFrame& frame : frames.frames()) ALUDEL_RETURN_IF_ERROR(codes.Add(frame));
      return absl::OkStatus();
    };
    ALUDEL_RETURN_IF_ERROR(Encode(*shape, encoder, "measure bytes", prompts_.held_out, measure));
    shape->range = Union(codes.range(), shape->range.value_or(CodeRange()));
    for (const std::vector<int32_t>& prompt : prompts_.held_out) tokens += static_cast<double>(prompt.size());
    return bytes / tokens;
  }

  const AludelJob& job_;
  Device* const device_;
  std::unique_ptr<Transformer> producer_;
  std::unique_ptr<BlockPool> pool_;
  CalibrationPrompts prompts_;
  ProgressBar bar_;
};

}  // namespace

absl::Status RunRepackJob(const AludelJob& job, Device* device) { return Repacking(job, device).Run(); }

}  // namespace aludel
