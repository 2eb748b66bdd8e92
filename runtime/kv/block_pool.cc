#include "runtime/kv/block_pool.h"

#include "absl/strings/str_format.h"
#include "kernels/check.h"

namespace aludel {

BlockRef::BlockRef(const BlockRef& other) : pool_(other.pool_), id_(other.id_) {
  if (pool_ != nullptr) ++pool_->references_[id_];
}

BlockRef::~BlockRef() {
  if (pool_ == nullptr) return;
  ALUDEL_CHECK(pool_->references_[id_] > 0);
  if (--pool_->references_[id_] == 0) pool_->free_.push_back(id_);
}

bool BlockRef::shared() const { return pool_ != nullptr && pool_->references_[id_] > 1; }

absl::StatusOr<std::unique_ptr<BlockPool>> BlockPool::Create(Device* device, const KvLayout& layout) {
  if (layout.blocks <= 0 || layout.block_tokens <= 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "KV cache of %d blocks of %d tokens: both must be positive", layout.blocks, layout.block_tokens));
  }
  auto memory = device->Allocate(layout.total_bytes());
  if (!memory.ok()) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "KV cache needs %.1f MiB (%d blocks x %d tokens x %d bytes per token) on %s: %s",
        static_cast<double>(layout.total_bytes()) / (1 << 20), layout.blocks, layout.block_tokens,
        layout.bytes_per_token(), device->name(), std::string(memory.status().message())));
  }
  return std::unique_ptr<BlockPool>(new BlockPool(layout, *std::move(memory)));
}

BlockPool::BlockPool(const KvLayout& layout, Buffer memory)
    : layout_(layout), memory_(std::move(memory)), references_(layout.blocks, 0) {
  free_.reserve(layout.blocks);
  for (BlockId id = static_cast<BlockId>(layout.blocks) - 1; id >= 0; --id) free_.push_back(id);
}

BlockPool::~BlockPool() { ALUDEL_CHECK(free_blocks() == layout_.blocks); }

absl::StatusOr<BlockRef> BlockPool::Allocate() {
  if (free_.empty()) {
    return absl::ResourceExhaustedError(absl::StrFormat("all %d KV blocks are in use", layout_.blocks));
  }
  const BlockId id = free_.back();
  free_.pop_back();
  ALUDEL_CHECK(references_[id] == 0);
  references_[id] = 1;
  return BlockRef(this, id);
}

absl::Status BlockTable::Grow(BlockPool& pool, int64_t tokens) {
  const size_t want = pool.layout().BlocksFor(tokens);
  std::vector<BlockRef> fresh;
  while (blocks_.size() + fresh.size() < want) {
    auto block = pool.Allocate();
    if (!block.ok()) return block.status();
    fresh.push_back(*std::move(block));
  }
  for (BlockRef& block : fresh) Append(std::move(block));
  return absl::OkStatus();
}

void BlockTable::Append(BlockRef block) {
  ids_.push_back(block.id());
  blocks_.push_back(std::move(block));
}

void BlockTable::Clear() {
  blocks_.clear();
  ids_.clear();
}

}  // namespace aludel
