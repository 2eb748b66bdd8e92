#include "runtime/codec/artifact/artifact_files.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/check.h"
#include "kernels/tensor.h"
#include "nlohmann/json.hpp"
#include "runtime/codec/aludel/weight_files.h"
#include "runtime/codec/artifact/artifact_versions.h"
#include "runtime/codec/artifact/weight_file.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

std::string LayerTensor(size_t layer, const char* what) { return absl::StrCat("layers.", layer, ".", what); }

absl::StatusOr<AlignerWeights> LoadAligner(const WeightFile& file, size_t layer, int64_t rank,
                                           int64_t hidden) {
  AlignerWeights aligner;
  ALUDEL_ASSIGN_OR_RETURN(const int64_t gates, file.Rows(LayerTensor(layer, "aligner.gate_up")));
  ALUDEL_ASSIGN_OR_RETURN(aligner.skip, file.Matrix(LayerTensor(layer, "aligner.skip"), hidden, rank));
  ALUDEL_ASSIGN_OR_RETURN(aligner.bias, file.Values(LayerTensor(layer, "aligner.bias"), {hidden}));
  ALUDEL_ASSIGN_OR_RETURN(aligner.gate_up, file.Matrix(LayerTensor(layer, "aligner.gate_up"), gates, rank));
  ALUDEL_ASSIGN_OR_RETURN(aligner.gate_up_bias,
                          file.Values(LayerTensor(layer, "aligner.gate_up_bias"), {gates}));
  // An odd number of gates cannot be split; then no `down` fits either.
  ALUDEL_ASSIGN_OR_RETURN(
      aligner.down, file.Matrix(LayerTensor(layer, "aligner.down"), hidden, gates % 2 == 0 ? gates / 2 : -1));
  return aligner;
}

nlohmann::ordered_json ToJson(const ArtifactFile& file) {
  return {{"file", file.file}, {"sha256", file.sha256}};
}

nlohmann::ordered_json ToJson(const std::vector<ArtifactDecoder>& decoders) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const ArtifactDecoder& decoder : decoders) {
    nlohmann::ordered_json entry = {{"consumer", decoder.consumer},
                                    {"hash", decoder.consumer_hash},
                                    {"file", decoder.file.file},
                                    {"sha256", decoder.file.sha256}};
    if (decoder.expected.has_value()) {
      entry["kl"] = decoder.expected->kl;
      entry["bytes_per_token"] = decoder.expected->bytes_per_token;
    }
    array.push_back(std::move(entry));
  }
  return array;
}

nlohmann::ordered_json ToJson(const ArtifactControl& control) {
  return {{"name", control.name},
          {"layers", control.layers},
          {"recomputed_layers", control.recomputed_layers},
          {"decoders", ToJson(control.decoders)}};
}

nlohmann::ordered_json LayersToJson(const ArtifactFormat& format) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (const ArtifactLayer& layer : format.layers) {
    if (layer.mode == ScdMode::kPatch) {
      layers.push_back({{"mode", "patch"}, {"rank_h", layer.rank_h}});
    } else {
      layers.push_back({{"mode", "reuse"}, {"rank_k", layer.rank_k}, {"rank_v", layer.rank_v}});
    }
  }
  return layers;
}

nlohmann::ordered_json ToJson(const ArtifactFormat& format) {
  nlohmann::ordered_json notes = nlohmann::ordered_json::object();
  for (const auto& [name, value] : format.notes) notes[name] = value;
  const bool scd = format.kind == ArtifactKind::kScd;
  nlohmann::ordered_json json = {{"name", format.name},
                                 {"kind", scd ? "scd" : "aludel"},
                                 {"notes", notes},
                                 {"encoder", ToJson(format.encoder)}};
  if (format.max_kl.has_value()) json["max_kl"] = *format.max_kl;
  if (scd) {
    json["layers"] = LayersToJson(format);
  } else {
    const AludelShape& shape = format.aludel;
    json["recomputed_layers"] = shape.recomputed_layers;
    json["recomputed_head_tokens"] = shape.head_tokens;
    json["recomputed_tail_tokens"] = shape.tail_tokens;
    json["packing"] = Name(shape.packing);
    if (shape.range.has_value()) {
      json["end_share"] = shape.range->end_share;
      if (!shape.range->digits.empty()) json["code_digits"] = shape.range->digits;
    }
    for (const AludelGroup& group : shape.groups) {
      json["groups"].push_back(
          {{"first_layer", group.first_layer}, {"layers", group.layers}, {"rank", group.rank}});
    }
  }
  json["decoders"] = ToJson(format.decoders);
  return json;
}

