#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "transport/loopback/loopback_node.h"

namespace aludel {

// Finds the loopback nodes of this process by their endpoint id; the one piece of process-wide state of the
// transport, standing where the network stands for the other kind. Knows nodes without owning them: a node
// that is gone is not found. Thread-safe.
class LoopbackRegistry {
 public:
  // The registry of this process; never destroyed, so that transports may end during exit.
  static LoopbackRegistry& Get();

  void Add(uint64_t endpoint_id, const std::shared_ptr<LoopbackNode>& node) ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(uint64_t endpoint_id) ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<LoopbackNode> Find(uint64_t endpoint_id) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Mutex mutex_;
  std::unordered_map<uint64_t, std::weak_ptr<LoopbackNode>> nodes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
