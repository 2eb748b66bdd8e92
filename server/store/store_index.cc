#include "server/store/store_index.h"

#include <algorithm>

#include "kernels/check.h"

namespace aludel {

StoreIndex::Node* StoreIndex::Find(const ChunkKey& key) {
  const auto found = nodes_.find(key);
  return found == nodes_.end() ? nullptr : &found->second;
}

StoreIndex::Node* StoreIndex::FindNext(const ChunkKey& before, absl::Span<const int32_t> rest,
                                       absl::Time since) {
  const Node* node = Find(before);
  if (node == nullptr || node->next.empty()) return nullptr;
  Node* longest = nullptr;
  hasher_.Start(before);
  size_t hashed = 0;
  for (const auto& [tokens, chunks] : node->next) {
    if (tokens > rest.size()) break;
    hasher_.Add(rest.subspan(hashed, tokens - hashed));
    hashed = tokens;
    Node* next = Find(hasher_.Key());
    if (next != nullptr && next->stored() && next->added >= since) longest = next;
  }
  return longest;
}

StoreIndex::Node* StoreIndex::Add(const ChunkKey& key, const ChunkKey& before, uint32_t token_begin,
                                  uint32_t tokens) {
  Node* node = &nodes_.try_emplace(key).first->second;
  if (node->tokens != 0) return node;
  // New, or known so far only from what follows it.
  node->key = key;
  node->before = before;
  node->token_begin = token_begin;
  node->tokens = tokens;
  const auto [root, is_new_root] = nodes_.try_emplace(before);
  if (is_new_root) root->second.key = before;
  auto& lengths = root->second.next;
  const auto length = std::lower_bound(lengths.begin(), lengths.end(), std::make_pair(tokens, 0u));
  if (length != lengths.end() && length->first == tokens) {
    ++length->second;
  } else {
    lengths.insert(length, {tokens, 1});
  }
  return node;
}

void StoreIndex::Drop(Node* node) {
  while (node != nullptr && !node->stored() && node->next.empty()) {
    const ChunkKey key = node->key;
    const ChunkKey before = node->before;
    const uint32_t tokens = node->tokens;
    nodes_.erase(key);
    if (tokens == 0) return;  // a root
    node = Find(before);
    ALUDEL_CHECK(node != nullptr);
    auto& lengths = node->next;
    const auto length = std::lower_bound(lengths.begin(), lengths.end(), std::make_pair(tokens, 0u));
    ALUDEL_CHECK(length != lengths.end() && length->first == tokens);
    if (--length->second == 0) lengths.erase(length);
  }
}

}  // namespace aludel
