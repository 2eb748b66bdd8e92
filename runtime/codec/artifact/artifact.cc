#include "runtime/codec/artifact/artifact.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "runtime/codec/artifact/artifact_versions.h"
#include "runtime/files/json_reader.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using nlohmann::json;

constexpr size_t kMaxManifestBytes = size_t{16} << 20;
constexpr int kMaxDepth = 8;
constexpr int64_t kMaxRank = 1 << 20;
constexpr double kMaxDigits = 16;  // of a code

// One object of the manifest, with its place for error messages ("DIR/artifact.json: formats[0].encoder").
class Reader {
 public:
  Reader(const json& value, std::string place) : value_(value), place_(std::move(place)) {}

  absl::StatusOr<std::string> String(const char* name) const {
    if (FindMember(value_, name) == nullptr) return Missing(name, "a string");
    return StringMember(value_, name, "", place_);
  }
  absl::StatusOr<int64_t> Int(const char* name, int64_t min, int64_t max) const {
    if (FindMember(value_, name) == nullptr) return Missing(name, "an integer");
    return IntMember(value_, name, 0, min, max, place_);
  }
  // A number of at least 0, or nothing where the member is absent.
  absl::StatusOr<std::optional<double>> Number(const char* name) const {
    if (FindMember(value_, name) == nullptr) return std::optional<double>();
    ALUDEL_ASSIGN_OR_RETURN(const double number, NumberMember(value_, name, 0, 0, 1e9, place_));
    return std::optional<double>(number);
  }
  // Numbers of 0 to `max`; none where the member is absent.
  absl::StatusOr<std::vector<double>> Numbers(const char* name, double max) const {
    const json* member = FindMember(value_, name);
    std::vector<double> numbers;
    if (member == nullptr) return numbers;
    if (!member->is_array()) return Missing(name, "an array of numbers");
    for (const json& value : *member) {
      if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= max)) {
        return Error(absl::StrCat(name, " has ", DescribeJson(value), ", want numbers of 0 to ", max));
      }
      numbers.push_back(value.get<double>());
    }
    return numbers;
  }
  absl::StatusOr<Reader> Object(const char* name) const {
    const json* member = FindMember(value_, name);
    if (member == nullptr || !member->is_object()) return Missing(name, "an object");
    return Reader(*member, absl::StrCat(place_, ".", name));
  }
  // Every element must be an object.
  absl::StatusOr<std::vector<Reader>> Objects(const char* name) const {
    const json* member = FindMember(value_, name);
    if (member == nullptr || !member->is_array()) return Missing(name, "an array of objects");
    std::vector<Reader> readers;
    for (size_t i = 0; i < member->size(); ++i) {
      const std::string place = absl::StrCat(place_, ".", name, "[", i, "]");
      if (!(*member)[i].is_object()) {
        return absl::InvalidArgumentError(
            absl::StrCat(place, " is ", DescribeJson((*member)[i]), ", want an object"));
      }
      readers.emplace_back((*member)[i], place);
    }
    return readers;
  }
  absl::Status Error(absl::string_view text) const {
    return absl::InvalidArgumentError(absl::StrCat(place_, ": ", text));
  }
  const json& value() const { return value_; }

 private:
  absl::Status Missing(const char* name, absl::string_view want) const {
    const json* member = FindMember(value_, name);
    return Error(
        absl::StrCat(name, " is ", member == nullptr ? "missing" : DescribeJson(*member), ", want ", want));
  }

  const json& value_;
  std::string place_;
};