absl::Status WriteText(const std::string& path, const std::string& text) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "wbe"), &std::fclose);
  if (file == nullptr || std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() ||
      std::fflush(file.get()) != 0 || ::fsync(::fileno(file.get())) != 0) {
    return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ScdEncoderWeights> LoadScdEncoder(const ArtifactManifest& manifest,
                                                 const ArtifactFormat& format, int64_t kv_dim,
                                                 int64_t hidden) {
  ALUDEL_ASSIGN_OR_RETURN(const WeightFile file, WeightFile::Open(manifest, format.encoder));
  ScdEncoderWeights weights(format.layers.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    const ArtifactLayer& shape = format.layers[i];
    weights[i].mode = shape.mode;
    if (shape.mode == ScdMode::kPatch) {
      ALUDEL_ASSIGN_OR_RETURN(weights[i].h, file.Matrix(LayerTensor(i, "h"), shape.rank_h, hidden));
    } else {
      ALUDEL_ASSIGN_OR_RETURN(weights[i].k, file.Matrix(LayerTensor(i, "k"), shape.rank_k, kv_dim));
      ALUDEL_ASSIGN_OR_RETURN(weights[i].v, file.Matrix(LayerTensor(i, "v"), shape.rank_v, kv_dim));
    }
  }
  return weights;
}

absl::StatusOr<ScdDecoderWeights> LoadScdDecoder(const ArtifactManifest& manifest,
                                                 const ArtifactFormat& format, const ArtifactDecoder& decoder,
                                                 int64_t kv_dim, int64_t hidden) {
  ALUDEL_ASSIGN_OR_RETURN(const WeightFile file, WeightFile::Open(manifest, decoder.file));
  ScdDecoderWeights weights(format.layers.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    const ArtifactLayer& shape = format.layers[i];
    weights[i].mode = shape.mode;
    if (shape.mode == ScdMode::kPatch) {
      ALUDEL_ASSIGN_OR_RETURN(weights[i].aligner, LoadAligner(file, i, shape.rank_h, hidden));
    } else {
      ALUDEL_ASSIGN_OR_RETURN(weights[i].k, file.Matrix(LayerTensor(i, "k"), kv_dim, shape.rank_k));
      ALUDEL_ASSIGN_OR_RETURN(weights[i].v, file.Matrix(LayerTensor(i, "v"), kv_dim, shape.rank_v));
    }
  }
  return weights;
}

absl::StatusOr<ControlWeights> LoadControl(const ArtifactManifest& manifest, const ArtifactControl& control,
                                           const ArtifactDecoder& decoder, int64_t kv_dim, int64_t hidden) {
  ALUDEL_ASSIGN_OR_RETURN(const WeightFile file, WeightFile::Open(manifest, decoder.file));
  ControlWeights weights;
  weights.recomputed_layers = control.recomputed_layers;
  weights.layers.resize(static_cast<size_t>(control.layers));
  for (size_t i = control.recomputed_layers + 1; i < weights.layers.size(); ++i) {
    ALUDEL_ASSIGN_OR_RETURN(weights.layers[i].kv, file.Matrix(LayerTensor(i, "kv"), 2 * kv_dim, hidden));
    ALUDEL_ASSIGN_OR_RETURN(weights.layers[i].bias, file.Values(LayerTensor(i, "bias"), {2 * kv_dim}));
  }
  return weights;
}

absl::StatusOr<ArtifactWriter> ArtifactWriter::Begin(const std::string& destination, MatrixStorage storage) {
  std::string base = destination;
  while (base.size() > 1 && base.back() == '/') base.pop_back();
  const std::optional<std::string> versions = VersionsOf(base);
  if (versions) base = *versions;
  std::string partial =
      absl::StrCat(versions ? absl::StrCat(base, "/", kVersionsFolder, "/") : base, ".partial-XXXXXX");
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(base).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (::mkdtemp(partial.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat(partial, ": ", std::strerror(errno)));
  }
  std::filesystem::permissions(partial, static_cast<std::filesystem::perms>(0755), error);
  return ArtifactWriter(base, partial, storage);
}

ArtifactWriter::~ArtifactWriter() {
  std::error_code ignored;
  if (!partial_.empty()) std::filesystem::remove_all(partial_, ignored);
}

absl::StatusOr<ArtifactFile> ArtifactWriter::AddEncoder(const std::string& format,
                                                        const ScdEncoderWeights& weights) {
  TensorList tensors(storage_);
  for (size_t i = 0; i < weights.size(); ++i) {
    const ScdEncoderLayer& layer = weights[i];
    if (layer.mode == ScdMode::kPatch) {
      tensors.AddMatrix(LayerTensor(i, "h"), layer.h);
    } else {
      tensors.AddMatrix(LayerTensor(i, "k"), layer.k);
      tensors.AddMatrix(LayerTensor(i, "v"), layer.v);
    }
  }
  return Write(absl::StrCat(format, ".encoder.safetensors"), tensors);
}

absl::StatusOr<ArtifactFile> ArtifactWriter::AddDecoder(const std::string& format,
                                                        const std::string& consumer,
                                                        const ScdDecoderWeights& weights) {
  TensorList tensors(storage_);
  for (size_t i = 0; i < weights.size(); ++i) {
    const ScdDecoderLayer& layer = weights[i];
    if (layer.mode == ScdMode::kPatch) {
      tensors.AddMatrix(LayerTensor(i, "aligner.skip"), layer.aligner.skip);
      tensors.AddVector(LayerTensor(i, "aligner.bias"), layer.aligner.bias);
      tensors.AddMatrix(LayerTensor(i, "aligner.gate_up"), layer.aligner.gate_up);
      tensors.AddVector(LayerTensor(i, "aligner.gate_up_bias"), layer.aligner.gate_up_bias);
      tensors.AddMatrix(LayerTensor(i, "aligner.down"), layer.aligner.down);
    } else {
      tensors.AddMatrix(LayerTensor(i, "k"), layer.k);
      tensors.AddMatrix(LayerTensor(i, "v"), layer.v);
    }
  }
  return Write(absl::StrCat(format, ".", consumer, ".decoder.safetensors"), tensors);
}

absl::StatusOr<ArtifactFile> ArtifactWriter::AddControl(const std::string& control,
                                                        const std::string& consumer,
                                                        const ControlWeights& weights) {
  TensorList tensors(storage_);
  for (size_t i = weights.recomputed_layers + 1; i < weights.layers.size(); ++i) {
    tensors.AddMatrix(LayerTensor(i, "kv"), weights.layers[i].kv);
    tensors.AddVector(LayerTensor(i, "bias"), weights.layers[i].bias);
  }
  return Write(absl::StrCat(control, ".", consumer, ".decoder.safetensors"), tensors);
}

absl::StatusOr<ArtifactFile> ArtifactWriter::AddEncoder(const std::string& format,
                                                        const AludelEncoderWeights& weights) {
  return Write(absl::StrCat(format, ".encoder.safetensors"), ListTensors(weights, storage_));
}

absl::StatusOr<ArtifactFile> ArtifactWriter::AddDecoder(const std::string& format,
                                                        const std::string& consumer,
                                                        const AludelDecoderWeights& weights) {
  return Write(absl::StrCat(format, ".", consumer, ".decoder.safetensors"), ListTensors(weights, storage_));
}

absl::Status ArtifactWriter::CheckNew(const std::string& name) const {
  std::error_code error;
  if (!std::filesystem::exists(absl::StrCat(partial_, "/", name), error)) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("artifact for ", destination_, ": two of its files would be ", name));
}

