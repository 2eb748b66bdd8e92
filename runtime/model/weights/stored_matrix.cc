#include "runtime/model/weights/stored_matrix.h"

#include <cstring>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/model/adapters/adapted_matrix.h"
#include "runtime/model/weights/quantized_weights.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// IEEE-754 binary16 to binary32, exactly; clang 14 has no _Float16 for plain x86-64.
float FromHalf(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude < 0x0400u) {  // zero and subnormal
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  const uint32_t exponent_shift = magnitude >= 0x7c00u ? 224u << 23 : 112u << 23;  // infinity and NaN stay so
  return __builtin_bit_cast(float, sign | ((magnitude << 13) + exponent_shift));
}

// Tensors of a file may lie at odd addresses: elements are read with memcpy.
template <typename T>
T Load(const SafetensorsEntry& entry, int64_t index) {
  T value;
  std::memcpy(&value, entry.data.data() + index * sizeof(T), sizeof(T));
  return value;
}

class PlainMatrix final : public StoredMatrix {
 public:
  PlainMatrix(int64_t rows, int64_t cols, const SafetensorsEntry* entry)
      : StoredMatrix(rows, cols, {entry}), entry_(entry) {}

  void Read(int64_t begin, int64_t end, float* out) const override {
    ReadPlain(*entry_, begin * cols(), (end - begin) * cols(), out);
  }

  std::vector<TensorBytes> BytesOf(int64_t begin, int64_t end) const override {
    const size_t row_bytes = rows() == 0 ? 0 : entry_->data.size() / static_cast<size_t>(rows());
    return {{entry_, begin * row_bytes, end * row_bytes}};
  }

  TensorView InPlace() const override {
    if (entry_->dtype == "F16") return {};
    const DType dtype = entry_->dtype == "F32" ? DType::kF32 : DType::kBf16;
    if (reinterpret_cast<uintptr_t>(entry_->data.data()) % SizeOf(dtype) != 0) return {};
    return {const_cast<uint8_t*>(entry_->data.data()), dtype, rows(), cols(), cols()};  // never written to
  }

 private:
  const SafetensorsEntry* entry_;
};

}  // namespace

absl::StatusOr<const SafetensorsEntry*> FindShaped(const ModelFiles& files, const std::string& name,
                                                   const std::vector<int64_t>& shape) {
  ALUDEL_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, files.Find(name));
  if (entry->shape == shape) return entry;
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: tensor %s has shape [%s], config.json wants [%s]", files.directory(), name,
                      absl::StrJoin(entry->shape, ", "), absl::StrJoin(shape, ", ")));
}

bool IsPlain(const SafetensorsEntry& entry) {
  return entry.dtype == "F32" || entry.dtype == "BF16" || entry.dtype == "F16";
}

float PlainElement(const SafetensorsEntry& entry, int64_t index) {
  if (entry.dtype == "F32") return Load<float>(entry, index);
  if (entry.dtype == "BF16") return ToFloat(Load<Bf16>(entry, index));
  return FromHalf(Load<uint16_t>(entry, index));
}

void ReadPlain(const SafetensorsEntry& entry, int64_t begin, int64_t count, float* out) {
  if (entry.dtype == "F32") {
    std::memcpy(out, entry.data.data() + begin * sizeof(float), count * sizeof(float));
  } else if (entry.dtype == "BF16") {
    for (int64_t i = 0; i < count; ++i) out[i] = ToFloat(Load<Bf16>(entry, begin + i));
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = FromHalf(Load<uint16_t>(entry, begin + i));
  }
}

namespace {

absl::StatusOr<std::unique_ptr<StoredMatrix>> OpenOfBase(const ModelFiles& files,
                                                         const QuantizationConfig& quantization,
                                                         const std::string& module, int64_t rows,
                                                         int64_t cols) {
  const bool int4 =
      quantization.method == QuantizationMethod::kAwq || quantization.method == QuantizationMethod::kGptq;
  if (int4 && files.Contains(module + ".qweight")) {
    return quantization.method == QuantizationMethod::kAwq
               ? OpenAwqMatrix(files, quantization, module, rows, cols)
               : OpenGptqMatrix(files, quantization, module, rows, cols);
  }
  const std::string name = module + ".weight";
  ALUDEL_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, FindShaped(files, name, {rows, cols}));
  if (quantization.method == QuantizationMethod::kFp8 && entry->dtype == "F8_E4M3") {
    return OpenFp8Matrix(files, quantization, module, rows, cols);
  }
  if (!IsPlain(*entry)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: tensor %s has dtype %s, supported are BF16, F16, F32 (and what quantization_config "
        "of config.json says: %s)",
        files.directory(), name, entry->dtype, Name(quantization.method)));
  }
  return std::make_unique<PlainMatrix>(rows, cols, entry);
}

}  // namespace

absl::StatusOr<std::unique_ptr<StoredMatrix>> StoredMatrix::Open(const ModelFiles& files,
                                                                 const QuantizationConfig& quantization,
                                                                 const std::string& module, int64_t rows,
                                                                 int64_t cols) {
  ALUDEL_ASSIGN_OR_RETURN(std::unique_ptr<StoredMatrix> matrix,
                          OpenOfBase(files, quantization, module, rows, cols));
  if (files.adapter() == nullptr) return matrix;
  ALUDEL_ASSIGN_OR_RETURN(const std::optional<LoraUpdate> update, files.adapter()->Find(module, rows, cols));
  return update.has_value() ? Adapt(std::move(matrix), *update) : std::move(matrix);
}

}  // namespace aludel