absl::StatusOr<ArtifactFile> ParseFile(const Reader& reader) {
  ArtifactFile file;
  ALUDEL_ASSIGN_OR_RETURN(file.file, reader.String("file"));
  ALUDEL_ASSIGN_OR_RETURN(file.sha256, reader.String("sha256"));
  // A manifest from elsewhere must not make us read outside its directory.
  if (file.file.empty() || file.file[0] == '.' || file.file.find('/') != std::string::npos) {
    return reader.Error(absl::StrCat("file is \"", file.file, "\", want a plain name in the same directory"));
  }
  const bool hex = std::all_of(file.sha256.begin(), file.sha256.end(),
                               [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  if (file.sha256.size() != 64 || !hex) {
    return reader.Error(absl::StrCat("sha256 is \"", file.sha256, "\", want 64 lower-case hex digits"));
  }
  return file;
}

absl::StatusOr<ArtifactLayer> ParseLayer(const Reader& reader) {
  ArtifactLayer layer;
  ALUDEL_ASSIGN_OR_RETURN(const std::string mode, reader.String("mode"));
  if (mode == "reuse") {
    ALUDEL_ASSIGN_OR_RETURN(layer.rank_k, reader.Int("rank_k", 1, kMaxRank));
    ALUDEL_ASSIGN_OR_RETURN(layer.rank_v, reader.Int("rank_v", 1, kMaxRank));
  } else if (mode == "patch") {
    layer.mode = ScdMode::kPatch;
    ALUDEL_ASSIGN_OR_RETURN(layer.rank_h, reader.Int("rank_h", 1, kMaxRank));
  } else {
    return reader.Error(absl::StrCat("mode is \"", mode, "\", want \"reuse\" or \"patch\""));
  }
  return layer;
}

absl::StatusOr<std::vector<ArtifactDecoder>> ParseDecoders(const Reader& reader) {
  std::vector<ArtifactDecoder> decoders;
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<Reader> entries, reader.Objects("decoders"));
  for (const Reader& entry : entries) {
    ArtifactDecoder decoder;
    ALUDEL_ASSIGN_OR_RETURN(decoder.consumer, entry.String("consumer"));
    ALUDEL_ASSIGN_OR_RETURN(decoder.consumer_hash, entry.String("hash"));
    ALUDEL_ASSIGN_OR_RETURN(decoder.file, ParseFile(entry));
    ALUDEL_ASSIGN_OR_RETURN(const std::optional<double> kl, entry.Number("kl"));
    ALUDEL_ASSIGN_OR_RETURN(const std::optional<double> bytes, entry.Number("bytes_per_token"));
    if (kl.has_value() && bytes.has_value()) decoder.expected = ExpectedLoss{*kl, *bytes};
    decoders.push_back(std::move(decoder));
  }
  return decoders;
}

absl::StatusOr<ArtifactControl> ParseControl(const Reader& reader) {
  ArtifactControl control;
  ALUDEL_ASSIGN_OR_RETURN(control.name, reader.String("name"));
  ALUDEL_ASSIGN_OR_RETURN(control.layers, reader.Int("layers", 1, UINT16_MAX));
  ALUDEL_ASSIGN_OR_RETURN(const int64_t recomputed, reader.Int("recomputed_layers", 0, control.layers - 1));
  control.recomputed_layers = static_cast<int>(recomputed);
  ALUDEL_ASSIGN_OR_RETURN(control.decoders, ParseDecoders(reader));
  return control;
}

absl::Status ParseLayers(const Reader& reader, ArtifactFormat* format) {
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<Reader> layers, reader.Objects("layers"));
  if (layers.empty()) return reader.Error("layers is empty, want one entry per layer of the model");
  for (const Reader& layer : layers) {
    ALUDEL_ASSIGN_OR_RETURN(ArtifactLayer parsed, ParseLayer(layer));
    format->layers.push_back(parsed);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<CodeRange>> ParseRange(const Reader& reader, size_t groups) {
  ALUDEL_ASSIGN_OR_RETURN(const std::optional<double> end_share, reader.Number("end_share"));
  if (!end_share.has_value()) return std::optional<CodeRange>();
  if (*end_share > 1) {
    return reader.Error(absl::StrFormat("end_share is %g, want a share: 0 to 1", *end_share));
  }
  ALUDEL_ASSIGN_OR_RETURN(std::vector<double> digits, reader.Numbers("code_digits", kMaxDigits));
  if (!digits.empty() && digits.size() != groups) {
    return reader.Error(
        absl::StrFormat("code_digits has %d numbers, want one for each of %d groups", digits.size(), groups));
  }
  return std::optional<CodeRange>({*end_share, std::move(digits)});
}

absl::StatusOr<AludelShape> ParseAludel(const Reader& reader) {
  AludelShape shape;
  ALUDEL_ASSIGN_OR_RETURN(const int64_t recomputed, reader.Int("recomputed_layers", -1, UINT16_MAX));
  shape.recomputed_layers = static_cast<int>(recomputed);
  ALUDEL_ASSIGN_OR_RETURN(shape.head_tokens, reader.Int("recomputed_head_tokens", 0, UINT16_MAX));
  ALUDEL_ASSIGN_OR_RETURN(shape.tail_tokens, reader.Int("recomputed_tail_tokens", 0, UINT16_MAX));
  ALUDEL_ASSIGN_OR_RETURN(const std::string packing, reader.String("packing"));
  const std::optional<LatentPacking> known = ParseLatentPacking(packing);
  if (!known.has_value()) {
    return reader.Error(absl::StrCat("packing is \"", packing,
                                     "\", want \"rans\", \"embedded\", \"deflate\", \"video\" or \"fixed\""));
  }
  shape.packing = *known;
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<Reader> groups, reader.Objects("groups"));
  if (groups.empty()) return reader.Error("groups is empty, want at least one");
  int64_t next = recomputed + 1;
  for (const Reader& group : groups) {
    ALUDEL_ASSIGN_OR_RETURN(const int64_t first, group.Int("first_layer", next, next));
    ALUDEL_ASSIGN_OR_RETURN(const int64_t layers, group.Int("layers", 1, UINT16_MAX - first));
    ALUDEL_ASSIGN_OR_RETURN(const int64_t rank, group.Int("rank", 1, kMaxRank));
    shape.groups.push_back({static_cast<int>(first), static_cast<int>(layers), rank});
    next = first + layers;
  }
  ALUDEL_ASSIGN_OR_RETURN(shape.range, ParseRange(reader, shape.groups.size()));
  return shape;
}

absl::StatusOr<ArtifactFormat> ParseFormat(const Reader& reader) {
  ArtifactFormat format;
  ALUDEL_ASSIGN_OR_RETURN(format.name, reader.String("name"));
  ALUDEL_ASSIGN_OR_RETURN(const std::string kind, reader.String("kind"));
  ALUDEL_ASSIGN_OR_RETURN(const Reader encoder, reader.Object("encoder"));
  ALUDEL_ASSIGN_OR_RETURN(format.encoder, ParseFile(encoder));
  if (kind == "scd") {
    ALUDEL_RETURN_IF_ERROR(ParseLayers(reader, &format));
  } else if (kind == "aludel") {
    format.kind = ArtifactKind::kAludel;
    ALUDEL_ASSIGN_OR_RETURN(format.aludel, ParseAludel(reader));
  } else {
    return reader.Error(absl::StrCat("kind is \"", kind, "\", this build reads \"scd\" and \"aludel\""));
  }
  ALUDEL_ASSIGN_OR_RETURN(format.decoders, ParseDecoders(reader));
  ALUDEL_ASSIGN_OR_RETURN(format.max_kl, reader.Number("max_kl"));
  if (FindMember(reader.value(), "notes") != nullptr) {
    ALUDEL_ASSIGN_OR_RETURN(const Reader notes, reader.Object("notes"));
    for (const auto& [name, value] : notes.value().items()) {
      ALUDEL_ASSIGN_OR_RETURN(format.notes[name], notes.String(name.c_str()));
    }
  }
  return format;
}

}  // namespace

