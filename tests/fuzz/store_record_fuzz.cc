// A segment file of the prefix store, as a crash or a disk left it: what is read of it must lie inside it, and a record
// that is accepted must encode to the same bytes again.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "runtime/codec/store/segment_scan.h"

namespace {

void CheckRecord(int file, uint64_t segment, const aludel::ChunkEntry& entry) {
  using namespace aludel;
  const absl::StatusOr<LoadedChunk> chunk = LoadChunk(file, segment, entry);
  if (!chunk.ok()) return;
  std::vector<absl::Span<const uint8_t>> payloads;
  absl::Span<const uint8_t> rest = chunk->payloads;
  for (const StoredFrameHead& frame : chunk->meta.frames) {
    payloads.push_back(rest.first(frame.payload_bytes));
    rest.remove_prefix(frame.payload_bytes);
  }
  ChunkMeta meta = chunk->meta;
  EncodeChunkRecord(&meta, {segment, entry.block}, payloads);
  if (meta.payload_crc != chunk->meta.payload_crc || meta.entry.meta_bytes != entry.meta_bytes) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace aludel;
  const int file = memfd_create("segment", MFD_CLOEXEC);
  if (file < 0 || pwrite(file, bytes, size, 0) != static_cast<ssize_t>(size)) std::abort();
  // Whatever stands in the file's head, its records are looked at.
  const absl::StatusOr<SegmentContents> contents = ScanSegment(file, size);
  if (contents.ok()) {
    if (contents->valid_bytes > size) std::abort();
    for (const ChunkEntry& entry : contents->entries) {
      if (entry.block == 0) continue;
      if (uint64_t{entry.block} * kStoreBlock + entry.record_bytes() > size) continue;
      CheckRecord(file, contents->head.number, entry);
    }
  }
  close(file);
  // Records whose checksum is made to agree, so that what lies behind it is reached.
  std::vector<uint8_t> record(bytes, bytes + size);
  for (const RecordPlace place : {RecordPlace{1, 1}, RecordPlace{1, 2}}) {
    absl::StatusOr<RecordHead> head = DecodeRecordHead(record, place);
    if (!head.ok() || head->entry.meta_bytes > size) continue;
    const absl::Span<uint8_t> meta = absl::MakeSpan(record).first(head->entry.meta_bytes);
    const absl::Span<uint8_t> field = meta.subspan(kRecordHeadBytes - sizeof(uint32_t), sizeof(uint32_t));
    std::fill(field.begin(), field.end(), 0);
    const uint32_t crc = Crc32c(0, meta);
    std::memcpy(field.data(), &crc, sizeof(crc));
    head = DecodeRecordHead(record, place);
    const absl::StatusOr<ChunkMeta> chunk = DecodeChunkMeta(*head, meta);
    if (chunk.ok() && chunk->tokens.size() != chunk->entry.tokens) std::abort();
    const absl::StatusOr<std::vector<StoreKey>> keys = DecodeTombstones(*head, meta);
    if (keys.ok() && keys->size() != head->items) std::abort();
    const absl::StatusOr<std::vector<ChunkEntry>> entries = DecodeFooter(*head, meta);
    if (entries.ok() && entries->size() != head->items) std::abort();
  }
  return 0;
}
