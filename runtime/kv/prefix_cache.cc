#include "runtime/kv/prefix_cache.h"

#include <openssl/sha.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "runtime/kv/prefix_watcher.h"

namespace aludel {
namespace {

PrefixHash Root(const Provenance& provenance) {
  // Each field with its length in front, so that no two provenances spell the same text.
  std::string text = absl::StrCat(provenance.recomputed_head);
  for (const std::string* field :
       {&provenance.model_hash, &provenance.format, &provenance.artifact_hash, &provenance.salt}) {
    absl::StrAppend(&text, ":", field->size(), ":", *field);
  }
  PrefixHash hash;
  SHA256(reinterpret_cast<const uint8_t*>(text.data()), text.size(), hash.data());
  return hash;
}

// A turn makes the text longer than that of any block without one.
PrefixHash Next(const PrefixHash& before, absl::Span<const int32_t> tokens, const std::string& turn) {
  std::vector<uint8_t> bytes(before.begin(), before.end());
  const auto* ids = reinterpret_cast<const uint8_t*>(tokens.data());
  bytes.insert(bytes.end(), ids, ids + tokens.size() * sizeof(int32_t));
  bytes.insert(bytes.end(), turn.begin(), turn.end());
  PrefixHash hash;
  SHA256(bytes.data(), bytes.size(), hash.data());
  return hash;
}

}  // namespace

PrefixChain::PrefixChain(const Provenance& provenance, int block_tokens)
    : root_(Root(provenance)), turn_begin_(provenance.turn_begin), block_tokens_(block_tokens) {
  // Where it begins counts: of two prompts that begin alike, one may turn later.
  if (!provenance.turn_hash.empty()) turn_ = absl::StrCat(turn_begin_, ":", provenance.turn_hash);
}

absl::Span<const PrefixHash> PrefixChain::Extend(absl::Span<const int32_t> tokens) {
  const size_t blocks = tokens.size() / block_tokens_;
  const std::string plain;
  while (hashes_.size() < blocks) {
    const auto begin = static_cast<int64_t>(hashes_.size()) * block_tokens_;
    const bool turns = begin + block_tokens_ > turn_begin_ && begin <= turn_begin_;
    hashes_.push_back(Next(hashes_.empty() ? root_ : hashes_.back(), tokens.subspan(begin, block_tokens_),
                           turns ? turn_ : plain));
  }
  return hashes_;
}

PrefixCache::PrefixCache(BlockPool* pool) : pool_(pool) {
  pool_->OnReclaim([this](BlockId id) { Forget(id); });
}

PrefixCache::~PrefixCache() { pool_->OnReclaim(nullptr); }

int64_t PrefixCache::MatchedBlocks(absl::Span<const PrefixHash> hashes) const {
  absl::MutexLock lock(&mutex_);
  const auto* end = std::find_if(hashes.begin(), hashes.end(), [this](const PrefixHash& hash) {
    mutex_.AssertHeld();
    return !blocks_.contains(hash);
  });
  return end - hashes.begin();
}

void PrefixCache::Attach(absl::Span<const PrefixHash> hashes, size_t blocks, BlockTable* table) {
  absl::MutexLock lock(&mutex_);
  for (size_t i = table->ids().size(); i < std::min(blocks, hashes.size()); ++i) {
    const auto found = blocks_.find(hashes[i]);
    if (found == blocks_.end()) return;
    table->Append(pool_->Share(found->second));
  }
}

void PrefixCache::Insert(absl::Span<const PrefixHash> hashes, absl::Span<const BlockId> blocks,
                         absl::FunctionRef<void(size_t index)> stored) {
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < std::min(hashes.size(), blocks.size()); ++i) {
    if (hashes_.contains(blocks[i])) continue;
    if (!blocks_.emplace(hashes[i], blocks[i]).second) continue;
    hashes_.emplace(blocks[i], hashes[i]);
    pool_->Keep(blocks[i]);
    stored(i);
  }
}

void PrefixCache::Forget(BlockId id) {
  absl::MutexLock lock(&mutex_);
  const auto found = hashes_.find(id);
  ALUDEL_CHECK(found != hashes_.end());
  if (PrefixWatcher* const watcher = this->watcher()) watcher->OnRemoved(found->second);
  blocks_.erase(found->second);
  hashes_.erase(found);
}

int64_t PrefixCache::entries() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(blocks_.size());
}

}  // namespace aludel
