#include "runtime/codec/open_codec.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/codec/aludel/encode.h"
#include "runtime/codec/aludel/reconstruct.h"
#include "runtime/codec/aludel/weight_files.h"
#include "runtime/codec/artifact/artifact.h"
#include "runtime/codec/artifact/format_name.h"
#include "runtime/codec/lossless/lossless.h"
#include "runtime/codec/quantized.h"
#include "runtime/codec/raw.h"
#include "runtime/codec/recompute.h"
#include "runtime/codec/scd/control.h"
#include "runtime/codec/scd/encode.h"
#include "runtime/codec/scd/reconstruct.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

absl::Status CheckLayers(const ArtifactManifest& manifest, absl::string_view format, size_t layers,
                         const Transformer& model) {
  if (layers == static_cast<size_t>(model.config().layers)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("artifact %s, format \"%s\" has %d layers, the model has %d", manifest.directory,
                      format, layers, model.config().layers));
}

absl::StatusOr<std::unique_ptr<DecoderFactory>> OpenControl(const ArtifactManifest& manifest,
                                                            const ArtifactControl& control,
                                                            const Transformer& model,
                                                            absl::string_view consumer_hash) {
  ALUDEL_RETURN_IF_ERROR(CheckLayers(manifest, control.name, static_cast<size_t>(control.layers), model));
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactDecoder* decoder,
                          FindDecoder(manifest, control.name, control.decoders, consumer_hash));
  ALUDEL_ASSIGN_OR_RETURN(
      const ControlWeights weights,
      LoadControl(manifest, control, *decoder, model.config().kv_dim(), model.config().hidden));
  return MakeControlDecoders(control.name, weights, model);
}

absl::StatusOr<ArtifactManifest> LoadManifest(absl::string_view format, const std::string& artifact) {
  if (artifact.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("format \"%s\" needs an artifact directory, none is configured", format));
  }
  return LoadArtifactManifest(artifact);
}

// Null where the name is not a control's.
const ArtifactControl* FindControl(const ArtifactManifest& manifest, absl::string_view name) {
  for (const ArtifactControl& control : manifest.controls) {
    if (control.name == name) return &control;
  }
  return nullptr;
}

// As many layers as the model.
absl::StatusOr<NamedFormat> FindFormat(const ArtifactManifest& manifest, absl::string_view name,
                                       const Transformer& model) {
  ALUDEL_ASSIGN_OR_RETURN(const NamedFormat named, FindNamed(manifest, name));
  ALUDEL_RETURN_IF_ERROR(
      CheckLayers(manifest, named.format->name, static_cast<size_t>(named.format->model_layers()), model));
  return named;
}

absl::Status CheckPlanes(const NamedFormat& named, const LatentGrid* grid) {
  const int planes = std::max(named.planes, named.base_planes);
  if (planes == 0) return absl::OkStatus();
  const ArtifactFormat& format = *named.format;
  if (grid == nullptr || format.aludel.packing != LatentPacking::kEmbedded) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "format \"%s\" has no planes to be cut at, as its codes are not embedded", format.name));
  }
  if (named.base_planes == grid->planes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "format \"%s\" has %d planes: none comes after the first %d", format.name, grid->planes, planes));
  }
  if (planes <= grid->planes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("format \"%s\" has %d planes, not %d", format.name, grid->planes, planes));
}

absl::StatusOr<std::unique_ptr<DecoderFactory>> Named(absl::StatusOr<std::unique_ptr<DecoderFactory>> made,
                                                      const ArtifactDecoder& decoder) {
  if (made.ok()) (*made)->SetDecoderHash(decoder.file.sha256);
  return made;
}

// True where one of the decoders is for this consumer, or none is asked for.
bool Decodes(const std::vector<ArtifactDecoder>& decoders, absl::string_view consumer_hash) {
  return consumer_hash.empty() ||
         std::any_of(decoders.begin(), decoders.end(), [consumer_hash](const ArtifactDecoder& decoder) {
           return decoder.consumer_hash == consumer_hash;
         });
}

bool IsVideo(const ArtifactFormat& format) {
  return format.kind == ArtifactKind::kAludel && format.aludel.packing == LatentPacking::kVideo;
}

}  // namespace

absl::StatusOr<std::unique_ptr<EncoderFactory>> OpenEncoders(absl::string_view format,
                                                             const std::string& artifact,
                                                             const Transformer& producer) {
  if (format == "raw") return MakeRawEncoders(producer);
  if (format == "lossless") return MakeLosslessEncoders(producer);
  if (format == "int8") return MakeQuantizedEncoders(8, producer);
  if (format == "int4") return MakeQuantizedEncoders(4, producer);
  if (IsRecomputeName(format)) return MakeRecomputeEncoders(format, producer);
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactManifest manifest, LoadManifest(format, artifact));
  if (const ArtifactControl* control = FindControl(manifest, format); control != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrFormat("\"%s\" is a control: nothing of it crosses the wire", control->name));
  }
  ALUDEL_ASSIGN_OR_RETURN(const NamedFormat named, FindFormat(manifest, format, producer));
  const ArtifactFormat* const entry = named.format;
  ALUDEL_RETURN_IF_ERROR(CheckProducer(manifest, producer.hash()));
  const ModelConfig& config = producer.config();
  const std::string& hash = entry->encoder.sha256;
  if (entry->kind == ArtifactKind::kAludel) {
    ALUDEL_ASSIGN_OR_RETURN(const AludelEncoderWeights weights,
                            LoadAludelEncoder(manifest, *entry, config.kv_dim(), config.hidden));
    for (const auto& group : weights) ALUDEL_RETURN_IF_ERROR(CheckPlanes(named, &group.grid));
    AludelShape shape = entry->aludel;
    shape.planes = named.planes;
    return MakeAludelEncoders(std::string(format), hash, std::move(shape), weights, producer,
                              named.base_planes);
  }
  ALUDEL_RETURN_IF_ERROR(CheckPlanes(named, nullptr));
  ALUDEL_ASSIGN_OR_RETURN(const ScdEncoderWeights weights,
                          LoadScdEncoder(manifest, *entry, config.kv_dim(), config.hidden));
  return MakeScdEncoders(entry->name, hash, weights, producer);
}

