#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "nlohmann/json.hpp"
#include "runtime/model/weights/safetensors.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// The data of every file starts on a cache line; padding belongs to the header, as the format allows.
constexpr size_t kDataAlignment = 64;

absl::Status SystemError(const std::string& path, const char* what) {
  return absl::UnavailableError(absl::StrCat(path, ": ", what, ": ", std::strerror(errno)));
}

absl::Status WriteAll(int fd, absl::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError(path, "write");
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

// The rename is durable only once the directory is.
absl::Status SyncDirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return SystemError(directory, "open");
  const int result = ::fsync(fd);
  ::close(fd);
  return result == 0 ? absl::OkStatus() : SystemError(directory, "fsync");
}

absl::StatusOr<std::string> MakeHeader(const std::string& path, absl::Span<const SafetensorsSpec> tensors,
                                       const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const SafetensorsSpec& tensor : tensors) {
    if (header.contains(tensor.name)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": tensor ", tensor.name, " is given twice"));
    }
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + tensor.bytes}}};
    offset += tensor.bytes;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": names and metadata must be UTF-8: ", error.what()));
  }
  const size_t unpadded = sizeof(uint64_t) + text.size();
  text.append((kDataAlignment - unpadded % kDataAlignment) % kDataAlignment, ' ');
  // What is written is what the reader accepts: one set of rules for both.
  std::map<std::string, SafetensorsEntry> entries;
  std::map<std::string, std::string> read_metadata;
  static const uint8_t kNoData = 0;
  ALUDEL_RETURN_IF_ERROR(ParseSafetensorsHeader(text, &kNoData, offset, path, &entries, &read_metadata));
  return text;
}

absl::Status WriteFile(int fd, const std::string& path, const std::string& header,
                       absl::Span<const SafetensorsSpec> tensors, const TensorSource& source) {
  char length[sizeof(uint64_t)];
  for (size_t i = 0; i < sizeof(length); ++i) length[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  ALUDEL_RETURN_IF_ERROR(WriteAll(fd, absl::string_view(length, sizeof(length)), path));
  ALUDEL_RETURN_IF_ERROR(WriteAll(fd, header, path));
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (size_t offset = 0; offset < tensors[i].bytes;) {
      ALUDEL_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> piece, source(i, offset));
      ALUDEL_CHECK(!piece.empty() && piece.size() <= tensors[i].bytes - offset);
      const auto* bytes = reinterpret_cast<const char*>(piece.data());
      ALUDEL_RETURN_IF_ERROR(WriteAll(fd, absl::string_view(bytes, piece.size()), path));
      offset += piece.size();
    }
  }
  return ::fsync(fd) == 0 ? absl::OkStatus() : SystemError(path, "fsync");
}

}  // namespace

absl::Status WriteSafetensors(const std::string& path, absl::Span<const SafetensorsTensor> tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsSpec> specs;
  for (const SafetensorsTensor& tensor : tensors) {
    specs.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.data.size()});
  }
  return StreamSafetensors(path, specs, metadata,
                           [&](size_t index, size_t offset) { return tensors[index].data.subspan(offset); });
}

absl::Status StreamSafetensors(const std::string& path, absl::Span<const SafetensorsSpec> tensors,
                               const std::map<std::string, std::string>& metadata,
                               const TensorSource& source) {
  ALUDEL_ASSIGN_OR_RETURN(const std::string header, MakeHeader(path, tensors, metadata));
  std::string temporary = path + ".XXXXXX";
  const int fd = ::mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) return SystemError(temporary, "create");
  auto remove_temporary = absl::MakeCleanup([&] { ::unlink(temporary.c_str()); });
  absl::Status status = WriteFile(fd, temporary, header, tensors, source);
  // mkostemp gives 0600; a model file is readable like any other file its owner writes.
  if (status.ok() && ::fchmod(fd, 0644) != 0) status = SystemError(temporary, "chmod");
  if (::close(fd) != 0 && status.ok()) status = SystemError(temporary, "close");
  ALUDEL_RETURN_IF_ERROR(status);
  if (::rename(temporary.c_str(), path.c_str()) != 0) return SystemError(path, "rename");
  std::move(remove_temporary).Cancel();
  return SyncDirectoryOf(path);
}

}  // namespace aludel
