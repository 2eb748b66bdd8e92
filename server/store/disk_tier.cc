#include "server/store/disk_tier.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

constexpr mode_t kLockMode = 0600;

std::string AsText(const StoreTag& tag) { return {tag.begin(), tag.end()}; }

}  // namespace

DiskTier::DiskTier(Options options, int lock_file)
    : options_(std::move(options)), lock_file_(lock_file), limits_(options_.bytes) {}

absl::StatusOr<std::unique_ptr<DiskTier>> DiskTier::Open(Options options, const Found& found) {
  std::error_code error;
  std::filesystem::create_directories(options.path, error);
  const std::string lock_path = absl::StrCat(options.path, "/", kStoreLock);
  const int lock_file = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kLockMode);
  if (lock_file < 0) return absl::UnavailableError(absl::StrCat(lock_path, ": ", strerror(errno)));
  if (flock(lock_file, LOCK_EX | LOCK_NB) != 0) {
    close(lock_file);
    return absl::FailedPreconditionError(absl::StrCat(options.path, ": another process has this store open"));
  }
  std::unique_ptr<DiskTier> tier(new DiskTier(std::move(options), lock_file));
  ALUDEL_RETURN_IF_ERROR(tier->Recover(found));
  return tier;
}

DiskTier::~DiskTier() {
  if (open_) Seal();
  close(lock_file_);
}

