#include "runtime/codec/open_codec.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "runtime/codec/aludel/encode.h"
#include "runtime/codec/aludel/reconstruct.h"
#include "runtime/codec/aludel/weight_files.h"
#include "runtime/codec/artifact/artifact.h"
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

absl::StatusOr<std::unique_ptr<KvCodec>> OpenControl(const ArtifactManifest& manifest,
                                                     const ArtifactControl& control, CodecSide side,
                                                     const Transformer& model) {
  if (side == CodecSide::kProducer) {
    return absl::FailedPreconditionError(
        absl::StrFormat("\"%s\" is a control: nothing of it crosses the wire", control.name));
  }
  ALUDEL_RETURN_IF_ERROR(CheckLayers(manifest, control.name, static_cast<size_t>(control.layers), model));
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactDecoder* decoder,
                          FindDecoder(manifest, control.name, control.decoders, model.hash()));
  ALUDEL_ASSIGN_OR_RETURN(
      const ControlWeights weights,
      LoadControl(manifest, control, *decoder, model.config().kv_dim(), model.config().hidden));
  return MakeControlCodec(control.name, weights, model);
}

absl::StatusOr<std::unique_ptr<KvCodec>> OpenScd(const ArtifactManifest& manifest,
                                                 const ArtifactFormat& format, CodecSide side,
                                                 const Transformer& model) {
  const ModelConfig& config = model.config();
  const std::string& hash = format.encoder.sha256;
  if (side == CodecSide::kProducer) {
    ALUDEL_RETURN_IF_ERROR(CheckProducer(manifest, model.hash()));
    ALUDEL_ASSIGN_OR_RETURN(const ScdEncoderWeights weights,
                            LoadScdEncoder(manifest, format, config.kv_dim(), config.hidden));
    return MakeScdEncoderCodec(format.name, hash, weights, model);
  }
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactDecoder* decoder,
                          FindDecoder(manifest, format.name, format.decoders, model.hash()));
  ALUDEL_ASSIGN_OR_RETURN(const ScdDecoderWeights weights,
                          LoadScdDecoder(manifest, format, *decoder, config.kv_dim(), config.hidden));
  return MakeScdDecoderCodec(format.name, hash, weights, model);
}

absl::StatusOr<std::unique_ptr<KvCodec>> OpenAludel(const ArtifactManifest& manifest,
                                                    const ArtifactFormat& format, CodecSide side,
                                                    const Transformer& model) {
  const ModelConfig& config = model.config();
  const std::string& hash = format.encoder.sha256;
  if (side == CodecSide::kProducer) {
    ALUDEL_RETURN_IF_ERROR(CheckProducer(manifest, model.hash()));
    ALUDEL_ASSIGN_OR_RETURN(const AludelEncoderWeights weights,
                            LoadAludelEncoder(manifest, format, config.kv_dim(), config.hidden));
    return MakeAludelEncoderCodec(format.name, hash, format.aludel, weights, model);
  }
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactDecoder* decoder,
                          FindDecoder(manifest, format.name, format.decoders, model.hash()));
  ALUDEL_ASSIGN_OR_RETURN(const AludelDecoderWeights weights,
                          LoadAludelDecoder(manifest, format, *decoder, config.kv_dim(), config.hidden));
  return MakeAludelDecoderCodec(format.name, hash, format.aludel, weights, model);
}

// True where one of the decoders is for this consumer, or none is asked for.
bool Decodes(const std::vector<ArtifactDecoder>& decoders, absl::string_view consumer_hash) {
  return consumer_hash.empty() ||
         std::any_of(decoders.begin(), decoders.end(), [consumer_hash](const ArtifactDecoder& decoder) {
           return decoder.consumer_hash == consumer_hash;
         });
}

}  // namespace

absl::StatusOr<std::unique_ptr<KvCodec>> OpenCodec(absl::string_view format, const std::string& artifact,
                                                   CodecSide side, const Transformer& model) {
  if (format == "raw") return MakeRawCodec(model);
  if (format == "int8") return MakeQuantizedCodec(8, model);
  if (format == "int4") return MakeQuantizedCodec(4, model);
  if (IsRecomputeName(format)) return MakeRecomputeCodec(format, model);
  if (artifact.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("format \"%s\" needs an artifact directory, none is configured", format));
  }
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactManifest manifest, LoadArtifactManifest(artifact));
  for (const ArtifactControl& control : manifest.controls) {
    if (control.name == format) return OpenControl(manifest, control, side, model);
  }
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactFormat* entry, manifest.Find(format));
  ALUDEL_RETURN_IF_ERROR(
      CheckLayers(manifest, entry->name, static_cast<size_t>(entry->model_layers()), model));
  if (entry->kind == ArtifactKind::kAludel) return OpenAludel(manifest, *entry, side, model);
  return OpenScd(manifest, *entry, side, model);
}

absl::StatusOr<std::vector<std::string>> ListFormats(const std::string& artifact,
                                                     absl::string_view consumer_hash) {
  std::vector<std::string> names = {"raw"};
  if (artifact.empty()) return names;
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactManifest manifest, LoadArtifactManifest(artifact));
  for (const ArtifactFormat& format : manifest.formats) {
    if (Decodes(format.decoders, consumer_hash)) names.push_back(format.name);
  }
  return names;
}

std::vector<std::string> ListBaselines() { return {"int8", "int4", "recompute"}; }

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
