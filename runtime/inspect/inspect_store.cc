#include "runtime/inspect/inspect_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "runtime/codec/store/segment_scan.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

class File {
 public:
  explicit File(const std::string& path) : file_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~File() {
    if (file_ >= 0) close(file_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return file_; }

 private:
  const int file_;
};

struct Totals {
  size_t chunks = 0;
  size_t damaged = 0;
  uint64_t tokens = 0;
  uint64_t bytes = 0;
  std::map<std::string, size_t> encoders;  // chunks of each
  std::set<StoreTag> salts;
  std::set<StoreKey> keys;
};

template <typename Bytes>
std::string Hex(const Bytes& bytes) {
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

ordered_json InspectSegment(const std::string& path, Totals* totals) {
  ordered_json row = {{"segment", std::filesystem::path(path).filename().string()}};
  const File file(path);
  struct stat status = {};
  if (file.get() < 0 || fstat(file.get(), &status) != 0) {
    row["state"] = strerror(errno);
    return row;
  }
  const auto bytes = static_cast<uint64_t>(status.st_size);
  row["bytes"] = bytes;
  totals->bytes += bytes;
  const absl::StatusOr<SegmentContents> contents = ScanSegment(file.get(), bytes);
  if (!contents.ok()) {
    row["state"] = std::string(contents.status().message());
    return row;
  }
  size_t chunks = 0;
  size_t tombstones = 0;
  size_t damaged = 0;
  for (const ChunkEntry& entry : contents->entries) {
    if (entry.block == 0) {
      ++tombstones;
    } else if (uint64_t{entry.block} * kStoreBlock + entry.record_bytes() > bytes ||
               !LoadChunk(file.get(), contents->head.number, entry).ok()) {
      ++damaged;
    } else {
      ++chunks;
      totals->tokens += entry.tokens;
      ++totals->encoders[Hex(entry.encoder)];
      totals->salts.insert(entry.salt);
      totals->keys.insert(entry.key);
    }
  }
  totals->chunks += chunks;
  totals->damaged += damaged;
  row["chunks"] = chunks;
  row["tombstones"] = tombstones;
  row["damaged"] = damaged;
  row["state"] = contents->sealed ? "sealed" : "not sealed";
  row["producer"] = Hex(contents->head.producer);
  return row;
}

}  // namespace

absl::StatusOr<ordered_json> InspectStore(const std::string& directory) {
  const File lock(absl::StrCat(directory, "/", kStoreLock));
  if (lock.get() < 0) {
    return absl::NotFoundError(
        absl::StrCat(directory, ": no prefix store: ", kStoreLock, ": ", strerror(errno)));
  }
  // Shared: several may look at once, and none while a server writes.
  if (flock(lock.get(), LOCK_SH | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(directory, ": a server has this store open"));
  }
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(directory, error)) {
    if (SegmentNumber(file.path().filename().string()) >= 0) paths.push_back(file.path().string());
  }
  if (error) return absl::UnavailableError(absl::StrCat(directory, ": ", error.message()));
  std::sort(paths.begin(), paths.end());
  Totals totals;
  ordered_json segments = ordered_json::array();
  for (const std::string& path : paths) segments.push_back(InspectSegment(path, &totals));
  ordered_json report = {{"store",
                          {{"directory", directory},
                           {"segments", segments.size()},
                           {"bytes", totals.bytes},
                           {"chunks", totals.chunks},
                           {"distinct_chunks", totals.keys.size()},
                           {"tokens", totals.tokens},
                           {"salts", totals.salts.size()},
                           {"damaged", totals.damaged}}}};
  for (const auto& [encoder, chunks] : totals.encoders) {
    report["encoders"].push_back({{"encoder", encoder}, {"chunks", chunks}});
  }
  report["segments"] = std::move(segments);
  return report;
}

}  // namespace aludel
