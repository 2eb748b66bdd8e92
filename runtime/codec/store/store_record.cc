#include "runtime/codec/store/store_record.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr std::array<uint8_t, 4> kSegmentMagic = {'A', 'L', 'D', 'S'};
constexpr std::array<uint8_t, 4> kRecordMagic = {'A', 'L', 'D', 'R'};
constexpr std::array<uint8_t, 4> kTrailerMagic = {'A', 'L', 'D', 'E'};
constexpr size_t kSegmentCrcOffset = kSegmentHeadBytes - sizeof(uint32_t);
constexpr size_t kMetaCrcOffset = kRecordHeadBytes - sizeof(uint32_t);
constexpr int kPlanesShift = 8;  // in the field of a record's kind

// Little-endian, as every machine that this is built for.
class Writer {
 public:
  explicit Writer(uint8_t* out) : out_(out) {}
  template <typename T>
  void Put(const T& value) {
    std::memcpy(out_, &value, sizeof(value));
    out_ += sizeof(value);
  }

 private:
  uint8_t* out_;
};

class Reader {
 public:
  explicit Reader(const uint8_t* in) : in_(in) {}
  template <typename T>
  T Get() {
    T value;
    std::memcpy(&value, in_, sizeof(value));
    in_ += sizeof(value);
    return value;
  }

 private:
  const uint8_t* in_;
};

absl::Status Wrong(const char* field, uint64_t found, uint64_t want) {
  return absl::DataLossError(absl::StrCat("record: ", field, " is ", found, ", want ", want));
}

void PutHead(RecordKind kind, const RecordPlace& place, const ChunkEntry& entry, uint32_t items,
             uint32_t payload_crc, uint8_t* out) {
  Writer writer(out);
  writer.Put(kRecordMagic);
  writer.Put(kStoreVersion);
  writer.Put(static_cast<uint16_t>(static_cast<uint16_t>(kind) | entry.planes << kPlanesShift));
  writer.Put(place.segment);
  writer.Put(place.block);
  writer.Put(entry.meta_bytes);
  writer.Put(entry.payload_bytes);
  writer.Put(entry.key);
  writer.Put(entry.before);
  writer.Put(entry.encoder);
  writer.Put(entry.salt);
  writer.Put(entry.token_begin);
  writer.Put(entry.tokens);
  writer.Put(items);
  writer.Put(entry.stem);
  writer.Put(entry.added_unix_ms);
  writer.Put(payload_crc);
}

// Completes a record whose first `meta_bytes` are written but for their checksum.
void Seal(absl::Span<uint8_t> meta) {
  const uint32_t crc = Crc32c(0, meta);
  std::memcpy(meta.data() + kMetaCrcOffset, &crc, sizeof(crc));
}

absl::Status CheckMeta(const RecordHead& head, RecordKind kind, absl::Span<const uint8_t> meta) {
  if (head.kind != kind) return Wrong("kind", static_cast<uint64_t>(head.kind), static_cast<uint64_t>(kind));
  if (meta.size() != head.entry.meta_bytes) return Wrong("length", meta.size(), head.entry.meta_bytes);
  constexpr std::array<uint8_t, sizeof(uint32_t)> kZero = {};
  uint32_t crc = Crc32c(0, meta.first(kMetaCrcOffset));
  crc = Crc32c(crc, kZero);
  crc = Crc32c(crc, meta.subspan(kRecordHeadBytes));
  return crc == head.meta_crc ? absl::OkStatus() : Wrong("checksum", crc, head.meta_crc);
}

}  // namespace

std::array<uint8_t, kSegmentHeadBytes> EncodeSegmentHead(const SegmentHead& head) {
  std::array<uint8_t, kSegmentHeadBytes> bytes = {};
  Writer writer(bytes.data());
  writer.Put(kSegmentMagic);
  writer.Put(kStoreVersion);
  writer.Put(uint16_t{0});
  writer.Put(head.number);
  writer.Put(head.producer);
  const uint32_t crc = Crc32c(0, absl::MakeConstSpan(bytes).first(kSegmentCrcOffset));
  std::memcpy(bytes.data() + kSegmentCrcOffset, &crc, sizeof(crc));
  return bytes;
}

