#pragma once

#include <cstdint>

#include "server/store/chunk_key.h"

namespace aludel {

// Hears which chunks a prefix store holds, in whichever of its tiers, and of how many planes (Serves), for those that
// send prompts where they are stored.
// Called under the store's lock, in the order of the changes; a call must be short.
class StoreWatcher {
 public:
  virtual ~StoreWatcher() = default;

  virtual void OnStored(const ChunkKey& key, uint32_t tokens, uint8_t planes) = 0;
  virtual void OnRemoved(const ChunkKey& key, uint32_t tokens, uint8_t planes) = 0;
  // All of it is removed.
  virtual void OnCleared() = 0;
};

}  // namespace aludel