absl::StatusOr<ArtifactFile> ArtifactWriter::Write(const std::string& name, const TensorList& tensors) const {
  ALUDEL_RETURN_IF_ERROR(CheckNew(name));
  return WriteWeights(partial_, name, tensors);
}

absl::Status ArtifactWriter::Keep(const ArtifactManifest& from, const ArtifactFile& file) {
  const auto kept = kept_.find(file.file);
  if (kept != kept_.end() && kept->second == file.sha256) return absl::OkStatus();
  ALUDEL_RETURN_IF_ERROR(CheckNew(file.file));
  const std::string source = absl::StrCat(from.directory, "/", file.file);
  std::error_code error;
  std::filesystem::copy_file(source, absl::StrCat(partial_, "/", file.file), error);
  if (error) return absl::UnavailableError(absl::StrCat(source, ": ", error.message()));
  kept_.emplace(file.file, file.sha256);
  return absl::OkStatus();
}

absl::StatusOr<ArtifactFile> ArtifactWriter::KeepWithVectors(
    const ArtifactManifest& from, const ArtifactFile& file,
    const std::map<std::string, std::vector<float>>& vectors) {
  ALUDEL_ASSIGN_OR_RETURN(const WeightFile old, WeightFile::Open(from, file));
  TensorList tensors(storage_);
  for (const auto& [name, entry] : old.entries()) {
    if (vectors.count(name) == 0) tensors.AddStored(name, entry);
  }
  for (const auto& [name, values] : vectors) tensors.AddVector(name, values);
  return Write(file.file, tensors);
}

