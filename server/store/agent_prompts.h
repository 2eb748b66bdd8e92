#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/store/chunk_key.h"
#include "server/store/pins.h"

namespace aludel {

// A request's place in a workflow of agents.
struct WorkflowStep {
  std::string id;
  std::string agent;              // that asks
  std::vector<std::string> next;  // that will ask after it, in the order expected
};

// What each agent of a workflow was sent last, by its chunks, and which of those are expected to be asked for again. All of
// it is bounded: agents are forgotten an hour after they asked, of one tenant the ones that asked least recently where
// they or their chunks are too many, and the tenant that gave hints least recently where tenants are; what a tenant
// expects has a budget in bytes, and is as many chunks at most as it may have known. Two salts know nothing of each other's workflows. Not thread-safe.
class AgentPrompts {
 public:
  static constexpr size_t kMaxTenants = 256;
  static constexpr size_t kMaxAgents = 256;  // of a tenant
  static constexpr size_t kMaxChunks = 256;  // of an agent: its prompt's beginning
  static constexpr size_t kMaxOfAll = 8192;  // chunks of all agents of a tenant
  static constexpr absl::Duration kKept = absl::Hours(1);

  struct Chunk {
    ChunkKey key = {};
    uint32_t token_begin = 0;
  };
  struct Prompt {
    StoreTag encoder = {};
    std::vector<Chunk> chunks;  // from the prompt's start
  };

  // `expected_bytes`: of chunks that one tenant may expect at a time.
  explicit AgentPrompts(size_t expected_bytes) : expected_bytes_(expected_bytes) {}

  void Remember(const StoreTag& salt, absl::string_view id, absl::string_view agent, Prompt prompt,
                absl::Time now);
  // Empty: not known.
  Prompt Find(const StoreTag& salt, absl::string_view id, absl::string_view agent, absl::Time now) const;
  // False: that would be too much for one tenant, and none of them is expected.
  bool Expect(TenantTag tenant, absl::Span<const Pins::Wish> chunks, absl::Time until, absl::Time now);
  void EndExpecting(TenantTag tenant, const ChunkKey& key);
  void Forget(TenantTag tenant) { tenants_.erase(tenant); }
  void Clear() { tenants_.clear(); }

 private:
  struct Agent {
    std::string name;  // see NameOf
    Prompt prompt;
    absl::Time asked;
  };
  using Agents = std::list<Agent>;
  struct Tenant {
    explicit Tenant(size_t expected_bytes) : expected(expected_bytes) {}
    Agents agents;  // that asked last first
    absl::flat_hash_map<std::string, Agents::iterator> by_name;
    size_t chunks = 0;  // of all of them
    Pins expected;
    absl::Time hinted;
  };

  Tenant& TenantWith(TenantTag tag, absl::Time now);
  static void Forget(Tenant& tenant, Agents::iterator agent);

  const size_t expected_bytes_;
  absl::node_hash_map<TenantTag, Tenant> tenants_;
};

}  // namespace aludel
