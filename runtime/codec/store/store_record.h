#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/codec/frame.h"

namespace aludel {

// The bytes of FORMAT.md, "Stored chunks": records of a segment file. Values in, bytes out; files are segment_scan.h's
// and the prefix store's.

using StoreKey = std::array<uint8_t, 32>;
using StoreTag = std::array<uint8_t, 16>;  // head of a SHA-256: of an encoder, or of a salt

inline constexpr size_t kStoreBlock = 4096;  // records start at multiples of it
inline constexpr uint16_t kStoreVersion = 2;
inline constexpr size_t kRecordHeadBytes = 160;
inline constexpr size_t kSegmentHeadBytes = 64;
inline constexpr size_t kStoredFrameBytes = 20;
inline constexpr size_t kFooterEntryBytes = 136;
inline constexpr size_t kTrailerBytes = 16;
// Bounds that a reader checks before it trusts a length.
inline constexpr uint32_t kMaxStoredTokens = 1u << 20;
inline constexpr uint32_t kMaxRecordItems = 1u << 22;
inline constexpr uint64_t kMaxStoredPayload = uint64_t{1} << 32;
inline constexpr uint32_t kMaxStoredPlanes = 8;

inline constexpr size_t RoundUpToBlock(size_t bytes) {
  return (bytes + kStoreBlock - 1) / kStoreBlock * kStoreBlock;
}

enum class RecordKind : uint16_t {
  kChunk = 1,
  kTombstones = 2,
  kFooter = 3,
};

// Where a record lies. It is part of the record, so that bytes found elsewhere are not taken for one.
struct RecordPlace {
  uint64_t segment = 0;
  uint32_t block = 0;
};

// What the index of a store needs of one chunk; in a footer, of a whole segment.
struct ChunkEntry {
  StoreKey key = {};
  StoreKey before = {};
  StoreTag encoder = {};
  StoreTag salt = {};
  uint32_t token_begin = 0;
  uint32_t tokens = 0;  // at least 1
  uint32_t stem = 0;    // of the tokens that the chunk begins with, see FORMAT.md
  int64_t added_unix_ms = 0;
  uint32_t block = 0;  // 0: a tombstone, which has only its key
  uint32_t meta_bytes = 0;
  uint64_t payload_bytes = 0;
  uint8_t planes =
      0;  // payloads have so many planes of an embedded code (FORMAT.md, kind aludel); 0: they are whole

  size_t record_bytes() const { return RoundUpToBlock(meta_bytes + payload_bytes); }
};

struct StoredFrameHead {
  FrameCoverage coverage;
  uint32_t payload_bytes = 0;
};

// A chunk's record without its payloads.
struct ChunkMeta {
  ChunkEntry entry;
  std::vector<int32_t> tokens;
  std::vector<StoredFrameHead> frames;
  uint32_t payload_crc = 0;
};

// The head of any record, checked but for its checksum, which covers `meta_bytes` from the record's start.
struct RecordHead {
  RecordKind kind = RecordKind::kChunk;
  ChunkEntry entry;  // its sizes and block are those of the record of any kind
  uint32_t items = 0;
  uint32_t payload_crc = 0;
  uint32_t meta_crc = 0;
};

struct SegmentHead {
  uint64_t number = 0;
  StoreKey producer = {};
};

std::array<uint8_t, kSegmentHeadBytes> EncodeSegmentHead(const SegmentHead& head);
// DataLoss for what is damaged; FailedPrecondition for a segment of another version.
absl::StatusOr<SegmentHead> DecodeSegmentHead(absl::Span<const uint8_t> bytes);

// Bytes of a chunk's record before its payloads.
size_t ChunkMetaBytes(size_t tokens, size_t frames);
size_t FooterBytes(size_t entries);

// The whole record, whole blocks. Sets the entry's sizes and block. `payloads` are those of meta->frames, in order.
std::vector<uint8_t> EncodeChunkRecord(ChunkMeta* meta, const RecordPlace& place,
                                       absl::Span<const absl::Span<const uint8_t>> payloads);
std::vector<uint8_t> EncodeTombstones(absl::Span<const StoreKey> keys, const RecordPlace& place);
// With the trailer, which ends the file.
std::vector<uint8_t> EncodeFooter(absl::Span<const ChunkEntry> entries, const RecordPlace& place);

// DataLoss names the field, found and expected.
absl::StatusOr<RecordHead> DecodeRecordHead(absl::Span<const uint8_t> bytes, const RecordPlace& place);
// These take the head's `meta_bytes`, whole, and check the checksum.
absl::StatusOr<ChunkMeta> DecodeChunkMeta(const RecordHead& head, absl::Span<const uint8_t> meta);
absl::StatusOr<std::vector<StoreKey>> DecodeTombstones(const RecordHead& head,
                                                       absl::Span<const uint8_t> meta);
absl::StatusOr<std::vector<ChunkEntry>> DecodeFooter(const RecordHead& head, absl::Span<const uint8_t> meta);
// The footer's block, of a file's last kTrailerBytes; 0: no footer is there.
uint32_t DecodeTrailer(absl::Span<const uint8_t> bytes);

}  // namespace aludel
