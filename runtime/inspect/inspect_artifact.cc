#include "runtime/inspect/inspect_artifact.h"

#include "absl/strings/str_cat.h"
#include "runtime/codec/aludel/weight_files.h"
#include "runtime/codec/artifact/artifact.h"
#include "runtime/codec/artifact/weight_file.h"
#include "runtime/model/model_config.h"
#include "runtime/model/weights/weight_stream.h"
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
    const ArtifactDecoder* const owner = SharedWith(decoders, decoder);
    if (owner != nullptr) lines.back()["decoder_of"] = owner->consumer;
    if (!decoder.expected.has_value()) continue;
    lines.back()["expected_kl"] = decoder.expected->kl;
    lines.back()["expected_bytes_per_token"] = decoder.expected->bytes_per_token;
  }
  return lines;
}

void DescribeScd(const ArtifactFormat& format, ordered_json* report) {
  ordered_json layers = ordered_json::array();
  ordered_json patched = ordered_json::array();
  int64_t bytes = 0;
  for (size_t i = 0; i < format.layers.size(); ++i) {
    layers.push_back(DescribeLayer(i, format.layers[i]));
    bytes += layers.back()["bytes_per_token"].get<int64_t>();
    if (format.layers[i].mode == ScdMode::kPatch) patched.push_back(i);
  }
  (*report)["bytes_per_token"] = bytes;
  (*report)["patch_layers"] = patched;
  (*report)["layers"] = layers;
}

// A group of layers shares its latents; Huffman coding makes them smaller than their bits, by how much only
// calibration knows (what it measured stands with each consumer).
absl::Status DescribeAludel(const ArtifactManifest& manifest, const ArtifactFormat& format,
                            ordered_json* report) {
  const AludelShape& shape = format.aludel;
  ALUDEL_ASSIGN_OR_RETURN(const WeightFile encoder, WeightFile::Open(manifest, format.encoder));
  ordered_json groups = ordered_json::array();
  double bytes = 0;
  for (size_t i = 0; i < shape.groups.size(); ++i) {
    const AludelGroup& group = shape.groups[i];
    ALUDEL_ASSIGN_OR_RETURN(const std::vector<float> bits,
                            encoder.Values(absl::StrCat("groups.", i, ".bits"), {group.rank}));
    double sum = 0;
    for (const float value : bits) sum += value;
    groups.push_back(
        {{"layers", absl::StrCat(group.first_layer, " to ", group.first_layer + group.layers - 1)},
         {"rank", group.rank},
         {"mean_bits", sum / static_cast<double>(group.rank)},
         {"bytes_per_token", sum / 8}});
    bytes += sum / 8;
  }
  (*report)["recomputed_layers"] = shape.recomputed_layers;
  (*report)["recomputed_head_tokens"] = shape.head_tokens;
  (*report)["recomputed_tail_tokens"] = shape.tail_tokens;
  (*report)["packing"] = Name(shape.packing);
  (*report)["unpacked_bytes_per_token"] = bytes;
  (*report)["groups"] = groups;
  return absl::OkStatus();
}

absl::StatusOr<ordered_json> DescribeFormat(const ArtifactManifest& manifest, const ArtifactFormat& format) {
  ordered_json report = {{"name", format.name},
                         {"kind", format.kind == ArtifactKind::kAludel ? "aludel" : "scd"},
                         {"model_layers", format.model_layers()},
                         {"encoder_sha256", format.encoder.sha256}};
  switch (format.kind) {
    case ArtifactKind::kScd:
      DescribeScd(format, &report);
      break;
    case ArtifactKind::kAludel:
      ALUDEL_RETURN_IF_ERROR(DescribeAludel(manifest, format, &report));
      break;
  }
  if (format.max_kl.has_value()) report["max_kl"] = *format.max_kl;
  report["consumers"] = DescribeDecoders(format.decoders);
  report["notes"] = format.notes;
  return report;
}

// Loads both halves of a format as the servers do.
absl::Status LoadHalves(const ArtifactManifest& manifest, const ArtifactFormat& format,
                        const ModelConfig& producer, const ModelConfig& consumer,
                        const std::string& consumer_hash) {
  if (format.model_layers() != consumer.layers) {
    return absl::FailedPreconditionError(absl::StrCat("artifact ", manifest.directory, ", format \"",
                                                      format.name, "\" has ", format.model_layers(),
                                                      " layers, the model has ", consumer.layers));
  }
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactDecoder* decoder,
                          FindDecoder(manifest, format.name, format.decoders, consumer_hash));
  if (format.kind == ArtifactKind::kAludel) {
    ALUDEL_RETURN_IF_ERROR(LoadAludelEncoder(manifest, format, producer.kv_dim(), producer.hidden).status());
    return LoadAludelDecoder(manifest, format, *decoder, consumer.kv_dim(), consumer.hidden).status();
  }
  ALUDEL_RETURN_IF_ERROR(LoadScdEncoder(manifest, format, producer.kv_dim(), producer.hidden).status());
  return LoadScdDecoder(manifest, format, *decoder, consumer.kv_dim(), consumer.hidden).status();
}

}  // namespace

absl::StatusOr<ordered_json> InspectArtifact(const std::string& directory) {
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactManifest manifest, LoadArtifactManifest(directory));
  ordered_json report;
  report["artifact"] = {
      {"directory", directory}, {"producer", manifest.producer}, {"producer_hash", manifest.producer_hash}};
  report["formats"] = ordered_json::array();
  for (const ArtifactFormat& format : manifest.formats) {
    ALUDEL_ASSIGN_OR_RETURN(ordered_json described, DescribeFormat(manifest, format));
    report["formats"].push_back(std::move(described));
  }
  report["controls"] = ordered_json::array();
  for (const ArtifactControl& control : manifest.controls) {
    report["controls"].push_back({{"name", control.name},
                                  {"recomputed_layers", control.recomputed_layers},
                                  {"layers", control.layers},
                                  {"consumers", DescribeDecoders(control.decoders)}});
  }
  return report;
}

absl::StatusOr<ordered_json> InspectArtifactFit(const std::string& directory, const ModelPath& producer,
                                                const ModelPath& consumer) {
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactManifest manifest, LoadArtifactManifest(directory));
  ALUDEL_ASSIGN_OR_RETURN(const ModelConfig producer_config, ModelConfig::Load(producer.base));
  ALUDEL_ASSIGN_OR_RETURN(const ModelConfig consumer_config, ModelConfig::Load(consumer.base));
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
    const absl::Status halves = LoadHalves(manifest, format, producer_config, consumer_config, consumer_hash);
    if (note(halves) && right_producer) serving.push_back(format.name);
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
