#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "absl/status/status.h"
#include "server/store/chunk_key.h"
#include "server/store/store_index.h"

namespace aludel {

// What each tenant has of each tier, in the order in which it goes where that is more than its quota. A tenant is known
// while it has a chunk. Not thread-safe.
class TenantShares {
 public:
  using Node = StoreIndex::Node;
  using Order = StoreIndex::Order;

  // Of one tenant; what is over it goes. In memory it costs no other tenant a chunk; on disk it bounds what is found, and a
  // tenant that writes much still turns the disk over, other tenants' older segments included.
  struct Quota {
    size_t memory_bytes = std::numeric_limits<size_t>::max();
    uint64_t disk_bytes =
        std::numeric_limits<uint64_t>::max();  // of records that are found; a segment goes as a whole
  };
  struct Share {
    size_t memory_bytes = 0;
    uint64_t disk_bytes = 0;
    Order memory;  // most recently used first
    Order disk;    // oldest first
  };
  using Shares = absl::node_hash_map<TenantTag, Share>;

  explicit TenantShares(Quota quota) : quota_(quota) {}

  // The node has come into the tier, or leaves it. In memory it is as young as `before`, which is in front of it; null:
  // the youngest.
  void AddMemory(Node* node, const Node* before);
  void RemoveMemory(Node* node);
  // From now on it takes so many bytes there.
  void ResizeMemory(Node* node, size_t bytes);
  void AddDisk(Node* node);
  void RemoveDisk(Node* node);
  // It is the most recently used one in memory.
  void Touch(Node* node);

  // From now on, in place of every tenant's. ResourceExhausted: so many have one of their own already.
  absl::Status SetQuota(TenantTag tenant, const Quota& quota);
  Quota QuotaOf(TenantTag tenant) const;
  // Whose last one shall go next; null: the tenant is within its quota.
  Order* OverMemory(TenantTag tenant);
  // What shall go next of the tenant's; null: it is within its quota.
  Node* OverDisk(TenantTag tenant) const;

  // What it has in memory, and in which order; null: nothing.
  size_t MemoryOf(TenantTag tenant) const;
  Order* MemoryOrder(TenantTag tenant);

  const Shares& shares() const { return shares_; }
  // Forgets all of them; freeing what it had is the caller's.
  Shares TakeAll() { return std::exchange(shares_, {}); }

 private:
  void Forget(TenantTag tenant);

  const Quota quota_;
  absl::flat_hash_map<TenantTag, Quota> own_quotas_;
  Shares shares_;
};

}  // namespace aludel
