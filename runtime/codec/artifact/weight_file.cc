#include "runtime/codec/artifact/weight_file.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/check.h"
#include "kernels/tensor.h"
#include "openssl/evp.h"
#include "runtime/model/json_reader.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr size_t kMaxWeightFileBytes = size_t{1} << 36;

}  // namespace

std::string Sha256Hex(absl::Span<const uint8_t> bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  ALUDEL_CHECK(EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr) == 1);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
}

void TensorList::AddMatrix(const std::string& name, const HostMatrix& matrix, bool narrow) {
  Add(name, {matrix.rows, matrix.cols}, matrix.values, narrow);
}

void TensorList::AddVector(const std::string& name, const std::vector<float>& values) {
  Add(name, {static_cast<int64_t>(values.size())}, values, /*narrow=*/false);
}

void TensorList::Add(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& values,
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

absl::StatusOr<std::vector<float>> WeightFile::Values(const std::string& name,
                                                      const std::vector<int64_t>& shape) const {
  ALUDEL_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, file_->Find(name));
  if (entry->shape != shape) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: tensor %s has shape [%s], want [%s]",
                                                      file_->path(), name, absl::StrJoin(entry->shape, ", "),
                                                      absl::StrJoin(shape, ", ")));
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
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: tensor %s, value %d is %g", file_->path(), name, i, values[i]));
  }
  return values;
}

absl::StatusOr<HostMatrix> WeightFile::Matrix(const std::string& name, int64_t rows, int64_t cols) const {
  HostMatrix matrix{rows, cols, {}};
  ALUDEL_ASSIGN_OR_RETURN(matrix.values, Values(name, {rows, cols}));
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
