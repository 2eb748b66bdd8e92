#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <utility>
#include <vector>

#include "absl/container/node_hash_map.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/store/chunk_key.h"
#include "server/store/disk_place.h"
#include "server/store/stored_frames.h"

namespace aludel {

// Which chunks are stored, where, and what follows what. Every tier's entries are here, so that one walk finds the
// longest stored prefix over all of them. Token ids are not: a chunk's key stands for them. Some 300 bytes an entry,
// and a look-up hashes each of a prompt's tokens once. Not thread-safe.
class StoreIndex {
 public:
  struct Node;
  using Order = std::list<Node*>;

  // A chunk that is stored somewhere; or a root, or one that was stored, before chunks that are.
  struct Node {
    ChunkKey key;
    ChunkKey before = {};
    uint32_t token_begin = 0;
    uint32_t tokens = 0;
    // The lengths of the chunks that follow, ascending, and how many chunks have each.
    std::vector<std::pair<uint32_t, uint32_t>> next;
    absl::Time added;  // MonotonicNow(); made again, which gives the same frames, it is newer

    StoredFrames memory;  // null: not in the memory tier
    size_t memory_bytes = 0;
    Order::iterator order;  // in the memory tier's, where `memory` is

    DiskPlace disk;
    StoredFrames moving;    // while they are between two segments
    bool writing = false;   // to the disk, or waiting for it
    bool wanted = false;    // found since it lies where it does on disk
    uint32_t requests = 0;  // since this process knows it

    bool stored() const { return memory != nullptr || disk.segment != nullptr || moving != nullptr; }
  };

  using Nodes = absl::node_hash_map<ChunkKey, Node, ChunkKeyHash>;

  // The longest chunk behind `before`, added at `since` or later, that `rest` begins with; null: none.
  Node* FindNext(const ChunkKey& before, absl::Span<const int32_t> rest, absl::Time since);
  // Null: neither stored nor in front of what is.
  Node* Find(const ChunkKey& key);
  // The chunk's node, made where there is none. The caller makes it stored before the next call.
  Node* Add(const ChunkKey& key, const ChunkKey& before, uint32_t token_begin, uint32_t tokens);
  // To be called when a node may be stored no more.
  void Drop(Node* node);
  // Empties the index; freeing what it had, which takes long, is the caller's.
  Nodes TakeAll() { return std::exchange(nodes_, {}); }

 private:
  ChunkHasher hasher_;
  Nodes nodes_;
};

}  // namespace aludel
