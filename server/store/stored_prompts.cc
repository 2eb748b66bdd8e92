#include "server/store/stored_prompts.h"

#include <algorithm>
#include <cstring>

namespace aludel {
namespace {

constexpr int kTokenBits = 16;
constexpr uint32_t kMaxTokens = (1u << kTokenBits) - 1;
constexpr uint64_t kPlanesMix = 0x9e3779b97f4a7c15;

}  // namespace

uint64_t ChunkEventKey(const ChunkKey& key, uint32_t tokens, uint8_t planes) {
  if (tokens > kMaxTokens) return 0;
  uint64_t hash = 0;
  std::memcpy(&hash, key.data(), sizeof(hash));
  hash ^= kPlanesMix * planes;
  return (hash << kTokenBits) | tokens;
}

void StoredPrompts::Add(uint64_t chunk) {
  if (chunks_.insert(chunk).second) ++lengths_[static_cast<uint32_t>(chunk & kMaxTokens)];
}

void StoredPrompts::Remove(uint64_t chunk) {
  if (chunks_.erase(chunk) == 0) return;
  const auto length = lengths_.find(static_cast<uint32_t>(chunk & kMaxTokens));
  if (--length->second == 0) lengths_.erase(length);
}

bool StoredPrompts::Has(const ChunkKey& key, uint32_t tokens, uint8_t wanted) const {
  if (chunks_.contains(ChunkEventKey(key, tokens, 0))) return true;
  for (int planes = wanted; planes > 0 && planes <= kMaxPlanes; ++planes) {
    if (chunks_.contains(ChunkEventKey(key, tokens, static_cast<uint8_t>(planes)))) return true;
  }
  return false;
}

int64_t StoredPrompts::Find(const CodecSpec& codec, absl::string_view salt,
                            absl::Span<const int32_t> prompt) const {
  if (chunks_.empty()) return 0;
  ChunkHasher hasher;
  const uint8_t wanted = CutPlanes(codec);
  ChunkKey before = RootKey(producer_, codec, salt);
  size_t found = 0;
  while (found < prompt.size()) {
    const absl::Span<const int32_t> rest = prompt.subspan(found);
    hasher.Start(before);
    size_t hashed = 0, longest = 0;
    for (const auto& [tokens, count] : lengths_) {
      if (tokens > rest.size()) break;
      hasher.Add(rest.subspan(hashed, tokens - hashed));
      hashed = tokens;
      const ChunkKey key = hasher.Key();
      if (tokens == 0 || !Has(key, tokens, wanted)) continue;
      longest = tokens;
      before = key;
    }
    if (longest == 0) break;
    found += longest;
  }
  return static_cast<int64_t>(found);
}

}  // namespace aludel
