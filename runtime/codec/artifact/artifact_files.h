#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/codec/artifact/artifact.h"
#include "runtime/codec/artifact/weight_file.h"

namespace aludel {

// Builds an artifact beside its destination and puts it there in one step: until Publish has returned, and
// after a destructor without it, the destination holds what it held before. In a directory of versions
// (artifact_versions.h), or at its `current`, it becomes a new version, and the current one. Not thread-safe.
class ArtifactWriter {
 public:
  static absl::StatusOr<ArtifactWriter> Begin(const std::string& destination,
                                              MatrixStorage storage = MatrixStorage::kBf16);
  ~ArtifactWriter();
  ArtifactWriter(ArtifactWriter&& other) noexcept
      : destination_(std::move(other.destination_)),
        partial_(std::exchange(other.partial_, "")),
        storage_(other.storage_),
        kept_(std::move(other.kept_)) {}
  ArtifactWriter& operator=(ArtifactWriter&&) = delete;

  absl::StatusOr<ArtifactFile> AddEncoder(const std::string& format, const ScdEncoderWeights& weights);
  absl::StatusOr<ArtifactFile> AddDecoder(const std::string& format, const std::string& consumer,
                                          const ScdDecoderWeights& weights);
  absl::StatusOr<ArtifactFile> AddEncoder(const std::string& format, const AludelEncoderWeights& weights);
  absl::StatusOr<ArtifactFile> AddDecoder(const std::string& format, const std::string& consumer,
                                          const AludelDecoderWeights& weights);
  absl::StatusOr<ArtifactFile> AddControl(const std::string& control, const std::string& consumer,
                                          const ControlWeights& weights);

  // Takes a file of another artifact along as it is; one that was taken along before (decoders of several
  // consumers may be one file) is there already. AlreadyExists where this artifact has another file of the name.
  absl::Status Keep(const ArtifactManifest& from, const ArtifactFile& file);
  // Takes along what is in a file of another artifact, byte for byte, with these F32 vectors added to it or in
  // place of those of their names.
  absl::StatusOr<ArtifactFile> KeepWithVectors(const ArtifactManifest& from, const ArtifactFile& file,
                                               const std::map<std::string, std::vector<float>>& vectors);

  // Writes the manifest (its `directory` does not matter) and replaces the destination.
  absl::Status Publish(const ArtifactManifest& manifest);

 private:
  ArtifactWriter(std::string destination, std::string partial, MatrixStorage storage)
      : destination_(std::move(destination)), partial_(std::move(partial)), storage_(storage) {}

  // AlreadyExists where a file of this name is there.
  absl::Status CheckNew(const std::string& name) const;
  absl::StatusOr<ArtifactFile> Write(const std::string& name, const TensorList& tensors) const;

  std::string destination_;
  std::string partial_;  // empty once published or moved from
  MatrixStorage storage_;
  std::map<std::string, std::string> kept_;  // SHA-256 of files taken along as they are, by name
};

// Takes along every format of `old` whose name is not in `replaced`, and all controls unless
// `replace_controls`, files and entries. Its producer must be that of `manifest`: FailedPrecondition.
absl::Status KeepFormats(const ArtifactManifest& old, const std::vector<std::string>& replaced,
                         bool replace_controls, ArtifactWriter* writer, ArtifactManifest* manifest);

// The manifest in `directory`, or nothing where there is none yet.
absl::StatusOr<std::optional<ArtifactManifest>> FindArtifact(const std::string& directory);

}  // namespace aludel
