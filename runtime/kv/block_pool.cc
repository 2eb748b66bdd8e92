#include "runtime/kv/block_pool.h"

#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "kernels/replay_kinds.h"

namespace aludel {

BlockRef::BlockRef(const BlockRef& other) : pool_(other.pool_), id_(other.id_) {
  if (pool_ != nullptr) ++pool_->references_[id_];
}

BlockRef::~BlockRef() {
  if (pool_ == nullptr) return;
  ALUDEL_CHECK(pool_->references_[id_] > 0);
  if (--pool_->references_[id_] == 0) pool_->Return(id_);
}

bool BlockRef::shared() const { return pool_ != nullptr && pool_->references_[id_] > 1; }

int64_t BlockPool::PaddingBlocks(const Device* device) {
  return dynamic_cast<const ReplayKinds*>(device) != nullptr ? 1 : 0;
}

absl::StatusOr<std::unique_ptr<BlockPool>> BlockPool::Create(Device* device, const KvLayout& layout) {
  if (layout.blocks <= 0 || layout.block_tokens <= 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "KV cache of %d blocks of %d tokens: both must be positive", layout.blocks, layout.block_tokens));
  }
  KvLayout stored = layout;
  stored.blocks += PaddingBlocks(device);
  auto memory = device->Allocate(stored.total_bytes());
  if (!memory.ok()) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "KV cache needs %.1f MiB (%d blocks x %d tokens x %d bytes per token) on %s: %s",
        static_cast<double>(stored.total_bytes()) / (1 << 20), stored.blocks, layout.block_tokens,
        layout.bytes_per_token(), device->name(), std::string(memory.status().message())));
  }
  return std::unique_ptr<BlockPool>(new BlockPool(device, layout, stored, *std::move(memory)));
}

BlockPool::BlockPool(Device* device, const KvLayout& layout, const KvLayout& stored, Buffer memory)
    : device_(device),
      layout_(layout),
      stored_(stored),
      padding_(static_cast<BlockId>(layout.blocks)),
      memory_(std::move(memory)),
      references_(layout.blocks, 0),
      kept_(layout.blocks, false),
      idle_(layout.blocks + 1) {
  const auto head = static_cast<BlockId>(layout.blocks);
  idle_[head] = {head, head};
  free_.reserve(layout.blocks);
  for (BlockId id = static_cast<BlockId>(layout.blocks) - 1; id >= 0; --id) free_.push_back(id);
}

BlockPool::~BlockPool() { ALUDEL_CHECK(free_blocks() == layout_.blocks); }

void BlockPool::Return(BlockId id) {
  if (!kept_[id]) {
    free_.push_back(id);
    return;
  }
  const auto head = static_cast<BlockId>(layout_.blocks);
  const BlockId newest = idle_[head].before;
  idle_[id] = {newest, head};
  idle_[newest].behind = id;
  idle_[head].before = id;
  ++idle_blocks_;
}

void BlockPool::Unlink(BlockId id) {
  idle_[idle_[id].before].behind = idle_[id].behind;
  idle_[idle_[id].behind].before = idle_[id].before;
  --idle_blocks_;
}

void BlockPool::Keep(BlockId id) {
  ALUDEL_CHECK(references_[id] > 0);
  kept_[id] = true;
}

BlockRef BlockPool::Share(BlockId id) {
  ALUDEL_CHECK(kept_[id]);
  if (references_[id]++ == 0) Unlink(id);
  return BlockRef(this, id);
}

absl::StatusOr<BlockRef> BlockPool::Allocate() {
  BlockId id;
  if (!free_.empty()) {
    id = free_.back();
    free_.pop_back();
  } else if (idle_blocks_ > 0) {
    id = idle_[layout_.blocks].behind;
    Unlink(id);
    kept_[id] = false;
    if (reclaimed_) reclaimed_(id);
  } else {
    return absl::ResourceExhaustedError(absl::StrFormat("all %d KV blocks are in use", layout_.blocks));
  }
  ALUDEL_CHECK(references_[id] == 0);
  references_[id] = 1;
  return BlockRef(this, id);
}

absl::StatusOr<BlockRef> BlockPool::Clone(const BlockRef& block, Stream stream) {
  auto copy = Allocate();
  if (!copy.ok()) return copy;
  const size_t bytes = layout_.plane_bytes() / layout_.blocks;
  for (int layer = 0; layer < layout_.layers; ++layer) {
    const PagedKv kv = Layer(layer);
    for (void* plane : {kv.k, kv.v}) {
      char* blocks = static_cast<char*>(plane);
      device_->Copy(blocks + copy->id() * bytes, blocks + block.id() * bytes, bytes, stream);
    }
  }
  return copy;
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

absl::Status BlockTable::MakeWritable(BlockPool& pool, int64_t token, Stream stream) {
  const size_t index = token / pool.layout().block_tokens;
  if (index >= blocks_.size() || !blocks_[index].shared()) return absl::OkStatus();
  auto copy = pool.Clone(blocks_[index], stream);
  if (!copy.ok()) return copy.status();
  ids_[index] = copy->id();
  blocks_[index] = *std::move(copy);
  return absl::OkStatus();
}

void BlockTable::Truncate(size_t blocks) {
  while (blocks_.size() > blocks) {
    blocks_.pop_back();
    ids_.pop_back();
  }
}

}  // namespace aludel
