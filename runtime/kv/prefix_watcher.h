#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "runtime/kv/prefix_cache.h"

namespace aludel {

// Hears which of the model's own blocks a prefix cache holds, for those that route by it. Called on the engine's thread, in
// the order of the changes; a call must be short.
class PrefixWatcher {
 public:
  virtual ~PrefixWatcher() = default;

  // A full block that may be asked for from now on. It may come without the blocks before it, and with two hashes for one
  // prompt where they came in two formats.
  struct Block {
    const PrefixHash& hash;
    const PrefixHash* before;  // of the block in front; null: it is a prompt's first
    const std::string& salt;
    absl::Span<const int32_t> tokens;  // from the prompt's start to the block's end
  };
  virtual void OnStored(const Block& block) = 0;
  // Also of blocks that OnStored never told of.
  virtual void OnRemoved(const PrefixHash& hash) = 0;
};

}  // namespace aludel
