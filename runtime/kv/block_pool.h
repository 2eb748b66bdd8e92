#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/device.h"
#include "runtime/kv/kv_layout.h"

namespace aludel {

class BlockPool;

// Shared ownership of one KV block. Copies share the block (a common prefix); it returns to the pool with the
// last. Belongs to the pool's thread and must not outlive the pool.
class BlockRef {
 public:
  BlockRef() = default;
  BlockRef(const BlockRef& other);
  BlockRef(BlockRef&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), id_(std::exchange(other.id_, -1)) {}
  BlockRef& operator=(BlockRef other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~BlockRef();

  BlockId id() const { return id_; }
  bool shared() const;

 private:
  friend class BlockPool;
  BlockRef(BlockPool* pool, BlockId id) : pool_(pool), id_(id) {}

  BlockPool* pool_ = nullptr;
  BlockId id_ = -1;
};

// Hands out fixed-size KV blocks from one device allocation made at start-up. A block returns when its last
// BlockRef dies. A block whose content may be wanted again can be kept: without references it then idles,
// still free to be allocated, but last and oldest first. Owned by the engine thread; not thread-safe.
// Allocate() never waits: it fails with ResourceExhausted, and the scheduler chooses between preempting
// and deferring.
//
// Where the device remembers steps (ReplayKinds), there is one block more, never handed out, for rows that fill a step up.
class BlockPool {
 public:
  // ResourceExhausted with the arithmetic where the device lacks the memory.
  static absl::StatusOr<std::unique_ptr<BlockPool>> Create(Device* device, const KvLayout& layout);
  // Blocks that a pool has beside those that it hands out.
  static int64_t PaddingBlocks(const Device* device);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  absl::StatusOr<BlockRef> Allocate();
  // A block of its own with what `block` holds in every layer; the copy is work on `stream`.
  absl::StatusOr<BlockRef> Clone(const BlockRef& block, Stream stream);

  // Called for every idle block that Allocate takes, so that an index of kept blocks can forget it.
  void OnReclaim(std::function<void(BlockId)> reclaimed) { reclaimed_ = std::move(reclaimed); }
  // Keeps the content of a referenced block until it is reclaimed.
  void Keep(BlockId id);
  // One more reference to a block that is kept.
  BlockRef Share(BlockId id);

  const KvLayout& layout() const { return layout_; }
  // Unreferenced blocks, idle ones among them.
  int64_t free_blocks() const { return static_cast<int64_t>(free_.size()) + idle_blocks_; }
  int64_t idle_blocks() const { return idle_blocks_; }
  absl::Span<const int32_t> references() const { return references_; }  // [blocks]
  PagedKv Layer(int layer) const { return stored_.Layer(memory_.data(), layer); }
  // The block list of a sequence that nobody reads, one block; empty where the device remembers nothing.
  absl::Span<const BlockId> padding() const {
    return absl::MakeConstSpan(&padding_, stored_.blocks - layout_.blocks);
  }

 private:
  friend class BlockRef;
  BlockPool(Device* device, const KvLayout& layout, const KvLayout& stored, Buffer memory);

  // A place in the ring of idle blocks, whose head stands at index `blocks`; the oldest comes first.
  struct IdleLink {
    BlockId before;
    BlockId behind;
  };
  void Return(BlockId id);
  void Unlink(BlockId id);

  Device* device_;
  KvLayout layout_;
  KvLayout stored_;  // with the padding
  BlockId padding_;
  Buffer memory_;
  std::vector<int32_t> references_;  // [blocks]
  std::vector<bool> kept_;           // [blocks]
  std::vector<BlockId> free_;        // a stack: the block freed last is the one in the cache
  std::vector<IdleLink> idle_;       // [blocks + 1]
  int64_t idle_blocks_ = 0;
  std::function<void(BlockId)> reclaimed_;
};

// The blocks of one sequence in token order, and their ids side by side as the kernels take them.
class BlockTable {
 public:
  BlockTable() = default;
  BlockTable(BlockTable&&) = default;
  BlockTable& operator=(BlockTable&&) = default;
  ~BlockTable() { Clear(); }

  // Makes room for `tokens` tokens; on error the table keeps what it had.
  absl::Status Grow(BlockPool& pool, int64_t tokens);
  // Appends a block that is already filled.
  void Append(BlockRef block);
  // Before tokens from `token` on are written: a block that others hold, too, is replaced by a copy of it
  // (blocks behind it are always the sequence's own). On error the table keeps what it had.
  absl::Status MakeWritable(BlockPool& pool, int64_t token, Stream stream);
  // Gives blocks back until `blocks` are left, the last one first, so that of a kept prefix the end idles
  // longest ago.
  void Truncate(size_t blocks);
  void Clear() { Truncate(0); }

  absl::Span<const BlockId> ids() const { return ids_; }
  const std::vector<BlockRef>& blocks() const { return blocks_; }

 private:
  std::vector<BlockRef> blocks_;
  std::vector<BlockId> ids_;
};

}  // namespace aludel
