#include "runtime/codec/scd/artifact_files.h"

#include <unistd.h>

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
#include "openssl/evp.h"
#include "runtime/model/json_reader.h"
#include "runtime/model/safetensors.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr size_t kMaxWeightFileBytes = size_t{1} << 36;

std::string LayerTensor(size_t layer, const char* what) { return absl::StrCat("layers.", layer, ".", what); }

// Tensors of one file, with the bytes they point to.
class TensorList {
 public:
  void AddMatrix(const std::string& name, const HostMatrix& matrix, bool narrow) {
    Add(name, {matrix.rows, matrix.cols}, matrix.values, narrow);
  }
  void AddVector(const std::string& name, const std::vector<float>& values) {
    Add(name, {static_cast<int64_t>(values.size())}, values, /*narrow=*/false);
  }
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }

 private:
  void Add(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& values,
           bool narrow) {
    auto bytes = std::make_unique<std::vector<uint8_t>>(values.size() * (narrow ? 2 : 4));
    for (size_t i = 0; i < values.size(); ++i) {
      const Bf16 half = ToBf16(values[i]);
      if (narrow) std::memcpy(bytes->data() + 2 * i, &half, 2);
      if (!narrow) std::memcpy(bytes->data() + 4 * i, &values[i], 4);
    }
    tensors_.push_back({name, narrow ? "BF16" : "F32", std::move(shape), *bytes});
    bytes_.push_back(std::move(bytes));
  }

  std::vector<SafetensorsTensor> tensors_;
  std::vector<std::unique_ptr<std::vector<uint8_t>>> bytes_;
};

// One weight file whose bytes are those that the manifest names.
class WeightFile {
 public:
  static absl::StatusOr<WeightFile> Open(const ArtifactManifest& manifest, const ArtifactFile& file) {
    const std::string path = absl::StrCat(manifest.directory, "/", file.file);
    ALUDEL_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxWeightFileBytes));
    const std::string found = Sha256Hex({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
    if (found != file.sha256) {
      return absl::DataLossError(absl::StrFormat("%s: SHA-256 of its %d bytes is %s, %s/%s says %s", path,
                                                 bytes.size(), found, manifest.directory, kArtifactManifest,
                                                 file.sha256));
    }
    ALUDEL_ASSIGN_OR_RETURN(auto tensors, SafetensorsFile::Open(path));
    return WeightFile(std::move(tensors));
  }

  absl::StatusOr<std::vector<float>> Values(const std::string& name,
                                            const std::vector<int64_t>& shape) const {
    ALUDEL_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, file_->Find(name));
    if (entry->shape != shape) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: tensor %s has shape [%s], want [%s]", file_->path(), name,
                          absl::StrJoin(entry->shape, ", "), absl::StrJoin(shape, ", ")));
    }
    std::vector<float> values(static_cast<size_t>(entry->elements()));
    if (entry->dtype == "F32") {
      std::memcpy(values.data(), entry->data.data(), values.size() * sizeof(float));
    } else if (entry->dtype == "BF16") {
      for (size_t i = 0; i < values.size(); ++i) {
        Bf16 half;
        std::memcpy(&half, entry->data.data() + i * sizeof(half), sizeof(half));
        values[i] = ToFloat(half);
      }
    } else {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: tensor %s has dtype %s, want F32 or BF16", file_->path(), name, entry->dtype));
    }
    return values;
  }

  absl::StatusOr<HostMatrix> Matrix(const std::string& name, int64_t rows, int64_t cols) const {
    HostMatrix matrix{rows, cols, {}};
    ALUDEL_ASSIGN_OR_RETURN(matrix.values, Values(name, {rows, cols}));
    return matrix;
  }

  // Rows of a matrix whose other dimension is known.
  absl::StatusOr<int64_t> Rows(const std::string& name) const {
    ALUDEL_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, file_->Find(name));
    if (entry->shape.empty()) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: tensor %s is a scalar", file_->path(), name));
    }
    return entry->shape[0];
  }

 private:
  explicit WeightFile(std::unique_ptr<SafetensorsFile> file) : file_(std::move(file)) {}
  std::unique_ptr<SafetensorsFile> file_;
};

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
    array.push_back({{"consumer", decoder.consumer},
                     {"hash", decoder.consumer_hash},
                     {"file", decoder.file.file},
                     {"sha256", decoder.file.sha256}});
  }
  return array;
}

nlohmann::ordered_json ToJson(const ArtifactControl& control) {
  return {{"name", control.name},
          {"layers", control.layers},
          {"native_layers", control.native_layers},
          {"decoders", ToJson(control.decoders)}};
}

nlohmann::ordered_json ToJson(const ArtifactFormat& format) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (const ArtifactLayer& layer : format.layers) {
    if (layer.mode == ScdMode::kPatch) {
      layers.push_back({{"mode", "patch"}, {"rank_h", layer.rank_h}});
    } else {
      layers.push_back({{"mode", "reuse"}, {"rank_k", layer.rank_k}, {"rank_v", layer.rank_v}});
    }
  }
  nlohmann::ordered_json notes = nlohmann::ordered_json::object();
  for (const auto& [name, value] : format.notes) notes[name] = value;
  return {{"name", format.name}, {"kind", "scd"},
          {"notes", notes},      {"encoder", ToJson(format.encoder)},
          {"layers", layers},    {"decoders", ToJson(format.decoders)}};
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

