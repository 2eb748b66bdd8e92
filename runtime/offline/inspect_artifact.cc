#include "runtime/offline/inspect_artifact.h"

#include "absl/strings/str_cat.h"
#include "runtime/codec/scd/artifact.h"
#include "runtime/model/model_config.h"
#include "runtime/model/weight_stream.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

// Codes cross as bf16 (FORMAT.md, kind 2).
constexpr int kCodeBits = 16;

// One line per number of a layer that is not zero: a new kind of layer adds its lines here.
ordered_json DescribeLayer(size_t index, const ArtifactLayer& layer) {
  const struct {
    const char* name;
    int64_t rank;
  } ranks[] = {{"rank_k", layer.rank_k}, {"rank_v", layer.rank_v}, {"rank_h", layer.rank_h}};
  ordered_json line = {{"layer", index}, {"mode", layer.mode == ScdMode::kPatch ? "patch" : "reuse"}};
  int64_t numbers = 0;
  for (const auto& entry : ranks) {
    line[entry.name] = entry.rank;
    numbers += entry.rank;
  }
  line["bits"] = kCodeBits;
  line["bytes_per_token"] = numbers * kCodeBits / 8;
  return line;
}

ordered_json DescribeDecoders(const std::vector<ArtifactDecoder>& decoders) {
  ordered_json lines = ordered_json::array();
  for (const ArtifactDecoder& decoder : decoders) {
    lines.push_back({{"consumer", decoder.consumer}, {"hash", decoder.consumer_hash}});
  }
  return lines;
}

ordered_json DescribeFormat(const ArtifactFormat& format) {
  ordered_json layers = ordered_json::array();
  int64_t bytes = 0;
  ordered_json patched = ordered_json::array();
  for (size_t i = 0; i < format.layers.size(); ++i) {
    layers.push_back(DescribeLayer(i, format.layers[i]));
    bytes += layers.back()["bytes_per_token"].get<int64_t>();
    if (format.layers[i].mode == ScdMode::kPatch) patched.push_back(i);
  }
  return {{"name", format.name},     {"bytes_per_token", bytes},
          {"patch_layers", patched}, {"encoder_sha256", format.encoder.sha256},
          {"layers", layers},        {"consumers", DescribeDecoders(format.decoders)},
          {"notes", format.notes}};
}

}  // namespace

absl::StatusOr<ordered_json> InspectArtifact(const std::string& directory) {
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactManifest manifest, LoadArtifactManifest(directory));
  ordered_json report;
  report["artefact"] = {
      {"directory", directory}, {"producer", manifest.producer}, {"producer_hash", manifest.producer_hash}};
  report["formats"] = ordered_json::array();
  for (const ArtifactFormat& format : manifest.formats) report["formats"].push_back(DescribeFormat(format));
  report["controls"] = ordered_json::array();
  for (const ArtifactControl& control : manifest.controls) {
    report["controls"].push_back({{"name", control.name},
                                  {"native_layers", control.native_layers},
                                  {"layers", control.layers},
                                  {"consumers", DescribeDecoders(control.decoders)}});
  }
  return report;
}

absl::StatusOr<ordered_json> InspectArtifactFit(const std::string& directory, const std::string& producer,
                                                const std::string& consumer) {
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactManifest manifest, LoadArtifactManifest(directory));
  ALUDEL_ASSIGN_OR_RETURN(const ModelConfig producer_config, ModelConfig::Load(producer));
  ALUDEL_ASSIGN_OR_RETURN(const ModelConfig consumer_config, ModelConfig::Load(consumer));
  ALUDEL_ASSIGN_OR_RETURN(const std::string producer_hash, HashModel(producer));
  ALUDEL_ASSIGN_OR_RETURN(const std::string consumer_hash, HashModel(consumer));
  ordered_json problems = ordered_json::array();
  const auto note = [&](const absl::Status& status) {
    if (!status.ok()) problems.push_back(std::string(status.message()));
    return status.ok();
  };
  const bool right_producer = note(CheckProducer(manifest, producer_hash));
  ordered_json serving = ordered_json::array();
  for (const ArtifactFormat& format : manifest.formats) {
    absl::Status status;
    if (format.layers.size() != static_cast<size_t>(consumer_config.layers)) {
      status = absl::FailedPreconditionError(absl::StrCat("artefact ", directory, ", format \"", format.name,
                                                          "\" has ", format.layers.size(),
                                                          " layers, the model has ", consumer_config.layers));
    }
    if (status.ok()) {
      status = LoadScdEncoder(manifest, format, producer_config.kv_dim(), producer_config.hidden).status();
    }
    if (status.ok()) {
      const auto decoder = FindDecoder(manifest, format.name, format.decoders, consumer_hash);
      status = decoder.status();
      if (status.ok()) {
        status = LoadScdDecoder(manifest, format, **decoder, consumer_config.kv_dim(), consumer_config.hidden)
                     .status();
      }
    }
    if (note(status) && right_producer) serving.push_back(format.name);
  }
  ordered_json report;
  report["codec"] = directory;
  report["producer_hash"] = producer_hash;
  report["consumer_hash"] = consumer_hash;
  report["formats_that_fit"] = serving;
  report["fits"] = problems.empty();
  report["problems"] = problems;
  return report;
}

}  // namespace aludel
