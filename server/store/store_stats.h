#pragma once

#include <cstddef>
#include <cstdint>

namespace aludel {

// Of one tier.
struct TierStats {
  bool configured = false;
  bool open = false;
  uint64_t hits = 0;        // look-ups that took something from it
  uint64_t hit_tokens = 0;  // over all look-ups
  uint64_t evictions = 0;   // chunks that went to make room, or for
  uint64_t over_quota = 0;  // their tenant's quota
  uint64_t bytes = 0;
  size_t entries = 0;
};

// Of the remote tier. How much is there is the remote's to say.
struct RemoteStats {
  bool configured = false;
  bool open = false;  // it answers
  uint64_t hits = 0;  // as TierStats
  uint64_t hit_tokens = 0;
  uint64_t queued_bytes = 0;  // that wait to be written
  uint64_t written_bytes = 0;
  uint64_t loads = 0;
  double load_seconds = 0;
  uint64_t queue_full = 0;  // more to write than the remote takes
  uint64_t reads_full = 0;  // more to look up or to read
  uint64_t late = 0;        // what was to be found or read was computed instead
  uint64_t refused = 0;     // writes: the remote has no room, or does not allow them
  uint64_t errors = 0;      // it is gone, or silent
  uint64_t gone = 0;        // chunks that went between a look-up and their reading
  uint64_t damaged = 0;
};

// Chunks of agents to come, by what became of a hint.
struct ExpectedStats {
  uint64_t kept = 0;     // were in memory
  uint64_t loaded = 0;   // are since
  uint64_t no_room = 0;  // more than their tenant may expect, or has room for
  uint64_t lost = 0;     // stored no more, or not readable
};

// Chunks that memory did not take, and why: they are sent, and computed again when they come again.
struct MemoryRejects {
  uint64_t too_large = 0;   // for memory_bytes
  uint64_t cleared = 0;     // the store was, since their prompt was looked up
  uint64_t front_gone = 0;  // the chunk in front of them went: they would not be found
  uint64_t pinned = 0;      // what has their name is pinned with fewer planes, and pins have no room for more
};

// What was not as a server leaves it when the disk tier was opened.
struct DiskFindings {
  uint64_t torn = 0;     // segments whose last record was not finished: without it
  uint64_t removed = 0;  // segments of another model, artifact or version, or whose head is damaged
  uint64_t foreign = 0;  // chunks of formats that this server does not have
  uint64_t undated =
      0;  // chunks from the future: the clock was set back since, and they are older than any limit
  uint64_t unread = 0;  // segments that are left alone until the next start
};

// What look-ups that found something were worth, in seconds. Only of those whose speed of computing was known.
struct SavedSeconds {
  double expected = 0;  // computing what was found, less reading it at the rates by which chunks are placed
  double measured = 0;  // likewise, less what was waited for it
  double lost = 0;      // waited for longer than computing would have taken
};

// A snapshot of the prefix store. Counts only grow.
struct StoreStats {
  uint64_t hits = 0;          // look-ups that found the whole prompt
  uint64_t partial_hits = 0;  // that found some of it
  uint64_t misses = 0;
  TierStats memory;
  TierStats disk;
  RemoteStats remote;
  uint64_t cuts = 0;         // times that a chunk in memory was cut to fewer planes, for room
  double placement_gap = 0;  // see MemoryOrder::End, of the last row of moves that ended below its mark
  ExpectedStats expected;
  MemoryRejects rejects;
  SavedSeconds saved;
  // Of the disk:
  uint64_t queued_bytes = 0;   // that wait to be written
  uint64_t written_bytes = 0;  // rewritten ones included
  uint64_t loads = 0;
  double load_seconds = 0;
  uint64_t rewrites = 0;  // chunks of the oldest segment that were written again, since they had been found
  uint64_t seldom = 0;    // times that a chunk was not written, asked for less often than min_requests
  DiskFindings findings;
  // Writes and reads that came to nothing, and why.
  uint64_t queue_full = 0;    // more to write than the disk takes
  uint64_t reads_full = 0;    // more to read
  uint64_t reads_late = 0;    // what was to be read was computed instead
  uint64_t no_room = 0;       // larger than the tier, or all of it is leased
  uint64_t write_errors = 0;  // the disk is full, or read-only, or fails
  uint64_t read_errors = 0;
  uint64_t damaged = 0;  // checksums that did not agree, or bytes that are no record
};

}  // namespace aludel
