#include "server/store/tenant_shares.h"

#include <iterator>

namespace aludel {

void TenantShares::AddMemory(Node* node, const Node* before) {
  Share& share = shares_[TenantOf(node->salt)];
  node->tenant_memory =
      share.memory.insert(before == nullptr ? share.memory.begin() : std::next(before->tenant_memory), node);
  share.memory_bytes += node->memory_bytes;
}

void TenantShares::RemoveMemory(Node* node) {
  Share& share = shares_[TenantOf(node->salt)];
  share.memory_bytes -= node->memory_bytes;
  share.memory.erase(node->tenant_memory);
  Forget(TenantOf(node->salt));
}

void TenantShares::AddDisk(Node* node) {
  Share& share = shares_[TenantOf(node->salt)];
  node->tenant_disk = share.disk.insert(share.disk.end(), node);
  share.disk_bytes += node->disk.record_bytes();
}

void TenantShares::RemoveDisk(Node* node) {
  Share& share = shares_[TenantOf(node->salt)];
  share.disk_bytes -= node->disk.record_bytes();
  share.disk.erase(node->tenant_disk);
  Forget(TenantOf(node->salt));
}

void TenantShares::Touch(Node* node) {
  Order& order = shares_[TenantOf(node->salt)].memory;
  order.splice(order.begin(), order, node->tenant_memory);
}

StoreIndex::Node* TenantShares::OverMemory(TenantTag tenant) const {
  const auto share = shares_.find(tenant);
  if (share == shares_.end() || share->second.memory_bytes <= quota_.memory_bytes) return nullptr;
  return share->second.memory.back();
}

StoreIndex::Node* TenantShares::OverDisk(TenantTag tenant) const {
  const auto share = shares_.find(tenant);
  if (share == shares_.end() || share->second.disk_bytes <= quota_.disk_bytes) return nullptr;
  return share->second.disk.front();
}

void TenantShares::Forget(TenantTag tenant) {
  const auto share = shares_.find(tenant);
  if (share->second.memory.empty() && share->second.disk.empty()) shares_.erase(share);
}

}  // namespace aludel
