#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/codec/artifact/artifact.h"
#include "runtime/codec/scd/weights.h"
#include "runtime/model/weights/safetensors.h"

namespace aludel {

std::string Sha256Hex(absl::Span<const uint8_t> bytes);

// How the matrices of an artifact are stored; vectors are always F32. kInt8 has a scale per row, which costs
// a row 0.8 % of its size in noise. Matrices are read into f32 whatever they are stored as.
enum class MatrixStorage : uint8_t { kF32, kBf16, kInt8 };

// "f32", "bf16" or "int8".
absl::StatusOr<MatrixStorage> ParseMatrixStorage(absl::string_view name);

// Tensors of one file of an artifact, with the bytes they point to.
class TensorList {
 public:
  explicit TensorList(MatrixStorage storage) : storage_(storage) {}

  // In kInt8 a zero row has scale 1. What was read from int8 is stored as the same bytes again.
  void AddMatrix(const std::string& name, const HostMatrix& matrix);
  void AddVector(const std::string& name, const std::vector<float>& values);
  // As a file has it; the file outlives the list.
  void AddStored(const std::string& name, const SafetensorsEntry& entry);
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }

 private:
  void AddInt8(const std::string& name, const HostMatrix& matrix);
  // Takes `values` along in their own type.
  template <typename T>
  void Add(const std::string& name, const char* dtype, std::vector<int64_t> shape,
           const std::vector<T>& values);

  MatrixStorage storage_;
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
  // F32, BF16, or I8 with its scales in `name`.scale.
  absl::StatusOr<HostMatrix> Matrix(const std::string& name, int64_t rows, int64_t cols) const;
  const std::map<std::string, SafetensorsEntry>& entries() const { return file_->entries(); }
  bool Has(const std::string& name) const { return file_->Find(name).ok(); }
  // Rows of a matrix whose other dimension is known.
  absl::StatusOr<int64_t> Rows(const std::string& name) const;

 private:
  explicit WeightFile(std::unique_ptr<SafetensorsFile> file) : file_(std::move(file)) {}
  absl::StatusOr<const SafetensorsEntry*> FindShaped(const std::string& name,
                                                     const std::vector<int64_t>& shape) const;

  std::unique_ptr<SafetensorsFile> file_;
};

}  // namespace aludel
