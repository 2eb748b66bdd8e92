#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace aludel {

// Texts as a tree of their bytes. As large as the texts, however long they are.
class ByteTree {
 public:
  struct Node {
    uint8_t byte = 0;   // that leads here
    bool ends = false;  // one of the texts ends here
    int32_t first_child = -1;
    int32_t last_child = -1;
    int32_t sibling = -1;
  };

  explicit ByteTree(std::vector<std::string> texts);

  // The root first, children after their parents, siblings by their bytes.
  const std::vector<Node>& nodes() const { return nodes_; }

 private:
  std::vector<Node> nodes_;
};

}  // namespace aludel