std::string Sha256Hex(absl::Span<const uint8_t> bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  ALUDEL_CHECK(EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr) == 1);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
}

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
  weights.native_layers = control.native_layers;
  weights.layers.resize(static_cast<size_t>(control.layers));
  for (size_t i = control.native_layers + 1; i < weights.layers.size(); ++i) {
    ALUDEL_ASSIGN_OR_RETURN(weights.layers[i].kv, file.Matrix(LayerTensor(i, "kv"), 2 * kv_dim, hidden));
    ALUDEL_ASSIGN_OR_RETURN(weights.layers[i].bias, file.Values(LayerTensor(i, "bias"), {2 * kv_dim}));
  }
  return weights;
}

absl::StatusOr<ArtifactWriter> ArtifactWriter::Begin(const std::string& destination) {
  std::string base = destination;
  while (base.size() > 1 && base.back() == '/') base.pop_back();
  std::string partial = absl::StrCat(base, ".partial-XXXXXX");
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(base).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (::mkdtemp(partial.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat(partial, ": ", std::strerror(errno)));
  }
  std::filesystem::permissions(partial, static_cast<std::filesystem::perms>(0755), error);
  return ArtifactWriter(base, partial);
}

ArtifactWriter::~ArtifactWriter() {
  std::error_code ignored;
  if (!partial_.empty()) std::filesystem::remove_all(partial_, ignored);
}

namespace {

absl::StatusOr<ArtifactFile> WriteWeights(const std::string& directory, const std::string& name,
                                          const TensorList& tensors) {
  const std::string path = absl::StrCat(directory, "/", name);
  ALUDEL_RETURN_IF_ERROR(WriteSafetensors(path, tensors.tensors(), {}));
  ALUDEL_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxWeightFileBytes));
  return ArtifactFile{name, Sha256Hex({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()})};
}

}  // namespace

absl::StatusOr<ArtifactFile> ArtifactWriter::AddEncoder(const std::string& format,
                                                        const ScdEncoderWeights& weights) {
  TensorList tensors;
  for (size_t i = 0; i < weights.size(); ++i) {
    const ScdEncoderLayer& layer = weights[i];
    if (layer.mode == ScdMode::kPatch) {
      tensors.AddMatrix(LayerTensor(i, "h"), layer.h, /*narrow=*/false);
    } else {
      tensors.AddMatrix(LayerTensor(i, "k"), layer.k, /*narrow=*/false);
      tensors.AddMatrix(LayerTensor(i, "v"), layer.v, /*narrow=*/false);
    }
  }
  return WriteWeights(partial_, absl::StrCat(format, ".encoder.safetensors"), tensors);
}

absl::StatusOr<ArtifactFile> ArtifactWriter::AddDecoder(const std::string& format,
                                                        const std::string& consumer,
                                                        const ScdDecoderWeights& weights) {
  TensorList tensors;
  for (size_t i = 0; i < weights.size(); ++i) {
    const ScdDecoderLayer& layer = weights[i];
    if (layer.mode == ScdMode::kPatch) {
      // The MLP corrects the linear part by little: bf16 loses nothing there and halves the file.
      tensors.AddMatrix(LayerTensor(i, "aligner.skip"), layer.aligner.skip, /*narrow=*/false);
      tensors.AddVector(LayerTensor(i, "aligner.bias"), layer.aligner.bias);
      tensors.AddMatrix(LayerTensor(i, "aligner.gate_up"), layer.aligner.gate_up, /*narrow=*/true);
      tensors.AddVector(LayerTensor(i, "aligner.gate_up_bias"), layer.aligner.gate_up_bias);
      tensors.AddMatrix(LayerTensor(i, "aligner.down"), layer.aligner.down, /*narrow=*/true);
    } else {
      tensors.AddMatrix(LayerTensor(i, "k"), layer.k, /*narrow=*/false);
      tensors.AddMatrix(LayerTensor(i, "v"), layer.v, /*narrow=*/false);
    }
  }
  return WriteWeights(partial_, absl::StrCat(format, ".", consumer, ".decoder.safetensors"), tensors);
}

absl::StatusOr<ArtifactFile> ArtifactWriter::AddControl(const std::string& control,
                                                        const std::string& consumer,
                                                        const ControlWeights& weights) {
  TensorList tensors;
  for (size_t i = weights.native_layers + 1; i < weights.layers.size(); ++i) {
    tensors.AddMatrix(LayerTensor(i, "kv"), weights.layers[i].kv, /*narrow=*/true);
    tensors.AddVector(LayerTensor(i, "bias"), weights.layers[i].bias);
  }
  return WriteWeights(partial_, absl::StrCat(control, ".", consumer, ".decoder.safetensors"), tensors);
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
    return absl::InvalidArgumentError(absl::StrCat("artefact manifest: ", error.what()));
  }
  ALUDEL_RETURN_IF_ERROR(WriteText(absl::StrCat(partial_, "/", kArtifactManifest), text));

  const std::string old = absl::StrCat(partial_, ".old");
  std::error_code error;
  const bool replaces = std::filesystem::exists(destination_, error);
  if (replaces) {
    if (!std::filesystem::exists(absl::StrCat(destination_, "/", kArtifactManifest), error) &&
        !std::filesystem::is_empty(destination_, error)) {
      return absl::AlreadyExistsError(
          absl::StrCat(destination_, " exists and is no artefact: it is left as it is"));
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
