#include "runtime/codec/store/segment_scan.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr char kNamePrefix[] = "segment-";
constexpr size_t kDigits = 16;

absl::StatusOr<RecordHead> ReadHead(int file, const RecordPlace& place) {
  std::array<uint8_t, kRecordHeadBytes> bytes;
  ALUDEL_RETURN_IF_ERROR(ReadAt(file, uint64_t{place.block} * kStoreBlock, absl::MakeSpan(bytes)));
  return DecodeRecordHead(bytes, place);
}

absl::StatusOr<std::vector<uint8_t>> ReadMeta(int file, const RecordHead& head, uint64_t file_bytes) {
  const uint64_t offset = uint64_t{head.entry.block} * kStoreBlock;
  if (offset + head.entry.record_bytes() > file_bytes)
    return absl::OutOfRangeError("a record behind the file's end");
  std::vector<uint8_t> meta(head.entry.meta_bytes);
  ALUDEL_RETURN_IF_ERROR(ReadAt(file, offset, absl::MakeSpan(meta)));
  return meta;
}

absl::StatusOr<std::vector<ChunkEntry>> ReadFooter(int file, uint64_t number, uint64_t file_bytes) {
  std::array<uint8_t, kTrailerBytes> trailer;
  if (file_bytes < kStoreBlock * 2) return absl::NotFoundError("no footer");
  ALUDEL_RETURN_IF_ERROR(ReadAt(file, file_bytes - kTrailerBytes, absl::MakeSpan(trailer)));
  const uint32_t block = DecodeTrailer(trailer);
  if (block == 0) return absl::NotFoundError("no footer");
  ALUDEL_ASSIGN_OR_RETURN(const RecordHead head, ReadHead(file, {number, block}));
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<uint8_t> meta, ReadMeta(file, head, file_bytes));
  return DecodeFooter(head, meta);
}

}  // namespace

absl::Status ReadAt(int file, uint64_t offset, absl::Span<uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = pread(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::UnavailableError(absl::StrCat("pread: ", strerror(errno)));
    if (got == 0) return absl::OutOfRangeError("the file ends before");
    offset += static_cast<uint64_t>(got);
    bytes.remove_prefix(static_cast<size_t>(got));
  }
  return absl::OkStatus();
}

absl::StatusOr<SegmentContents> ScanSegment(int file, uint64_t file_bytes) {
  SegmentContents contents;
  std::array<uint8_t, kSegmentHeadBytes> head_bytes;
  if (file_bytes < kStoreBlock) return absl::DataLossError("shorter than a segment's head");
  ALUDEL_RETURN_IF_ERROR(ReadAt(file, 0, absl::MakeSpan(head_bytes)));
  ALUDEL_ASSIGN_OR_RETURN(contents.head, DecodeSegmentHead(head_bytes));
  absl::StatusOr<std::vector<ChunkEntry>> footer = ReadFooter(file, contents.head.number, file_bytes);
  if (footer.ok()) {
    contents.entries = *std::move(footer);
    contents.sealed = true;
    contents.valid_bytes = file_bytes;
    return contents;
  }
  // Of a disk that does not answer nothing is concluded.
  if (absl::IsUnavailable(footer.status())) return footer.status();
  contents.valid_bytes = kStoreBlock;
  while (contents.valid_bytes / kStoreBlock < std::numeric_limits<uint32_t>::max()) {
    const RecordPlace place = {contents.head.number,
                               static_cast<uint32_t>(contents.valid_bytes / kStoreBlock)};
    const absl::StatusOr<RecordHead> head = ReadHead(file, place);
    if (absl::IsUnavailable(head.status())) return head.status();
    if (!head.ok()) break;
    const absl::StatusOr<std::vector<uint8_t>> meta = ReadMeta(file, *head, file_bytes);
    if (absl::IsUnavailable(meta.status())) return meta.status();
    if (!meta.ok()) break;
    if (head->kind == RecordKind::kChunk) {
      if (!DecodeChunkMeta(*head, *meta).ok()) break;
      contents.entries.push_back(head->entry);
    } else if (head->kind == RecordKind::kTombstones) {
      const absl::StatusOr<std::vector<StoreKey>> keys = DecodeTombstones(*head, *meta);
      if (!keys.ok()) break;
      for (const StoreKey& key : *keys) contents.entries.emplace_back().key = key;
    } else {
      break;  // a footer without its trailer
    }
    contents.valid_bytes += head->entry.record_bytes();
  }
  contents.torn = contents.valid_bytes < file_bytes;
  return contents;
}

absl::StatusOr<LoadedChunk> LoadChunk(int file, uint64_t segment, const ChunkEntry& entry) {
  std::vector<uint8_t> bytes(entry.meta_bytes + entry.payload_bytes);
  ALUDEL_RETURN_IF_ERROR(ReadAt(file, uint64_t{entry.block} * kStoreBlock, absl::MakeSpan(bytes)));
  return DecodeChunk(std::move(bytes), {segment, entry.block}, entry.key);
}

absl::StatusOr<LoadedChunk> DecodeChunk(std::vector<uint8_t> bytes, const RecordPlace& place,
                                        const StoreKey& key) {
  ALUDEL_ASSIGN_OR_RETURN(const RecordHead head, DecodeRecordHead(bytes, place));
  const ChunkEntry& entry = head.entry;
  if (entry.meta_bytes + entry.payload_bytes != bytes.size()) {
    return absl::DataLossError(
        absl::StrCat("record: has ", bytes.size(), " bytes, want ", entry.meta_bytes + entry.payload_bytes));
  }
  LoadedChunk chunk;
  ALUDEL_ASSIGN_OR_RETURN(chunk.meta,
                          DecodeChunkMeta(head, absl::MakeConstSpan(bytes).first(entry.meta_bytes)));
  if (chunk.meta.entry.key != key) return absl::DataLossError("record: of another key");
  bytes.erase(bytes.begin(), bytes.begin() + entry.meta_bytes);
  chunk.payloads = std::move(bytes);
  const uint32_t crc = Crc32c(0, chunk.payloads);
  if (crc != chunk.meta.payload_crc) {
    return absl::DataLossError(
        absl::StrCat("payloads: checksum is ", crc, ", want ", chunk.meta.payload_crc));
  }
  return chunk;
}

std::string SegmentName(uint64_t number) { return absl::StrFormat("%s%0*x", kNamePrefix, kDigits, number); }

int64_t SegmentNumber(const std::string& name) {
  uint64_t number = 0;
  if (name.size() != sizeof(kNamePrefix) - 1 + kDigits || name.rfind(kNamePrefix, 0) != 0 ||
      !absl::SimpleHexAtoi(name.substr(sizeof(kNamePrefix) - 1), &number) ||
      number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return -1;
  }
  return static_cast<int64_t>(number);
}

}  // namespace aludel
