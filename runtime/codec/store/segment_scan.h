#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/codec/store/store_record.h"

namespace aludel {

// What a segment file holds, in order of its records; a tombstone is an entry without a block.
struct SegmentContents {
  SegmentHead head;
  std::vector<ChunkEntry> entries;
  bool sealed = false;  // by a footer
  uint64_t valid_bytes = 0;
  bool torn = false;  // behind them is what a writer did not finish, or what is damaged
};

// Fills the span from there on; Unavailable where the file cannot be read, OutOfRange where it ends before.
absl::Status ReadAt(int file, uint64_t offset, absl::Span<uint8_t> bytes);

// Reads the footer where there is one, else record after record up to the first that is damaged: a torn tail is the
// end. Payloads are not read, so their checksums are left to loading. Errors as DecodeSegmentHead's.
absl::StatusOr<SegmentContents> ScanSegment(int file, uint64_t file_bytes);

// A chunk's record with its payloads, every checksum verified.
struct LoadedChunk {
  ChunkMeta meta;
  std::vector<uint8_t> payloads;  // one behind the other
};
absl::StatusOr<LoadedChunk> LoadChunk(int file, uint64_t segment, const ChunkEntry& entry);
// As LoadChunk, of the record's bytes without the fill of its last block.
absl::StatusOr<LoadedChunk> DecodeChunk(std::vector<uint8_t> bytes, const RecordPlace& place,
                                        const StoreKey& key);

// Locked by the process that has a store open.
inline constexpr char kStoreLock[] = "lock";

// The name of a segment's file, and its number, where it is one; -1 for other files.
std::string SegmentName(uint64_t number);
int64_t SegmentNumber(const std::string& name);

}  // namespace aludel
