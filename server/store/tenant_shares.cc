#include "server/store/tenant_shares.h"

#include <iterator>

#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

constexpr size_t kMaxOwnQuotas = 65536;

}  // namespace

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

void TenantShares::ResizeMemory(Node* node, size_t bytes) {
  Share& share = shares_[TenantOf(node->salt)];
  share.memory_bytes += bytes - node->memory_bytes;
  node->memory_bytes = bytes;
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

absl::Status TenantShares::SetQuota(TenantTag tenant, const Quota& quota) {
  if (own_quotas_.size() >= kMaxOwnQuotas && !own_quotas_.contains(tenant)) {
    return absl::ResourceExhaustedError(absl::StrCat(kMaxOwnQuotas, " tenants have quotas of their own"));
  }
  own_quotas_[tenant] = quota;
  return absl::OkStatus();
}

TenantShares::Quota TenantShares::QuotaOf(TenantTag tenant) const {
  if (own_quotas_.empty()) return quota_;
  const auto own = own_quotas_.find(tenant);
  return own == own_quotas_.end() ? quota_ : own->second;
}

TenantShares::Order* TenantShares::OverMemory(TenantTag tenant) {
  const auto share = shares_.find(tenant);
  if (share == shares_.end() || share->second.memory_bytes <= QuotaOf(tenant).memory_bytes) return nullptr;
  return &share->second.memory;
}

StoreIndex::Node* TenantShares::OverDisk(TenantTag tenant) const {
  const auto share = shares_.find(tenant);
  if (share == shares_.end() || share->second.disk_bytes <= QuotaOf(tenant).disk_bytes) return nullptr;
  return share->second.disk.front();
}

size_t TenantShares::MemoryOf(TenantTag tenant) const {
  const auto share = shares_.find(tenant);
  return share == shares_.end() ? 0 : share->second.memory_bytes;
}

TenantShares::Order* TenantShares::MemoryOrder(TenantTag tenant) {
  const auto share = shares_.find(tenant);
  return share == shares_.end() ? nullptr : &share->second.memory;
}

void TenantShares::Forget(TenantTag tenant) {
  const auto share = shares_.find(tenant);
  if (share->second.memory.empty() && share->second.disk.empty()) shares_.erase(share);
}

}  // namespace aludel