absl::Status DiskTier::Recover(const Found& found) {
  std::vector<int64_t> numbers;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(options_.path, error)) {
    const int64_t number = SegmentNumber(file.path().filename().string());
    if (number >= 0) numbers.push_back(number);
  }
  if (error) return absl::UnavailableError(absl::StrCat(options_.path, ": ", error.message()));
  std::sort(numbers.begin(), numbers.end());
  if (!numbers.empty()) next_number_ = static_cast<uint64_t>(numbers.back()) + 1;
  for (const int64_t number : numbers) {
    const std::string path = absl::StrCat(options_.path, "/", SegmentName(static_cast<uint64_t>(number)));
    const absl::StatusOr<bool> adopted = Adopt(path, found);
    if (adopted.ok() && *adopted) continue;
    if (adopted.ok() && unlink(path.c_str()) == 0) continue;
    ++findings_.unread;
    const std::string why = adopted.ok() ? strerror(errno) : std::string(adopted.status().message());
    spdlog::warn("{}: left alone until the next start: {}", path, why);
    unread_.push_back(path);
    const uint64_t bytes = std::filesystem::file_size(path, error);
    if (error) continue;
    unread_bytes_ += bytes;
    total_->fetch_add(bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> DiskTier::Adopt(const std::string& path, const Found& found) {
  SegmentContents contents;
  absl::StatusOr<std::unique_ptr<SegmentFile>> file = SegmentFile::Open(path, &contents, total_);
  if (!file.ok()) {
    // Anything else, such as too many open files, says nothing of what is in it.
    if (!absl::IsDataLoss(file.status()) && !absl::IsFailedPrecondition(file.status())) return file.status();
    spdlog::warn("{}: not read, and removed: {}", path, std::string(file.status().message()));
    ++findings_.removed;
    return false;
  }
  if (contents.head.producer != options_.producer) {
    spdlog::warn("{}: not read, and removed: made by another model, or with other options", path);
    ++findings_.removed;
    return false;
  }
  if (contents.torn) {
    spdlog::warn("{}: its last record was not finished, and is left out", path);
    ++findings_.torn;
  }
  const std::shared_ptr<SegmentFile> segment = *std::move(file);
  size_t kept = 0;
  size_t foreign = 0;
  for (const ChunkEntry& entry : contents.entries) {
    if (entry.block == 0) {
      found(entry, {});
    } else if (!options_.encoders.contains(AsText(entry.encoder))) {
      ++foreign;
    } else if (uint64_t{entry.block} * kStoreBlock + entry.record_bytes() <= segment->bytes()) {
      ++kept;
      found(entry, {segment, entry.block, entry.meta_bytes, entry.payload_bytes, entry.planes});
    }
  }
  findings_.foreign += foreign;
  if (foreign > 0)
    spdlog::warn("{}: {} chunks of formats that this server does not have are not read", path, foreign);
  const bool has_tombstones = contents.entries.size() > kept + foreign;
  if (kept == 0 && !has_tombstones) return false;
  segments_.push_back(segment);
  return true;
}

uint64_t DiskTier::Footer() const { return open_ ? FooterBytes(footer_.size()) : 0; }

bool DiskTier::HasRoom(uint64_t record_bytes, size_t entries) const {
  return limits_.HasRoom(bytes(), segments_.size(), record_bytes, footer_.size() + entries, entries);
}

bool DiskTier::IsTight(uint64_t record_bytes, size_t entries) const {
  uint64_t held = unread_bytes_;
  for (const std::shared_ptr<SegmentFile>& segment : segments_) held += segment->bytes();
  return limits_.IsTight(held, segments_.size(), record_bytes, footer_.size() + entries);
}

absl::StatusOr<std::shared_ptr<SegmentFile>> DiskTier::DropOldest() {
  ALUDEL_RETURN_IF_ERROR(segments_.front()->Unlink());
  if (segments_.size() == 1) {
    open_ = false;
    footer_.clear();
  }
  std::shared_ptr<SegmentFile> oldest = std::move(segments_.front());
  segments_.pop_front();
  return oldest;
}

void DiskTier::Seal() {
  SegmentFile& youngest = *segments_.back();
  absl::Status status = youngest.Append(EncodeFooter(footer_, youngest.next()));
  if (status.ok()) status = youngest.Sync();
  // Without its footer it is scanned.
  if (!status.ok()) spdlog::warn("{}", std::string(status.message()));
  open_ = false;
  footer_.clear();
}

absl::Status DiskTier::Write(size_t bytes,
                             const std::function<std::vector<uint8_t>(const RecordPlace&)>& encode) {
  if (open_ && segments_.back()->bytes() > kStoreBlock &&
      segments_.back()->bytes() + bytes + Footer() > limits_.segment_bytes()) {
    Seal();
  }
  if (!open_) {
    absl::StatusOr<std::unique_ptr<SegmentFile>> created =
        SegmentFile::Create(options_.path, {next_number_, options_.producer}, total_);
    ++next_number_;
    if (!created.ok()) return created.status();
    segments_.push_back(*std::move(created));
    open_ = true;
  }
  const std::vector<uint8_t> record = encode(segments_.back()->next());
  const absl::Status appended = segments_.back()->Append(record);
  if (segments_.back()->is_torn()) {
    open_ = false;  // no footer either: it is scanned up to here
    footer_.clear();
  }
  ALUDEL_RETURN_IF_ERROR(appended);
  written_.fetch_add(record.size());
  return absl::OkStatus();
}

absl::StatusOr<DiskPlace> DiskTier::Append(ChunkMeta meta,
                                           absl::Span<const absl::Span<const uint8_t>> payloads) {
  size_t bytes = ChunkMetaBytes(meta.tokens.size(), meta.frames.size());
  for (const auto& payload : payloads) bytes += payload.size();
  ALUDEL_RETURN_IF_ERROR(Write(RoundUpToBlock(bytes), [&](const RecordPlace& place) {
    return EncodeChunkRecord(&meta, place, payloads);
  }));
  footer_.push_back(meta.entry);
  const ChunkEntry& entry = meta.entry;
  return DiskPlace{segments_.back(), entry.block, entry.meta_bytes, entry.payload_bytes, entry.planes};
}

absl::Status DiskTier::AppendTombstones(absl::Span<const StoreKey> keys) {
  const size_t bytes = RoundUpToBlock(kRecordHeadBytes + keys.size() * sizeof(StoreKey));
  ALUDEL_RETURN_IF_ERROR(
      Write(bytes, [&](const RecordPlace& place) { return EncodeTombstones(keys, place); }));
  for (const StoreKey& key : keys) footer_.emplace_back().key = key;
  return absl::OkStatus();
}

absl::Status DiskTier::Sync() { return open_ ? segments_.back()->Sync() : absl::OkStatus(); }

absl::Status DiskTier::Clear() {
  open_ = false;
  footer_.clear();
  absl::Status status;
  std::deque<std::shared_ptr<SegmentFile>> stay;
  for (std::shared_ptr<SegmentFile>& segment : segments_) {
    const absl::Status unlinked = segment->Unlink();
    status.Update(unlinked);
    if (!unlinked.ok()) stay.push_back(std::move(segment));
  }
  segments_ = std::move(stay);
  absl::Status unread;
  for (const std::string& path : unread_) {
    if (unlink(path.c_str()) != 0 && errno != ENOENT) {
      unread.Update(absl::UnavailableError(absl::StrCat(path, ": unlink: ", strerror(errno))));
    }
  }
  if (unread.ok()) {
    total_->fetch_sub(std::exchange(unread_bytes_, 0));
    unread_.clear();
  }
  status.Update(unread);
  status.Update(SyncDirectory());
  return status;
}

absl::Status DiskTier::SyncDirectory() const {
  const int directory = open(options_.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return absl::UnavailableError(absl::StrCat(options_.path, ": ", strerror(errno)));
  const bool synced = fsync(directory) == 0;
  close(directory);
  return synced ? absl::OkStatus() : absl::UnavailableError(absl::StrCat(options_.path, ": fsync failed"));
}

}  // namespace aludel
