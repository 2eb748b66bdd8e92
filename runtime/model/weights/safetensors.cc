#include "runtime/model/weights/safetensors.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/files/json_reader.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using nlohmann::json;

// The format's own limit on the header; a 1,000-layer model needs less than 2 MB.
constexpr uint64_t kMaxHeaderBytes = 100u << 20;
constexpr int kHeaderDepth = 4;
constexpr size_t kMaxRank = 16;

// Bytes per element; 0 for a dtype that this reader does not know.
size_t DtypeBytes(absl::string_view dtype) {
  static constexpr struct {
    absl::string_view name;
    size_t bytes;
  } kDtypes[] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
                 {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
                 {"F32", 4},  {"I64", 8}, {"U64", 8}, {"F64", 8},     {"C64", 8}};
  for (const auto& known : kDtypes) {
    if (known.name == dtype) return known.bytes;
  }
  return 0;
}

// A member of the header while its place among the others is not checked yet.
struct TensorRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  const std::string* tensor = nullptr;
};

absl::StatusOr<std::vector<int64_t>> ReadShape(const json& tensor, const std::string& where) {
  const json* shape = FindMember(tensor, "shape");
  if (shape == nullptr || !shape->is_array() || shape->size() > kMaxRank) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": shape is ",
                                                   shape == nullptr ? "missing" : DescribeJson(*shape),
                                                   ", want an array of at most ", kMaxRank, " integers"));
  }
  std::vector<int64_t> result;
  for (const json& dimension : *shape) {
    if (!dimension.is_number_unsigned() || dimension.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": shape holds ", DescribeJson(dimension), ", want a non-negative integer"));
    }
    result.push_back(dimension.get<int64_t>());
  }
  return result;
}

absl::StatusOr<TensorRange> ReadOffsets(const json& tensor, const std::string& where) {
  const json* offsets = FindMember(tensor, "data_offsets");
  if (offsets == nullptr || !offsets->is_array() || offsets->size() != 2 ||
      !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": data_offsets is ",
                                                   offsets == nullptr ? "missing" : offsets->dump(),
                                                   ", want [begin, end] as two non-negative integers"));
  }
  return TensorRange{(*offsets)[0].get<uint64_t>(), (*offsets)[1].get<uint64_t>(), nullptr};
}

// Elements times element size, or nullopt where that overflows.
std::optional<uint64_t> BytesOfTensor(const std::vector<int64_t>& shape, size_t element_bytes) {
  uint64_t bytes = element_bytes;
  for (const int64_t dimension : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dimension), &bytes)) return std::nullopt;
  }
  return bytes;
}

absl::Status ReadMetadata(const json& metadata, const std::string& path,
                          std::map<std::string, std::string>* result) {
  if (!metadata.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": __metadata__ is ", DescribeJson(metadata), ", want an object of strings"));
  }
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": __metadata__.", key, " is ", DescribeJson(value), ", want a string"));
    }
    (*result)[key] = value.get<std::string>();
  }
  return absl::OkStatus();
}

