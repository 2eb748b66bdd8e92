#include "transport/loopback/loopback_registry.h"

namespace aludel {

LoopbackRegistry& LoopbackRegistry::Get() {
  static LoopbackRegistry* const registry = new LoopbackRegistry();
  return *registry;
}

void LoopbackRegistry::Add(uint64_t endpoint_id, const std::shared_ptr<LoopbackNode>& node) {
  absl::MutexLock lock(&mutex_);
  nodes_[endpoint_id] = node;
}

void LoopbackRegistry::Remove(uint64_t endpoint_id) {
  absl::MutexLock lock(&mutex_);
  nodes_.erase(endpoint_id);
}

std::shared_ptr<LoopbackNode> LoopbackRegistry::Find(uint64_t endpoint_id) {
  absl::MutexLock lock(&mutex_);
  const auto entry = nodes_.find(endpoint_id);
  return entry == nodes_.end() ? nullptr : entry->second.lock();
}

}  // namespace aludel
