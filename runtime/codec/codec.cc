#include "runtime/codec/codec.h"

#include "absl/strings/str_format.h"
#include "runtime/codec/raw.h"
#include "runtime/codec/scd/artifact.h"
#include "runtime/codec/scd/encode.h"
#include "runtime/codec/scd/reconstruct.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

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
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactDecoder* decoder, FindDecoder(manifest, format, model.hash()));
  ALUDEL_ASSIGN_OR_RETURN(const ScdDecoderWeights weights,
                          LoadScdDecoder(manifest, format, *decoder, config.kv_dim(), config.hidden));
  return MakeScdDecoderCodec(format.name, hash, weights, model);
}

}  // namespace

absl::StatusOr<std::unique_ptr<KvCodec>> OpenCodec(absl::string_view format, const std::string& artifact,
                                                   CodecSide side, const Transformer& model) {
  if (format == "raw") return MakeRawCodec(model);
  if (artifact.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("format \"%s\" needs an artefact directory, none is configured", format));
  }
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactManifest manifest, LoadArtifactManifest(artifact));
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactFormat* entry, manifest.Find(format));
  if (entry->layers.size() != model.config().layers) {
    return absl::FailedPreconditionError(
        absl::StrFormat("artefact %s, format \"%s\" has %d layers, the model has %d", artifact, format,
                        entry->layers.size(), model.config().layers));
  }
  return OpenScd(manifest, *entry, side, model);
}

absl::StatusOr<std::vector<std::string>> ListFormats(const std::string& artifact) {
  std::vector<std::string> names = {"raw"};
  if (artifact.empty()) return names;
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactManifest manifest, LoadArtifactManifest(artifact));
  for (const ArtifactFormat& format : manifest.formats) names.push_back(format.name);
  return names;
}

}  // namespace aludel