absl::StatusOr<SegmentHead> DecodeSegmentHead(absl::Span<const uint8_t> bytes) {
  if (bytes.size() < kSegmentHeadBytes) return Wrong("segment's length", bytes.size(), kSegmentHeadBytes);
  Reader reader(bytes.data());
  if (reader.Get<std::array<uint8_t, 4>>() != kSegmentMagic) return absl::DataLossError("not a segment");
  const auto version = reader.Get<uint16_t>();
  if (version != kStoreVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("a segment of version ", version, ", this program reads ", kStoreVersion));
  }
  reader.Get<uint16_t>();
  SegmentHead head;
  head.number = reader.Get<uint64_t>();
  head.producer = reader.Get<StoreKey>();
  const uint32_t found = Crc32c(0, bytes.first(kSegmentCrcOffset));
  const auto want = Reader(bytes.data() + kSegmentCrcOffset).Get<uint32_t>();
  if (found != want) return Wrong("segment's checksum", found, want);
  return head;
}

size_t ChunkMetaBytes(size_t tokens, size_t frames) {
  return kRecordHeadBytes + tokens * sizeof(int32_t) + frames * kStoredFrameBytes;
}

size_t FooterBytes(size_t entries) {
  return RoundUpToBlock(kRecordHeadBytes + entries * kFooterEntryBytes + kTrailerBytes);
}

std::vector<uint8_t> EncodeChunkRecord(ChunkMeta* meta, const RecordPlace& place,
                                       absl::Span<const absl::Span<const uint8_t>> payloads) {
  ALUDEL_CHECK(payloads.size() == meta->frames.size() && meta->tokens.size() == meta->entry.tokens);
  ChunkEntry& entry = meta->entry;
  entry.block = place.block;
  entry.meta_bytes = static_cast<uint32_t>(ChunkMetaBytes(meta->tokens.size(), meta->frames.size()));
  entry.payload_bytes = 0;
  for (const auto& payload : payloads) entry.payload_bytes += payload.size();
  std::vector<uint8_t> bytes(entry.record_bytes());
  uint8_t* at = bytes.data() + entry.meta_bytes;
  for (size_t i = 0; i < payloads.size(); ++i) {
    ALUDEL_CHECK(payloads[i].size() == meta->frames[i].payload_bytes);
    at = std::copy(payloads[i].begin(), payloads[i].end(), at);
  }
  meta->payload_crc = Crc32c(0, absl::MakeConstSpan(bytes).subspan(entry.meta_bytes, entry.payload_bytes));
  PutHead(RecordKind::kChunk, place, entry, static_cast<uint32_t>(meta->frames.size()), meta->payload_crc,
          bytes.data());
  Writer writer(bytes.data() + kRecordHeadBytes);
  for (const int32_t token : meta->tokens) writer.Put(token);
  for (const StoredFrameHead& frame : meta->frames) {
    writer.Put(frame.coverage.first_layer);
    writer.Put(frame.coverage.layers);
    writer.Put(frame.coverage.plane);
    writer.Put(uint16_t{0});
    writer.Put(frame.coverage.token_begin);
    writer.Put(frame.coverage.tokens);
    writer.Put(frame.payload_bytes);
  }
  Seal(absl::MakeSpan(bytes).first(entry.meta_bytes));
  return bytes;
}

std::vector<uint8_t> EncodeTombstones(absl::Span<const StoreKey> keys, const RecordPlace& place) {
  ChunkEntry entry;
  entry.meta_bytes = static_cast<uint32_t>(kRecordHeadBytes + keys.size() * sizeof(StoreKey));
  std::vector<uint8_t> bytes(entry.record_bytes());
  PutHead(RecordKind::kTombstones, place, entry, static_cast<uint32_t>(keys.size()), 0, bytes.data());
  Writer writer(bytes.data() + kRecordHeadBytes);
  for (const StoreKey& key : keys) writer.Put(key);
  Seal(absl::MakeSpan(bytes).first(entry.meta_bytes));
  return bytes;
}

