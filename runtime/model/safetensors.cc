#include "runtime/model/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/model/json_reader.h"
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
struct ByteRange {
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

absl::StatusOr<ByteRange> ReadOffsets(const json& tensor, const std::string& where) {
  const json* offsets = FindMember(tensor, "data_offsets");
  if (offsets == nullptr || !offsets->is_array() || offsets->size() != 2 ||
      !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": data_offsets is ",
                                                   offsets == nullptr ? "missing" : offsets->dump(),
                                                   ", want [begin, end] as two non-negative integers"));
  }
  return ByteRange{(*offsets)[0].get<uint64_t>(), (*offsets)[1].get<uint64_t>(), nullptr};
}

// Elements times element size, or nullopt where that overflows.
std::optional<uint64_t> TensorBytes(const std::vector<int64_t>& shape, size_t element_bytes) {
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
absl::Status CheckCoverage(std::vector<ByteRange> ranges, uint64_t data_bytes, const std::string& path) {
  std::sort(ranges.begin(), ranges.end(), [](const ByteRange& a, const ByteRange& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  uint64_t covered = 0;
  for (const ByteRange& range : ranges) {
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
  std::vector<ByteRange> ranges;
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
    ALUDEL_ASSIGN_OR_RETURN(ByteRange range, ReadOffsets(tensor, where));
    if (range.begin > range.end || range.end > data_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": data_offsets are [", range.begin, ", ",
                                                     range.end, "], want an ascending pair within the ",
                                                     data_bytes, " bytes of data in the file"));
    }
    const std::optional<uint64_t> want_bytes = TensorBytes(entry.shape, element_bytes);
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
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const std::string message = absl::StrCat(path, ": ", std::strerror(errno));
    return errno == ENOENT ? absl::NotFoundError(message) : absl::UnavailableError(message);
  }
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  const uint64_t file_bytes = static_cast<uint64_t>(info.st_size);
  if (file_bytes < sizeof(uint64_t)) {
    ::close(fd);
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": file is ", file_bytes, " bytes, want at least the 8 of the header length"));
  }
  // Private and read-only; the pages are the page cache's, so that a second server on the host shares them.
  void* map = ::mmap(nullptr, file_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  const int map_error = errno;
  if (map == MAP_FAILED) {
    ::close(fd);
    return absl::ResourceExhaustedError(
        absl::StrCat(path, ": mapping ", file_bytes, " bytes: ", std::strerror(map_error)));
  }
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile());
  file->path_ = path;
  file->fd_ = fd;
  file->map_ = map;
  file->map_bytes_ = file_bytes;

  const auto* bytes = static_cast<const uint8_t*>(map);
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

SafetensorsFile::~SafetensorsFile() {
  if (map_ != nullptr) ::munmap(map_, map_bytes_);
  if (fd_ >= 0) ::close(fd_);
}

namespace {

uint64_t PageBytes() {
  static const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return page;
}

}  // namespace

absl::Status SafetensorsFile::Populate(uint64_t begin, uint64_t end) const {
#ifdef MADV_POPULATE_READ
  const uint64_t from = begin / PageBytes() * PageBytes();
  int result = 0;
  do {
    result = ::madvise(static_cast<char*>(map_) + from, end - from, MADV_POPULATE_READ);
  } while (result != 0 && errno == EINTR);
  // A kernel before 5.14 does not know the advice: pages come when they are read.
  if (result != 0 && errno != EINVAL) {
    return absl::DataLossError(absl::StrCat(path_, ": reading bytes ", begin, " to ", end, " of ", map_bytes_,
                                            ": ", std::strerror(errno)));
  }
#endif
  return absl::OkStatus();
}

void SafetensorsFile::Drop(uint64_t begin, uint64_t end, bool from_cache) const {
  // Hints: what cannot be dropped stays. Pages shared with a neighbour are brought in again by it.
  const uint64_t from = begin / PageBytes() * PageBytes();
  if (end > from) ::madvise(static_cast<char*>(map_) + from, end - from, MADV_DONTNEED);
  if (from_cache) {
    ::posix_fadvise(fd_, static_cast<off_t>(begin), static_cast<off_t>(end - begin), POSIX_FADV_DONTNEED);
  }
}

absl::StatusOr<const SafetensorsEntry*> SafetensorsFile::Find(const std::string& name) const {
  const auto it = entries_.find(name);
  if (it == entries_.end()) return absl::NotFoundError(absl::StrCat(path_, ": no tensor ", name));
  return &it->second;
}

}  // namespace aludel
