#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/codec/aludel/weights.h"
#include "runtime/codec/scd/weights.h"

namespace aludel {

// What calibration leaves behind, as a directory:
//   artifact.json                          manifest: models, formats, files and their SHA-256
//   FORMAT.encoder.safetensors             one per format, the producer's
//   FORMAT.CONSUMER.decoder.safetensors    one per format (or control) and consumer
// A server loads the manifest and its own half. Hashes tie everything together: of the producer's and the
// consumers' models (Transformer::hash()), and of every file. Bytes come from disk, therefore every mistake
// in them is a status that names the file, the field, what was found and what was expected.

inline constexpr int kArtifactVersion = 3;
inline constexpr char kArtifactManifest[] = "artifact.json";

struct ArtifactFile {
  std::string file;    // a plain name inside the directory
  std::string sha256;  // of its bytes, hex
};

// Shape of one layer's codes. rank_k and rank_v count in a Reuse layer, rank_h in a Patch layer.
struct ArtifactLayer {
  ScdMode mode = ScdMode::kReuse;
  int64_t rank_k = 0;
  int64_t rank_v = 0;
  int64_t rank_h = 0;
};

// What calibration measured on prompts that it held out of every fit.
struct ExpectedLoss {
  double kl = 0;  // nats, mean over answer tokens
  double bytes_per_token = 0;
};

struct ArtifactDecoder {
  std::string consumer;       // a name for people
  std::string consumer_hash;  // of the model it was fitted to
  ArtifactFile file;
  std::optional<ExpectedLoss> expected;
};

// Which codec reads a format's files.
enum class ArtifactKind : uint8_t { kScd, kAludel };

struct ArtifactFormat {
  std::string name;
  ArtifactKind kind = ArtifactKind::kScd;
  std::vector<ArtifactLayer> layers;  // of an scd format
  AludelShape aludel;                 // of an aludel format
  int64_t model_layers() const;
  ArtifactFile encoder;
  std::vector<ArtifactDecoder> decoders;
  std::optional<double> max_kl;  // the loss that the user asked for, nats
  // How it was made, for people: options, data, measured gains. Strings keep it out of what code depends on.
  std::map<std::string, std::string> notes;
};

// A zero-byte control (scd/control.h): decoders alone.
struct ArtifactControl {
  std::string name;
  int recomputed_layers = 0;
  int64_t layers = 0;  // of the model
  std::vector<ArtifactDecoder> decoders;
};

struct ArtifactManifest {
  std::string directory;
  std::string producer;
  std::string producer_hash;
  std::vector<ArtifactFormat> formats;
  std::vector<ArtifactControl> controls;

  // NotFound lists the formats that there are.
  absl::StatusOr<const ArtifactFormat*> Find(absl::string_view format) const;
};

// `directory` is kept and appears in errors; no other file is touched.
absl::StatusOr<ArtifactManifest> ParseArtifactManifest(absl::string_view json, const std::string& directory);
// `location`: see ResolveArtifact (artifact_versions.h); the manifest's directory is the one that it led to.
absl::StatusOr<ArtifactManifest> LoadArtifactManifest(const std::string& location);

// FailedPrecondition unless `producer_hash` is the model that the encoder was fitted to.
absl::Status CheckProducer(const ArtifactManifest& manifest, absl::string_view producer_hash);
// The decoder of `format` (a format or control) for this model; FailedPrecondition names its hash and the
// consumers that there are.
absl::StatusOr<const ArtifactDecoder*> FindDecoder(const ArtifactManifest& manifest, absl::string_view format,
                                                   const std::vector<ArtifactDecoder>& decoders,
                                                   absl::string_view consumer_hash);

// Whose decoder this one of `decoders` is, too (aludel-calibrate --share): the first entry of its file. Null where
// that is its own.
const ArtifactDecoder* SharedWith(const std::vector<ArtifactDecoder>& decoders,
                                  const ArtifactDecoder& decoder);

// Reads one half, checked against the file's hash, the manifest's ranks and the model's dimensions.
absl::StatusOr<ScdEncoderWeights> LoadScdEncoder(const ArtifactManifest& manifest,
                                                 const ArtifactFormat& format, int64_t kv_dim,
                                                 int64_t hidden);
absl::StatusOr<ScdDecoderWeights> LoadScdDecoder(const ArtifactManifest& manifest,
                                                 const ArtifactFormat& format, const ArtifactDecoder& decoder,
                                                 int64_t kv_dim, int64_t hidden);
absl::StatusOr<ControlWeights> LoadControl(const ArtifactManifest& manifest, const ArtifactControl& control,
                                           const ArtifactDecoder& decoder, int64_t kv_dim, int64_t hidden);

}  // namespace aludel