std::vector<uint8_t> EncodeFooter(absl::Span<const ChunkEntry> entries, const RecordPlace& place) {
  ChunkEntry footer;
  footer.meta_bytes = static_cast<uint32_t>(kRecordHeadBytes + entries.size() * kFooterEntryBytes);
  std::vector<uint8_t> bytes(FooterBytes(entries.size()));
  PutHead(RecordKind::kFooter, place, footer, static_cast<uint32_t>(entries.size()), 0, bytes.data());
  Writer writer(bytes.data() + kRecordHeadBytes);
  for (const ChunkEntry& entry : entries) {
    writer.Put(entry.key);
    writer.Put(entry.before);
    writer.Put(entry.encoder);
    writer.Put(entry.salt);
    writer.Put(entry.token_begin);
    writer.Put(entry.tokens);
    writer.Put(entry.added_unix_ms);
    writer.Put(entry.block);
    writer.Put(entry.meta_bytes);
    writer.Put(entry.payload_bytes);
    writer.Put(entry.stem);
    writer.Put(uint32_t{entry.planes});
  }
  Seal(absl::MakeSpan(bytes).first(footer.meta_bytes));
  Writer trailer(bytes.data() + bytes.size() - kTrailerBytes);
  trailer.Put(kTrailerMagic);
  trailer.Put(place.block);
  return bytes;
}

absl::StatusOr<RecordHead> DecodeRecordHead(absl::Span<const uint8_t> bytes, const RecordPlace& place) {
  if (bytes.size() < kRecordHeadBytes) return Wrong("head's length", bytes.size(), kRecordHeadBytes);
  Reader reader(bytes.data());
  if (reader.Get<std::array<uint8_t, 4>>() != kRecordMagic) return absl::DataLossError("not a record");
  if (const auto version = reader.Get<uint16_t>(); version != kStoreVersion) {
    return Wrong("version", version, kStoreVersion);
  }
  RecordHead head;
  const auto kind_and_planes = reader.Get<uint16_t>();
  const auto kind = static_cast<uint16_t>(kind_and_planes & ((1u << kPlanesShift) - 1));
  if (kind < 1 || kind > static_cast<uint16_t>(RecordKind::kFooter)) return Wrong("kind", kind, 1);
  head.kind = static_cast<RecordKind>(kind);
  if (const auto segment = reader.Get<uint64_t>(); segment != place.segment) {
    return Wrong("segment", segment, place.segment);
  }
  ChunkEntry& entry = head.entry;
  entry.planes = static_cast<uint8_t>(kind_and_planes >> kPlanesShift);
  entry.block = reader.Get<uint32_t>();
  if (entry.block != place.block) return Wrong("block", entry.block, place.block);
  entry.meta_bytes = reader.Get<uint32_t>();
  entry.payload_bytes = reader.Get<uint64_t>();
  entry.key = reader.Get<StoreKey>();
  entry.before = reader.Get<StoreKey>();
  entry.encoder = reader.Get<StoreTag>();
  entry.salt = reader.Get<StoreTag>();
  entry.token_begin = reader.Get<uint32_t>();
  entry.tokens = reader.Get<uint32_t>();
  head.items = reader.Get<uint32_t>();
  entry.stem = reader.Get<uint32_t>();
  entry.added_unix_ms = reader.Get<int64_t>();
  head.payload_crc = reader.Get<uint32_t>();
  head.meta_crc = reader.Get<uint32_t>();

  if (head.items > kMaxRecordItems) return Wrong("items", head.items, kMaxRecordItems);
  if (entry.payload_bytes > kMaxStoredPayload)
    return Wrong("payload", entry.payload_bytes, kMaxStoredPayload);
  size_t meta = kRecordHeadBytes + head.items * sizeof(StoreKey);
  if (head.kind == RecordKind::kFooter) meta = kRecordHeadBytes + head.items * kFooterEntryBytes;
  if (head.kind == RecordKind::kChunk) {
    if (entry.tokens == 0 || entry.tokens > kMaxStoredTokens)
      return Wrong("tokens", entry.tokens, kMaxStoredTokens);
    if (entry.planes > kMaxStoredPlanes) return Wrong("planes", entry.planes, kMaxStoredPlanes);
    meta = ChunkMetaBytes(entry.tokens, head.items);
  } else if (entry.payload_bytes != 0) {
    return Wrong("payload", entry.payload_bytes, 0);
  } else if (entry.planes != 0) {
    return Wrong("planes", entry.planes, 0);
  }
  if (entry.meta_bytes != meta) return Wrong("meta length", entry.meta_bytes, meta);
  return head;
}

