#pragma once

#include <cstdint>

#include "server/rpc/cache_events/key_log.h"
#include "server/store/store_watcher.h"
#include "server/store/stored_prompts.h"

namespace aludel {

// Has decode servers hear what the prefix store holds, by the log of a CacheEventService.
class StoreEvents : public StoreWatcher {
 public:
  // `log` must outlive this.
  explicit StoreEvents(KeyLog* log) : log_(log) {}

  void OnStored(const ChunkKey& key, uint32_t tokens, uint8_t planes) override {
    Tell(ChunkEventKey(key, tokens, planes), 0);
  }
  void OnRemoved(const ChunkKey& key, uint32_t tokens, uint8_t planes) override {
    Tell(ChunkEventKey(key, tokens, planes), KeyChange::kRemoved);
  }
  void OnCleared() override { log_->Clear(); }

 private:
  void Tell(uint64_t chunk, uint8_t kind) {
    if (chunk != 0) log_->Add({chunk, kind});
  }

  KeyLog* const log_;
};

}  // namespace aludel
