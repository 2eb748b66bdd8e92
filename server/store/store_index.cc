#include "server/store/store_index.h"

#include <algorithm>

#include "kernels/check.h"

namespace aludel {
namespace {

// Of a stem behind a chunk. Two that have one id cost a look-up some hashing.
uint64_t StemId(const ChunkKey& before, uint32_t stem_tokens, uint32_t stem) {
  return (uint64_t{StemOf(before) ^ stem_tokens} << 32) | stem;
}

StoreIndex::Counts::iterator PlaceOf(StoreIndex::Counts& counts, uint32_t tokens) {
  return std::lower_bound(counts.begin(), counts.end(), std::make_pair(tokens, 0u));
}

void Count(StoreIndex::Counts& counts, uint32_t tokens) {
  const auto place = PlaceOf(counts, tokens);
  if (place != counts.end() && place->first == tokens) {
    ++place->second;
  } else {
    counts.insert(place, {tokens, 1});
  }
}

void Uncount(StoreIndex::Counts& counts, uint32_t tokens) {
  const auto place = PlaceOf(counts, tokens);
  ALUDEL_CHECK(place != counts.end() && place->first == tokens);
  if (--place->second == 0) counts.erase(place);
}

std::vector<uint32_t> Tokens(const StoreIndex::Counts& counts) {
  std::vector<uint32_t> tokens;
  tokens.reserve(counts.size());
  for (const auto& count : counts) tokens.push_back(count.first);
  return tokens;
}

}  // namespace

StoreIndex::Node* StoreIndex::Find(const ChunkKey& key) {
  const auto found = nodes_.find(key);
  return found == nodes_.end() ? nullptr : &found->second;
}

std::vector<uint32_t> StoreIndex::StemsBehind(const ChunkKey& before) {
  const Node* node = Find(before);
  return node == nullptr ? std::vector<uint32_t>() : Tokens(node->next);
}

std::vector<uint32_t> StoreIndex::LengthsBehind(const ChunkKey& before, uint32_t stem_tokens,
                                                uint32_t stem) const {
  const auto found = stems_.find(StemId(before, stem_tokens, stem));
  return found == stems_.end() ? std::vector<uint32_t>() : Tokens(found->second);
}

StoreIndex::Node* StoreIndex::Add(const ChunkEntry& entry) {
  Node* node = &nodes_.try_emplace(entry.key).first->second;
  if (node->tokens != 0) return node;
  // New, or known so far only from what follows it.
  node->key = entry.key;
  node->before = entry.before;
  node->token_begin = entry.token_begin;
  node->tokens = entry.tokens;
  node->stem = entry.stem;
  node->encoder = entry.encoder;
  node->salt = entry.salt;
  const auto [root, is_new_root] = nodes_.try_emplace(entry.before);
  if (is_new_root) root->second.key = entry.before;
  const uint32_t stem_tokens = StemTokens(entry.tokens);
  Count(root->second.next, stem_tokens);
  Count(stems_[StemId(entry.before, stem_tokens, entry.stem)], entry.tokens);
  return node;
}

void StoreIndex::Stored(Node* node) {
  if (watcher_ == nullptr) return;
  std::optional<uint8_t> planes;  // the most of all tiers
  if (node->memory != nullptr) planes = node->memory_planes;
  if (node->disk.exists() && (!planes || Serves(node->disk.planes, *planes))) planes = node->disk.planes;
  if (node->moving != nullptr && (!planes || Serves(node->moving_planes, *planes)))
    planes = node->moving_planes;
  if (node->told == planes) return;
  if (node->told) watcher_->OnRemoved(node->key, node->tokens, *node->told);
  if (planes) watcher_->OnStored(node->key, node->tokens, *planes);
  node->told = planes;
}

void StoreIndex::Drop(Node* node) {
  Stored(node);
  while (node != nullptr && !node->stored() && node->next.empty()) {
    const ChunkKey key = node->key;
    const ChunkKey before = node->before;
    const uint32_t tokens = node->tokens;
    const uint32_t stem = node->stem;
    nodes_.erase(key);
    if (tokens == 0) return;  // a root
    node = Find(before);
    ALUDEL_CHECK(node != nullptr);
    const uint32_t stem_tokens = StemTokens(tokens);
    Uncount(node->next, stem_tokens);
    const auto lengths = stems_.find(StemId(before, stem_tokens, stem));
    ALUDEL_CHECK(lengths != stems_.end());
    Uncount(lengths->second, tokens);
    if (lengths->second.empty()) stems_.erase(lengths);
  }
}

}  // namespace aludel