absl::Status KeepFormats(const ArtifactManifest& old, const std::vector<std::string>& replaced,
                         bool replace_controls, ArtifactWriter* writer, ArtifactManifest* manifest) {
  ALUDEL_RETURN_IF_ERROR(CheckProducer(old, manifest->producer_hash));
  const auto keep_decoders = [&](const std::vector<ArtifactDecoder>& decoders) -> absl::Status {
    for (const ArtifactDecoder& decoder : decoders) {
      ALUDEL_RETURN_IF_ERROR(writer->Keep(old, decoder.file));
    }
    return absl::OkStatus();
  };
  for (const ArtifactFormat& format : old.formats) {
    if (std::find(replaced.begin(), replaced.end(), format.name) != replaced.end()) continue;
    ALUDEL_RETURN_IF_ERROR(writer->Keep(old, format.encoder));
    ALUDEL_RETURN_IF_ERROR(keep_decoders(format.decoders));
    manifest->formats.push_back(format);
  }
  if (replace_controls) return absl::OkStatus();
  for (const ArtifactControl& control : old.controls) {
    ALUDEL_RETURN_IF_ERROR(keep_decoders(control.decoders));
    manifest->controls.push_back(control);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<ArtifactManifest>> FindArtifact(const std::string& directory) {
  ALUDEL_ASSIGN_OR_RETURN(const std::string resolved, ResolveArtifact(directory));
  std::error_code error;
  if (!std::filesystem::exists(absl::StrCat(resolved, "/", kArtifactManifest), error)) {
    return std::optional<ArtifactManifest>();
  }
  ALUDEL_ASSIGN_OR_RETURN(ArtifactManifest manifest, LoadArtifactManifest(directory));
  return std::optional<ArtifactManifest>(std::move(manifest));
}

absl::Status ArtifactWriter::Publish(const ArtifactManifest& manifest) {
  nlohmann::ordered_json document = {
      {"artifact_version", kArtifactVersion},
      {"producer", {{"name", manifest.producer}, {"hash", manifest.producer_hash}}},
      {"formats", nlohmann::ordered_json::array()}};
  for (const ArtifactFormat& format : manifest.formats) document["formats"].push_back(ToJson(format));
  document["controls"] = nlohmann::ordered_json::array();
  for (const ArtifactControl& control : manifest.controls) document["controls"].push_back(ToJson(control));
  std::string text;
  try {
    text = document.dump(1) + "\n";
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("artifact manifest: ", error.what()));
  }
  ALUDEL_RETURN_IF_ERROR(WriteText(absl::StrCat(partial_, "/", kArtifactManifest), text));

  if (VersionsOf(destination_)) {
    ALUDEL_RETURN_IF_ERROR(AdoptVersion(destination_, partial_).status());
    partial_.clear();
    return absl::OkStatus();
  }
  const std::string old = absl::StrCat(partial_, ".old");
  std::error_code error;
  const bool replaces = std::filesystem::exists(destination_, error);
  if (replaces) {
    if (!std::filesystem::exists(absl::StrCat(destination_, "/", kArtifactManifest), error) &&
        !std::filesystem::is_empty(destination_, error)) {
      return absl::AlreadyExistsError(
          absl::StrCat(destination_, " exists and is no artifact: it is left as it is"));
    }
    std::filesystem::rename(destination_, old, error);
    if (error) return absl::UnavailableError(absl::StrCat(destination_, ": ", error.message()));
  }
  std::filesystem::rename(partial_, destination_, error);
  if (error) {
    const std::string reason = error.message();
    if (replaces) std::filesystem::rename(old, destination_, error);
    return absl::UnavailableError(absl::StrCat(destination_, ": ", reason));
  }
  partial_.clear();
  if (replaces) std::filesystem::remove_all(old, error);
  return absl::OkStatus();
}

}  // namespace aludel
