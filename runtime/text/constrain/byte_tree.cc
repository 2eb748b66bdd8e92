#include "runtime/text/constrain/byte_tree.h"

#include <algorithm>

namespace aludel {

ByteTree::ByteTree(std::vector<std::string> texts) : nodes_(1) {
  std::sort(texts.begin(), texts.end());
  std::vector<int32_t> path = {0};  // the nodes of the text before
  const std::string* before = nullptr;
  for (const std::string& text : texts) {
    size_t shared = 0;
    if (before != nullptr) {
      const size_t limit = std::min(before->size(), text.size());
      while (shared < limit && (*before)[shared] == text[shared]) ++shared;
    }
    path.resize(shared + 1);
    for (size_t i = shared; i < text.size(); ++i) {
      const auto id = static_cast<int32_t>(nodes_.size());
      nodes_.push_back({.byte = static_cast<uint8_t>(text[i])});
      Node& parent = nodes_[path.back()];
      if (parent.last_child >= 0) {
        nodes_[parent.last_child].sibling = id;
      } else {
        parent.first_child = id;
      }
      parent.last_child = id;
      path.push_back(id);
    }
    nodes_[path.back()].ends = true;
    before = &text;
  }
}

}  // namespace aludel