int64_t ArtifactFormat::model_layers() const {
  if (kind == ArtifactKind::kScd) return static_cast<int64_t>(layers.size());
  return aludel.groups.back().first_layer + aludel.groups.back().layers;
}

absl::StatusOr<const ArtifactFormat*> ArtifactManifest::Find(absl::string_view format) const {
  for (const ArtifactFormat& candidate : formats) {
    if (candidate.name == format) return &candidate;
  }
  const std::string names = absl::StrJoin(
      formats, ", ", [](std::string* out, const ArtifactFormat& f) { absl::StrAppend(out, f.name); });
  return absl::NotFoundError(
      absl::StrCat("artifact ", directory, " has no format \"", format, "\", only: ", names));
}

absl::StatusOr<ArtifactManifest> ParseArtifactManifest(absl::string_view text, const std::string& directory) {
  const std::string origin = absl::StrCat(directory, "/", kArtifactManifest);
  ALUDEL_ASSIGN_OR_RETURN(const json document, ParseJson(text, origin, kMaxDepth));
  const Reader reader(document, origin);
  if (!document.is_object()) return reader.Error("want an object");
  ALUDEL_ASSIGN_OR_RETURN(const int64_t version, reader.Int("artifact_version", 0, INT32_MAX));
  if (version != kArtifactVersion) {
    return reader.Error(
        absl::StrFormat("artifact_version is %d, this build reads %d: calibrate again (aludel-calibrate)",
                        version, kArtifactVersion));
  }
  ArtifactManifest manifest;
  manifest.directory = directory;
  ALUDEL_ASSIGN_OR_RETURN(const Reader producer, reader.Object("producer"));
  ALUDEL_ASSIGN_OR_RETURN(manifest.producer, producer.String("name"));
  ALUDEL_ASSIGN_OR_RETURN(manifest.producer_hash, producer.String("hash"));
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<Reader> formats, reader.Objects("formats"));
  for (const Reader& format : formats) {
    ALUDEL_ASSIGN_OR_RETURN(ArtifactFormat parsed, ParseFormat(format));
    if (manifest.Find(parsed.name).ok()) {
      return reader.Error(absl::StrCat("format \"", parsed.name, "\" is given twice"));
    }
    manifest.formats.push_back(std::move(parsed));
  }
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<Reader> controls, reader.Objects("controls"));
  for (const Reader& control : controls) {
    ALUDEL_ASSIGN_OR_RETURN(ArtifactControl parsed, ParseControl(control));
    manifest.controls.push_back(std::move(parsed));
  }
  return manifest;
}

