#include "runtime/codec/artifact/weight_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/check.h"
#include "kernels/tensor.h"
#include "openssl/evp.h"
#include "runtime/files/json_reader.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr size_t kMaxWeightFileBytes = size_t{1} << 36;

constexpr char kScaleSuffix[] = ".scale";
constexpr float kMaxCode = 127;

// The scale by which a row's largest magnitude becomes code 127. Its lowest seven mantissa bits are zero, so
// that 127 times the scale is exact in f32: a row that is read and stored again finds the same scale.
float RowScale(float largest) {
  const float scale = largest / kMaxCode;
  if (!(scale >= std::numeric_limits<float>::min())) return 1;
  uint32_t bits;
  std::memcpy(&bits, &scale, sizeof(bits));
  bits = (bits + 0x40) & ~uint32_t{0x7f};
  float rounded;
  std::memcpy(&rounded, &bits, sizeof(rounded));
  return rounded;
}

}  // namespace

std::string Sha256Hex(absl::Span<const uint8_t> bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  ALUDEL_CHECK(EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr) == 1);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
}

absl::StatusOr<MatrixStorage> ParseMatrixStorage(absl::string_view name) {
  if (name == "f32") return MatrixStorage::kF32;
  if (name == "bf16") return MatrixStorage::kBf16;
  if (name == "int8") return MatrixStorage::kInt8;
  return absl::InvalidArgumentError(absl::StrCat("matrix storage is \"", name, "\", want f32, bf16 or int8"));
}

void TensorList::AddMatrix(const std::string& name, const HostMatrix& matrix) {
  if (storage_ == MatrixStorage::kInt8) return AddInt8(name, matrix);
  if (storage_ == MatrixStorage::kF32) return Add(name, "F32", {matrix.rows, matrix.cols}, matrix.values);
  std::vector<Bf16> halves(matrix.values.size());
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = ToBf16(matrix.values[i]);
  Add(name, "BF16", {matrix.rows, matrix.cols}, halves);
}

void TensorList::AddVector(const std::string& name, const std::vector<float>& values) {
  Add(name, "F32", {static_cast<int64_t>(values.size())}, values);
}

void TensorList::AddStored(const std::string& name, const SafetensorsEntry& entry) {
  tensors_.push_back({name, entry.dtype, entry.shape, entry.data});
}

void TensorList::AddInt8(const std::string& name, const HostMatrix& matrix) {
  std::vector<int8_t> codes(matrix.values.size());
  std::vector<float> scales(matrix.rows);
  for (int64_t r = 0; r < matrix.rows; ++r) {
    const float* row = matrix.row(r);
    float largest = 0;
    for (int64_t c = 0; c < matrix.cols; ++c) largest = std::max(largest, std::abs(row[c]));
    scales[r] = RowScale(largest);
    for (int64_t c = 0; c < matrix.cols; ++c) {
      const float code = std::round(row[c] / scales[r]);
      codes[r * matrix.cols + c] = static_cast<int8_t>(std::clamp(code, -kMaxCode, kMaxCode));
    }
  }
  Add(name, "I8", {matrix.rows, matrix.cols}, codes);
  Add(name + kScaleSuffix, "F32", {matrix.rows}, scales);
}

template <typename T>
void TensorList::Add(const std::string& name, const char* dtype, std::vector<int64_t> shape,
                     const std::vector<T>& values) {
  auto bytes = std::make_unique<std::vector<uint8_t>>(values.size() * sizeof(T));
  if (!bytes->empty()) std::memcpy(bytes->data(), values.data(), bytes->size());
  tensors_.push_back({name, dtype, std::move(shape), *bytes});
  bytes_.push_back(std::move(bytes));
}

absl::StatusOr<ArtifactFile> WriteWeights(const std::string& directory, const std::string& name,
                                          const TensorList& tensors) {
  const std::string path = absl::StrCat(directory, "/", name);
  ALUDEL_RETURN_IF_ERROR(WriteSafetensors(path, tensors.tensors(), {}));
  ALUDEL_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxWeightFileBytes));
  return ArtifactFile{name, Sha256Hex({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()})};
}

absl::StatusOr<WeightFile> WeightFile::Open(const ArtifactManifest& manifest, const ArtifactFile& file) {
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

absl::StatusOr<const SafetensorsEntry*> WeightFile::FindShaped(const std::string& name,
                                                               const std::vector<int64_t>& shape) const {
  ALUDEL_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, file_->Find(name));
  if (entry->shape == shape) return entry;
  return absl::InvalidArgumentError(absl::StrFormat("%s: tensor %s has shape [%s], want [%s]", file_->path(),
                                                    name, absl::StrJoin(entry->shape, ", "),
                                                    absl::StrJoin(shape, ", ")));
}

absl::StatusOr<std::vector<float>> WeightFile::Values(const std::string& name,
                                                      const std::vector<int64_t>& shape) const {
  ALUDEL_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, FindShaped(name, shape));
  std::vector<float> values(static_cast<size_t>(entry->elements()));
  if (entry->dtype == "F32") {
    if (!values.empty()) std::memcpy(values.data(), entry->data.data(), values.size() * sizeof(float));
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
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: tensor %s, value %d is %g", file_->path(), name, i, values[i]));
  }
  return values;
}

absl::StatusOr<HostMatrix> WeightFile::Matrix(const std::string& name, int64_t rows, int64_t cols) const {
  ALUDEL_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, FindShaped(name, {rows, cols}));
  HostMatrix matrix{rows, cols, {}};
  if (entry->dtype != "I8") {
    ALUDEL_ASSIGN_OR_RETURN(matrix.values, Values(name, {rows, cols}));
    return matrix;
  }
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<float> scales, Values(name + kScaleSuffix, {rows}));
  matrix.values.resize(entry->data.size());
  for (int64_t r = 0; r < rows; ++r) {
    // 128 times the scale must be finite as well.
    if (!std::isfinite(scales[r] * 128)) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: tensor %s%s, value %d is %g", file_->path(),
                                                        name, kScaleSuffix, r, scales[r]));
    }
    for (int64_t c = 0; c < cols; ++c) {
      const auto code = static_cast<int8_t>(entry->data[r * cols + c]);
      matrix.row(r)[c] = static_cast<float>(code) * scales[r];
    }
  }
  return matrix;
}

absl::StatusOr<int64_t> WeightFile::Rows(const std::string& name) const {
  ALUDEL_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, file_->Find(name));
  if (entry->shape.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: tensor %s is a scalar", file_->path(), name));
  }
  return entry->shape[0];
}

}  // namespace aludel
