#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "server/bench/request_trace.h"
#include "server/bench/store/sim_disk.h"
#include "server/bench/store/sim_frames.h"
#include "server/bench/store/store_simulation.h"
#include "server/store/chunk_key.h"
#include "server/store/memory_marks.h"
#include "server/store/memory_order.h"
#include "server/store/store_index.h"

namespace aludel {

// A server's PrefixStore over a trace, with the trace's clock and without threads and bytes. What decides is the server's:
// StoreIndex, MemoryOrder and MemoryMarks for memory, or with "server-lru" the least recent use, and DiskLimits for the disk,
// which goes by age and writes again what was found since. What stands around it, and is written anew here because the
// server's waits for disks and locks, is PrefixStore's Find, Load, Put, WriteLater and Retire: a change of one is a change
// of the other.
//
// Chunks are of so many tokens at most from where a prompt was not found, and end with it: a look-up finds whole chunks. A
// chunk that was made for a request for a cut has its planes, and serves those who ask for as many or fewer. Bytes count as
// a server counts them, with one frame a chunk. A write is done at once and never refused by a queue.
class ServerSimulation {
 public:
  // Both must outlive it. Formats are at most kMaxPlanes.
  ServerSimulation(absl::Span<const TraceRequest> trace, const StoreSimOptions& options);
  StoreSimResult Run();

 private:
  using Node = StoreIndex::Node;
  // Tokens of a prompt from one block of the trace to another.
  struct Part {
    size_t block = 0;
    size_t blocks = 0;
    int64_t begin = 0;  // tokens
    int64_t tokens = 0;
    ChunkKey before = {};
    ChunkKey key = {};
  };

  void Ask(const TraceRequest& request, size_t format, StoreSimTally* tally);
  // The prompt's next part behind `before`, of so many blocks at most.
  Part PartBehind(const TraceRequest& request, const Part& before, size_t blocks);
  // The longest part behind `before` that is stored, of no blocks where none is.
  Part FindNext(const TraceRequest& request, const Part& before, uint8_t planes);
  void Take(const Part& part, uint8_t planes);
  // False: nothing that follows is kept either.
  bool Store(const Part& part, uint8_t planes);
  void CountUse(Node* node, uint8_t planes);

  void KeepInMemory(Node* node, uint8_t planes);
  void ReplaceInMemory(Node* node, uint8_t planes);
  void DropFromMemory(Node* node);
  void Evict();
  void DemoteByUtility();
  MemoryMarks::Use MemoryUse() const {
    return {memory_bytes_, static_cast<double>(memory_bytes_) - static_cast<double>(cutting_bytes_)};
  }

  void WriteLater(Node* node);
  uint64_t RecordBytes(const Node& node, uint8_t planes);
  bool MakeRoom(uint64_t record_bytes);
  void Retire(const SimDisk::Segment& segment);
  std::vector<ChunkKey> Survivors(const SimDisk::Segment& segment);
  void SetOnDisk(Node* node, uint8_t planes);
  void DropFromDisk(Node* node);

  const absl::Span<const TraceRequest> trace_;
  const StoreSimOptions& options_;
  const bool by_utility_;
  const size_t memory_limit_;
  SimFrames frames_;
  StoreIndex index_;
  StoreIndex::Order order_;  // of memory, most recently used first
  MemoryOrder utility_;
  MemoryMarks marks_;
  size_t memory_bytes_ = 0;
  size_t cutting_bytes_ = 0;  // that the cuts of a row will free
  std::optional<SimDisk> disk_;
  double disk_keeps_ = std::numeric_limits<double>::infinity();  // seconds, of what went last
  double now_ = 0;
  ChunkHasher hasher_;
  StoreSimResult result_;
};

}  // namespace aludel
