#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "absl/time/time.h"
#include "server/store/chunk_key.h"
#include "server/store/disk_place.h"
#include "server/store/placement/placement.h"
#include "server/store/store_watcher.h"
#include "server/store/stored_frames.h"

namespace aludel {

class UtilityHeap;

// Which chunks are stored, where, and what follows what. Every tier's entries are here, so that one walk finds the
// longest stored prefix over all of them. Token ids are not: a chunk's key stands for them, and its stem (FORMAT.md) for
// those that it begins with. Whatever the number of lengths behind one chunk, a prompt is compared with those whose
// stem it has: fewer than kStemStep lengths for each stem. Some 400 bytes an entry. Hashes nothing, so that a caller can
// do that outside the lock that guards it. Not thread-safe.
class StoreIndex {
 public:
  struct Node;
  using Order = std::list<Node*>;
  // Numbers of tokens, ascending, and how many chunks have each.
  using Counts = std::vector<std::pair<uint32_t, uint32_t>>;

  // A chunk that is stored somewhere; or a root, or one that was stored, before chunks that are.
  struct Node {
    ChunkKey key;
    ChunkKey before = {};
    uint32_t token_begin = 0;
    uint32_t tokens = 0;
    uint32_t stem = 0;
    StoreTag encoder = {};
    StoreTag salt = {};
    Counts next;       // how many chunks that follow have stems of so many tokens
    absl::Time added;  // MonotonicNow(); made again, which gives the same frames, it is newer

    StoredFrames memory;  // null: not in the memory tier
    size_t memory_bytes = 0;
    uint8_t memory_planes = 0;  // see Serves; of `memory`
    // Where `memory` is: in the memory tier's, and in its tenant's.
    Order::iterator order;
    Order::iterator tenant_memory;
    // Placement by utility, see MemoryOrder.
    DecayedCount uses;
    UtilityHeap* heap = nullptr;  // null: in none
    size_t heap_index = 0;
    double passed_over_until = 0;  // seconds; where it is passed over

    DiskPlace disk;
    Order::iterator tenant_disk;  // where it is on disk
    // While they are between two segments, or wait to be written and memory has dropped them: they are in memory still.
    StoredFrames moving;
    uint8_t moving_planes = 0;    // of them
    bool writing = false;         // to the disk, or waiting for it
    bool wanted = false;          // found since it lies where it does on disk
    bool over_quota = false;      // went from disk for its tenant's quota since it came into memory
    std::optional<uint8_t> told;  // to the watcher, as stored: of how many planes
    absl::Time shared = absl::InfinitePast();  // when it was last written to the remote, or found there
    uint32_t requests = 0;                     // since this process knows it
    absl::Time expected_until = absl::InfinitePast();  // by a workflow, which says that its agent will ask

    bool stored() const { return memory != nullptr || disk.exists() || moving != nullptr; }
    // Whether what is stored is enough for a request of so many planes.
    bool serves(uint8_t wanted) const {
      return memory_serves(wanted) || (disk.exists() && Serves(disk.planes, wanted)) || moving_serves(wanted);
    }
    bool memory_serves(uint8_t wanted) const { return memory != nullptr && Serves(memory_planes, wanted); }
    bool moving_serves(uint8_t wanted) const { return moving != nullptr && Serves(moving_planes, wanted); }
  };

  using Nodes = absl::node_hash_map<ChunkKey, Node, ChunkKeyHash>;
  using Stems =
      absl::flat_hash_map<uint64_t, Counts>;  // lengths of the chunks with one stem behind one chunk

  // Hears of chunks from now on, and must outlive the index; null: nothing does.
  void Watch(StoreWatcher* watcher) { watcher_ = watcher; }

  // How long the stems behind `before` are, and how long the chunks that have one of them: ascending.
  std::vector<uint32_t> StemsBehind(const ChunkKey& before);
  std::vector<uint32_t> LengthsBehind(const ChunkKey& before, uint32_t stem_tokens, uint32_t stem) const;
  // Null: neither stored nor in front of what is.
  Node* Find(const ChunkKey& key);
  // The chunk's node, made where there is none. The caller makes it stored before the next call.
  Node* Add(const ChunkEntry& entry);
  // In no order, roots included.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (const auto& [key, node] : nodes_) visit(node);
  }
  // To be called when a node may be stored now, or in another number of planes; and when it may be no more.
  void Stored(Node* node);
  void Drop(Node* node);
  // Empties the index; freeing what it had, which takes long, is the caller's.
  struct All {
    Nodes nodes;
    Stems stems;
  };
  All TakeAll() {
    if (watcher_ != nullptr) watcher_->OnCleared();
    return {std::exchange(nodes_, {}), std::exchange(stems_, {})};
  }

 private:
  StoreWatcher* watcher_ = nullptr;
  Nodes nodes_;
  Stems stems_;
};

}  // namespace aludel