absl::StatusOr<std::unique_ptr<DecoderFactory>> OpenDecoders(absl::string_view format,
                                                             const std::string& artifact,
                                                             const Transformer& consumer,
                                                             absl::string_view adapter_hash,
                                                             RangeCheck range_check) {
  if (format == "raw") return MakeRawDecoders(consumer);
  if (format == "lossless") return MakeLosslessDecoders(consumer);
  if (format == "int8") return MakeQuantizedDecoders(8, consumer);
  if (format == "int4") return MakeQuantizedDecoders(4, consumer);
  if (IsRecomputeName(format)) return MakeRecomputeDecoders(format, consumer);
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactManifest manifest, LoadManifest(format, artifact));
  const std::string consumer_hash(adapter_hash.empty() ? consumer.hash() : adapter_hash);
  if (const ArtifactControl* control = FindControl(manifest, format); control != nullptr) {
    return OpenControl(manifest, *control, consumer, consumer_hash);
  }
  ALUDEL_ASSIGN_OR_RETURN(const NamedFormat named, FindFormat(manifest, format, consumer));
  const ArtifactFormat* const entry = named.format;
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactDecoder* decoder,
                          FindDecoder(manifest, entry->name, entry->decoders, consumer_hash));
  const ModelConfig& config = consumer.config();
  const std::string& hash = entry->encoder.sha256;
  if (entry->kind == ArtifactKind::kAludel) {
    ALUDEL_ASSIGN_OR_RETURN(const AludelDecoderWeights weights,
                            LoadAludelDecoder(manifest, *entry, *decoder, config.kv_dim(), config.hidden));
    for (const auto& group : weights.groups) ALUDEL_RETURN_IF_ERROR(CheckPlanes(named, &group.grid));
    AludelShape shape = entry->aludel;
    shape.planes = named.planes;
    if (range_check == RangeCheck::kOff) shape.range.reset();
    return Named(
        MakeAludelDecoders(std::string(format), hash, std::move(shape), weights, consumer, named.base_planes),
        *decoder);
  }
  ALUDEL_RETURN_IF_ERROR(CheckPlanes(named, nullptr));
  ALUDEL_ASSIGN_OR_RETURN(const ScdDecoderWeights weights,
                          LoadScdDecoder(manifest, *entry, *decoder, config.kv_dim(), config.hidden));
  return Named(MakeScdDecoders(entry->name, hash, weights, consumer), *decoder);
}

absl::StatusOr<std::vector<std::string>> ListFormats(const std::string& artifact,
                                                     absl::string_view consumer_hash) {
  std::vector<std::string> names = {"raw"};
  if (artifact.empty()) return names;
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactManifest manifest, LoadArtifactManifest(artifact));
  for (const ArtifactFormat& format : manifest.formats) {
    if (!IsVideo(format) && Decodes(format.decoders, consumer_hash)) names.push_back(format.name);
  }
  return names;
}

absl::StatusOr<std::vector<std::string>> ListVideoFormats(const std::string& artifact,
                                                          absl::string_view consumer_hash) {
  std::vector<std::string> names;
  if (artifact.empty()) return names;
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactManifest manifest, LoadArtifactManifest(artifact));
  for (const ArtifactFormat& format : manifest.formats) {
    if (IsVideo(format) && Decodes(format.decoders, consumer_hash)) names.push_back(format.name);
  }
  return names;
}

absl::StatusOr<std::vector<std::string>> ListCuts(const std::string& artifact,
                                                  absl::string_view consumer_hash) {
  std::vector<std::string> names;
  if (artifact.empty()) return names;
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactManifest manifest, LoadArtifactManifest(artifact));
  for (const ArtifactFormat& format : manifest.formats) {
    if (format.kind != ArtifactKind::kAludel || format.aludel.packing != LatentPacking::kEmbedded) continue;
    if (!Decodes(format.decoders, consumer_hash)) continue;
    ALUDEL_ASSIGN_OR_RETURN(const int planes, LoadPlanes(manifest, format));
    for (int cut = planes - 1; cut > 0; --cut) names.push_back(absl::StrCat(format.name, "@", cut));
  }
  return names;
}

std::vector<std::string> ListBaselines() { return {"lossless", "int8", "int4", "recompute"}; }

absl::StatusOr<std::vector<std::string>> ListControls(const std::string& artifact,
                                                      absl::string_view consumer_hash) {
  std::vector<std::string> names;
  if (artifact.empty()) return names;
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactManifest manifest, LoadArtifactManifest(artifact));
  for (const ArtifactControl& control : manifest.controls) {
    if (Decodes(control.decoders, consumer_hash)) names.push_back(control.name);
  }
  return names;
}

}  // namespace aludel
