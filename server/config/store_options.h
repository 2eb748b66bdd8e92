#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace aludel {

// The prefix store.
struct StoreOptions {
  uint64_t memory_bytes = 0;         // 0: keeps nothing
  bool by_utility = true;            // else: what was used least recently goes first
  uint64_t tenant_memory_bytes = 0;  // 0: no quota
  std::string control_token_sha256;  // 64 hexadecimal digits; "": no operator may control it
  uint64_t pinned_bytes = 0;
  std::string disk_path;  // "": nothing on disk
  uint64_t disk_bytes = 0;
  uint32_t disk_min_requests = 1;
  uint32_t disk_read_threads = 0;
  uint64_t disk_tenant_bytes = 0;  // 0: no quota
  std::string remote_address;      // "": none
  std::string remote_password_file;
  std::string remote_username;
  absl::Duration remote_ttl;
  absl::Duration remote_max_wait;
  uint32_t remote_threads = 0;
};

}  // namespace aludel
