#include "server/decode/load/cached_prompts.h"

#include <optional>
#include <utility>
#include <vector>

namespace aludel {

CachedPrompts::Node* CachedPrompts::NodeOf(const PrefixHash& hash) {
  std::unique_ptr<Node>& node = nodes_[hash];
  if (node == nullptr) {
    node = std::make_unique<Node>();
    node->hash = hash;
  }
  return node.get();
}

void CachedPrompts::OnStored(const Block& block) {
  absl::MutexLock lock(&mutex_);
  const std::optional<absl::string_view> salt = salt_of_(block.salt);
  if (!salt) return;
  Node* const before = block.before == nullptr ? nullptr : NodeOf(*block.before);
  // Where the block in front was not heard of, from the start.
  const bool known = before != nullptr && before->stored;
  PromptHash prompt = known ? before->prompt : PromptHash(SaltSeed(*salt));
  for (const int32_t token : block.tokens.subspan(known ? static_cast<size_t>(before->end) : 0)) {
    prompt.Add(token);
  }
  Node* const node = NodeOf(block.hash);
  node->before = before;
  if (before != nullptr) before->next.insert(node);
  node->prompt = prompt;
  node->end = static_cast<int64_t>(block.tokens.size());
  node->stored = true;
  if (before == nullptr || before->told) Tell(node, true);
}

void CachedPrompts::OnRemoved(const PrefixHash& hash) {
  absl::MutexLock lock(&mutex_);
  const auto found = nodes_.find(hash);
  if (found == nodes_.end() || !found->second->stored) return;
  Node* node = found->second.get();
  if (node->told) Tell(node, false);
  node->stored = false;
  while (node != nullptr && !node->stored && node->next.empty()) {
    Node* const before = node->before;
    if (before != nullptr) before->next.erase(node);
    nodes_.erase(node->hash);
    node = before;
  }
}

void CachedPrompts::Tell(Node* node, bool stored) {
  std::vector<Node*> open = {node};
  while (!open.empty()) {
    Node* const at = open.back();
    open.pop_back();
    at->told = stored;
    if (at->end % kKeyTokens == 0) {
      const uint8_t kind = IsPrefixEnd(at->end) ? KeyChange::kPrefixEnd : 0;
      log_->Add({ModelKey(at->prompt.key(), model_),
                 static_cast<uint8_t>(kind | (stored ? 0 : KeyChange::kRemoved))});
    }
    for (Node* const behind : at->next) {
      if (behind->stored && behind->told != stored) open.push_back(behind);
    }
  }
}

void CachedPrompts::Clear(const std::function<void()>& reset) {
  absl::MutexLock lock(&mutex_);
  reset();
  nodes_.clear();
  log_->Clear();
}

}  // namespace aludel
