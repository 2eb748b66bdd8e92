#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "server/store/chunk_key.h"
#include "server/store/tenant_shares.h"

namespace aludel {

// What an operator asks of a prefix store, and is told of it.

// Chunks to which all that is set applies; without anything, all of them.
struct StoreFilter {
  std::optional<TenantTag> tenant;
  std::optional<StoreTag> salt;
  std::optional<StoreTag> encoder;
  std::optional<ChunkKey> from;  // this one and those behind it

  // But for `from`.
  bool Matches(const StoreTag& of_salt, const StoreTag& of_encoder) const {
    return (!tenant || *tenant == TenantOf(of_salt)) && (!salt || *salt == of_salt) &&
           (!encoder || *encoder == of_encoder);
  }
};

// What is not set stays as it is.
struct QuotaChange {
  std::optional<size_t> memory_bytes;
  std::optional<uint64_t> disk_bytes;
};

struct StoredChunkReport {
  ChunkKey key = {};
  StoreTag encoder = {};
  StoreTag salt = {};
  int64_t token_begin = 0;
  int64_t tokens = 0;
  size_t memory_bytes = 0;  // 0: not in memory
  uint64_t disk_bytes = 0;  // 0: not on disk
  bool remote = false;      // this server has written or read it there, and its time to live is not over
  absl::Duration pinned;    // from now on
};

struct TenantReport {
  TenantTag tenant = 0;
  size_t memory_bytes = 0;
  size_t memory_chunks = 0;
  uint64_t disk_bytes = 0;
  size_t disk_chunks = 0;
  TenantShares::Quota quota;
};

}  // namespace aludel
