#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/codec/artifact/artifact.h"
#include "runtime/codec/scd/weights.h"
#include "runtime/model/safetensors.h"

namespace aludel {

std::string Sha256Hex(absl::Span<const uint8_t> bytes);

// Tensors of one file of an artefact, with the bytes they point to.
class TensorList {
 public:
  // `narrow` stores bf16 instead of f32.
  void AddMatrix(const std::string& name, const HostMatrix& matrix, bool narrow);
  void AddVector(const std::string& name, const std::vector<float>& values);
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }

 private:
  void Add(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& values,
           bool narrow);

  std::vector<SafetensorsTensor> tensors_;
  std::vector<std::unique_ptr<std::vector<uint8_t>>> bytes_;
};

// Writes `directory`/`name` and hashes what was written.
absl::StatusOr<ArtifactFile> WriteWeights(const std::string& directory, const std::string& name,
                                          const TensorList& tensors);

// One weight file whose bytes are those that the manifest names. Values are finite.
class WeightFile {
 public:
  static absl::StatusOr<WeightFile> Open(const ArtifactManifest& manifest, const ArtifactFile& file);

  const std::string& path() const { return file_->path(); }
  absl::StatusOr<std::vector<float>> Values(const std::string& name, const std::vector<int64_t>& shape) const;
  absl::StatusOr<HostMatrix> Matrix(const std::string& name, int64_t rows, int64_t cols) const;
  bool Has(const std::string& name) const { return file_->Find(name).ok(); }
  // Rows of a matrix whose other dimension is known.
  absl::StatusOr<int64_t> Rows(const std::string& name) const;

 private:
  explicit WeightFile(std::unique_ptr<SafetensorsFile> file) : file_(std::move(file)) {}
  std::unique_ptr<SafetensorsFile> file_;
};

}  // namespace aludel
