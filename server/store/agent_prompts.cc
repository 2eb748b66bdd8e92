#include "server/store/agent_prompts.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

// No other salt, workflow and agent have it.
std::string NameOf(const StoreTag& salt, absl::string_view id, absl::string_view agent) {
  return absl::StrCat(absl::string_view(reinterpret_cast<const char*>(salt.data()), salt.size()), id.size(),
                      ":", id, agent);
}

}  // namespace

AgentPrompts::Tenant& AgentPrompts::TenantWith(TenantTag tag, absl::Time now) {
  if (tenants_.size() >= kMaxTenants && !tenants_.contains(tag)) {
    tenants_.erase(std::min_element(tenants_.begin(), tenants_.end(), [](const auto& one, const auto& other) {
      return one.second.hinted < other.second.hinted;
    }));
  }
  Tenant& tenant = tenants_.try_emplace(tag, expected_bytes_).first->second;
  tenant.hinted = now;
  return tenant;
}

void AgentPrompts::Forget(Tenant& tenant, Agents::iterator agent) {
  tenant.chunks -= agent->prompt.chunks.size();
  tenant.by_name.erase(agent->name);
  tenant.agents.erase(agent);
}

void AgentPrompts::Remember(const StoreTag& salt, absl::string_view id, absl::string_view agent,
                            Prompt prompt, absl::Time now) {
  Tenant& tenant = TenantWith(TenantOf(salt), now);
  std::string name = NameOf(salt, id, agent);
  if (const auto known = tenant.by_name.find(name); known != tenant.by_name.end()) {
    Forget(tenant, known->second);
  }
  if (prompt.chunks.size() > kMaxChunks) prompt.chunks.resize(kMaxChunks);
  tenant.chunks += prompt.chunks.size();
  tenant.agents.push_front({name, std::move(prompt), now});
  tenant.by_name[std::move(name)] = tenant.agents.begin();
  while (tenant.agents.size() > kMaxAgents || tenant.chunks > kMaxOfAll ||
         tenant.agents.back().asked < now - kKept) {
    Forget(tenant, std::prev(tenant.agents.end()));
  }
}

AgentPrompts::Prompt AgentPrompts::Find(const StoreTag& salt, absl::string_view id, absl::string_view agent,
                                        absl::Time now) const {
  const auto tenant = tenants_.find(TenantOf(salt));
  if (tenant == tenants_.end()) return {};
  const auto known = tenant->second.by_name.find(NameOf(salt, id, agent));
  if (known == tenant->second.by_name.end() || known->second->asked < now - kKept) return {};
  return known->second->prompt;
}

bool AgentPrompts::Expect(TenantTag tag, absl::Span<const Pins::Wish> chunks, absl::Time until,
                          absl::Time now) {
  Tenant& tenant = TenantWith(tag, now);
  if (!tenant.expected.Pin(chunks, until, now).ok()) return false;
  if (tenant.expected.count() <= kMaxOfAll) return true;
  for (const Pins::Wish& chunk : chunks) tenant.expected.Unpin(chunk.key);
  return false;
}

void AgentPrompts::EndExpecting(TenantTag tenant, const ChunkKey& key) {
  if (const auto known = tenants_.find(tenant); known != tenants_.end()) known->second.expected.Unpin(key);
}

}  // namespace aludel