// The format wants the tensors to cover the data without a hole and without sharing a byte: a hole hides
// bytes from every reader, an overlap is a file that was cut or made up.
absl::Status CheckCoverage(std::vector<TensorRange> ranges, uint64_t data_bytes, const std::string& path) {
  std::sort(ranges.begin(), ranges.end(), [](const TensorRange& a, const TensorRange& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  uint64_t covered = 0;
  for (const TensorRange& range : ranges) {
    if (range.begin != covered) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor ", *range.tensor, ": data starts at byte ", range.begin, ", want ",
                       covered, range.begin < covered ? " (tensors overlap)" : " (bytes of no tensor)"));
    }
    covered = range.end;
  }
  if (covered != data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": tensors end at byte ", covered,
                                                   " of the data, but the file holds ", data_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t SafetensorsEntry::elements() const {
  int64_t count = 1;
  for (const int64_t dimension : shape) count *= dimension;
  return count;
}

absl::Status ParseSafetensorsHeader(absl::string_view header, const uint8_t* data, size_t data_bytes,
                                    const std::string& path, std::map<std::string, SafetensorsEntry>* entries,
                                    std::map<std::string, std::string>* metadata) {
  entries->clear();
  metadata->clear();
  ALUDEL_ASSIGN_OR_RETURN(const json root, ParseJson(header, path, kHeaderDepth));
  if (!root.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": header is ", DescribeJson(root), ", want an object of tensors"));
  }
  std::vector<TensorRange> ranges;
  for (const auto& [name, tensor] : root.items()) {
    if (name == "__metadata__") {
      ALUDEL_RETURN_IF_ERROR(ReadMetadata(tensor, path, metadata));
      continue;
    }
    const std::string where = absl::StrCat(path, ": tensor ", name);
    SafetensorsEntry entry;
    ALUDEL_ASSIGN_OR_RETURN(entry.dtype, StringMember(tensor, "dtype", "", where));
    const size_t element_bytes = DtypeBytes(entry.dtype);
    if (element_bytes == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, ": dtype is \"", entry.dtype,
          "\", want one of BOOL, U8..U64, I8..I64, F16, BF16, F32, F64, ", "C64, F8_E4M3, F8_E5M2, F8_E8M0"));
    }
    ALUDEL_ASSIGN_OR_RETURN(entry.shape, ReadShape(tensor, where));
    ALUDEL_ASSIGN_OR_RETURN(TensorRange range, ReadOffsets(tensor, where));
    if (range.begin > range.end || range.end > data_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": data_offsets are [", range.begin, ", ",
                                                     range.end, "], want an ascending pair within the ",
                                                     data_bytes, " bytes of data in the file"));
    }
    const std::optional<uint64_t> want_bytes = BytesOfTensor(entry.shape, element_bytes);
    if (!want_bytes.has_value() || *want_bytes != range.end - range.begin) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": data is ", range.end - range.begin, " bytes, want ",
                       want_bytes.has_value() ? absl::StrCat(*want_bytes) : "more than 2^64", " for ",
                       entry.dtype, " ", tensor["shape"].dump()));
    }
    entry.data = absl::MakeConstSpan(data + range.begin, range.end - range.begin);
    range.tensor = &entries->emplace(name, std::move(entry)).first->first;
    ranges.push_back(range);
  }
  return CheckCoverage(std::move(ranges), data_bytes, path);
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile());
  ALUDEL_ASSIGN_OR_RETURN(file->map_, FileMap::Open(path));
  const uint64_t file_bytes = file->size();
  if (file_bytes < sizeof(uint64_t)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": file is ", file_bytes, " bytes, want at least the 8 of the header length"));
  }
  const uint8_t* bytes = file->map_->data();
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | bytes[i];
  if (header_bytes > kMaxHeaderBytes || header_bytes > file_bytes - sizeof(uint64_t)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": header length is ", header_bytes, ", want at most ",
        std::min(kMaxHeaderBytes, file_bytes - sizeof(uint64_t)), " (file of ", file_bytes, " bytes)"));
  }
  const uint8_t* data = bytes + sizeof(uint64_t) + header_bytes;
  const absl::string_view header(reinterpret_cast<const char*>(bytes) + sizeof(uint64_t), header_bytes);
  ALUDEL_RETURN_IF_ERROR(ParseSafetensorsHeader(header, data, file_bytes - sizeof(uint64_t) - header_bytes,
                                                path, &file->entries_, &file->metadata_));
  return file;
}

absl::StatusOr<const SafetensorsEntry*> SafetensorsFile::Find(const std::string& name) const {
  const auto it = entries_.find(name);
  if (it == entries_.end()) return absl::NotFoundError(absl::StrCat(path(), ": no tensor ", name));
  return &it->second;
}

}  // namespace aludel