absl::StatusOr<ArtifactManifest> LoadArtifactManifest(const std::string& location) {
  // Once, so that the files are those of this manifest whatever is published meanwhile.
  ALUDEL_ASSIGN_OR_RETURN(const std::string directory, ResolveArtifact(location));
  const std::string path = absl::StrCat(directory, "/", kArtifactManifest);
  ALUDEL_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxManifestBytes));
  return ParseArtifactManifest(text, directory);
}

absl::Status CheckProducer(const ArtifactManifest& manifest, absl::string_view producer_hash) {
  if (manifest.producer_hash == producer_hash) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("artifact %s was calibrated for producer \"%s\" with hash %s, this model's hash is %s",
                      manifest.directory, manifest.producer, manifest.producer_hash, producer_hash));
}

absl::StatusOr<const ArtifactDecoder*> FindDecoder(const ArtifactManifest& manifest, absl::string_view format,
                                                   const std::vector<ArtifactDecoder>& decoders,
                                                   absl::string_view consumer_hash) {
  for (const ArtifactDecoder& decoder : decoders) {
    if (decoder.consumer_hash == consumer_hash) return &decoder;
  }
  const std::string known = absl::StrJoin(decoders, ", ", [](std::string* out, const ArtifactDecoder& d) {
    absl::StrAppend(out, "\"", d.consumer, "\" with hash ", d.consumer_hash);
  });
  return absl::FailedPreconditionError(
      absl::StrFormat("artifact %s, format \"%s\": no decoder for this model, whose hash is %s; it has: %s",
                      manifest.directory, format, consumer_hash, known.empty() ? "none" : known));
}

const ArtifactDecoder* SharedWith(const std::vector<ArtifactDecoder>& decoders,
                                  const ArtifactDecoder& decoder) {
  for (const ArtifactDecoder& other : decoders) {
    if (other.file.file != decoder.file.file) continue;
    return other.consumer_hash == decoder.consumer_hash ? nullptr : &other;
  }
  return nullptr;
}

}  // namespace aludel