absl::StatusOr<ChunkMeta> DecodeChunkMeta(const RecordHead& head, absl::Span<const uint8_t> meta) {
  ALUDEL_RETURN_IF_ERROR(CheckMeta(head, RecordKind::kChunk, meta));
  ChunkMeta chunk;
  chunk.entry = head.entry;
  chunk.payload_crc = head.payload_crc;
  Reader reader(meta.data() + kRecordHeadBytes);
  chunk.tokens.resize(head.entry.tokens);
  for (int32_t& token : chunk.tokens) token = reader.Get<int32_t>();
  uint64_t payload = 0;
  chunk.frames.resize(head.items);
  for (StoredFrameHead& frame : chunk.frames) {
    frame.coverage.first_layer = reader.Get<uint16_t>();
    frame.coverage.layers = reader.Get<uint16_t>();
    frame.coverage.plane = reader.Get<uint16_t>();
    reader.Get<uint16_t>();
    frame.coverage.token_begin = reader.Get<uint32_t>();
    frame.coverage.tokens = reader.Get<uint32_t>();
    frame.payload_bytes = reader.Get<uint32_t>();
    payload += frame.payload_bytes;
  }
  if (payload != head.entry.payload_bytes) return Wrong("sum of payloads", payload, head.entry.payload_bytes);
  return chunk;
}

absl::StatusOr<std::vector<StoreKey>> DecodeTombstones(const RecordHead& head,
                                                       absl::Span<const uint8_t> meta) {
  ALUDEL_RETURN_IF_ERROR(CheckMeta(head, RecordKind::kTombstones, meta));
  Reader reader(meta.data() + kRecordHeadBytes);
  std::vector<StoreKey> keys(head.items);
  for (StoreKey& key : keys) key = reader.Get<StoreKey>();
  return keys;
}

absl::StatusOr<std::vector<ChunkEntry>> DecodeFooter(const RecordHead& head, absl::Span<const uint8_t> meta) {
  ALUDEL_RETURN_IF_ERROR(CheckMeta(head, RecordKind::kFooter, meta));
  Reader reader(meta.data() + kRecordHeadBytes);
  std::vector<ChunkEntry> entries(head.items);
  for (ChunkEntry& entry : entries) {
    entry.key = reader.Get<StoreKey>();
    entry.before = reader.Get<StoreKey>();
    entry.encoder = reader.Get<StoreTag>();
    entry.salt = reader.Get<StoreTag>();
    entry.token_begin = reader.Get<uint32_t>();
    entry.tokens = reader.Get<uint32_t>();
    entry.added_unix_ms = reader.Get<int64_t>();
    entry.block = reader.Get<uint32_t>();
    entry.meta_bytes = reader.Get<uint32_t>();
    entry.payload_bytes = reader.Get<uint64_t>();
    entry.stem = reader.Get<uint32_t>();
    const auto planes = reader.Get<uint32_t>();
    if (planes > kMaxStoredPlanes) return Wrong("footer entry's planes", planes, kMaxStoredPlanes);
    entry.planes = static_cast<uint8_t>(planes);
    if (entry.block == 0) continue;
    if (entry.block >= head.entry.block) return Wrong("footer entry's block", entry.block, head.entry.block);
    if (entry.tokens == 0 || entry.tokens > kMaxStoredTokens || entry.payload_bytes > kMaxStoredPayload ||
        entry.meta_bytes < ChunkMetaBytes(entry.tokens, 0)) {
      return Wrong("footer entry's tokens", entry.tokens, kMaxStoredTokens);
    }
  }
  return entries;
}

uint32_t DecodeTrailer(absl::Span<const uint8_t> bytes) {
  if (bytes.size() != kTrailerBytes) return 0;
  Reader reader(bytes.data());
  if (reader.Get<std::array<uint8_t, 4>>() != kTrailerMagic) return 0;
  return reader.Get<uint32_t>();
}

}  // namespace aludel
