#include "server/store/stored_prompts.h"

#include <algorithm>
#include <cstring>

namespace aludel {
namespace {

constexpr int kTokenBits = 16;
constexpr uint32_t kMaxTokens = (1u << kTokenBits) - 1;

}  // namespace

uint64_t ChunkEventKey(const ChunkKey& key, uint32_t tokens) {
  if (tokens > kMaxTokens) return 0;
  uint64_t hash = 0;
  std::memcpy(&hash, key.data(), sizeof(hash));
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

int64_t StoredPrompts::Find(const CodecSpec& codec, absl::string_view salt,
                            absl::Span<const int32_t> prompt) const {
  if (chunks_.empty()) return 0;
  ChunkHasher hasher;
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
      if (tokens == 0 || !chunks_.contains(ChunkEventKey(key, tokens))) continue;
      longest = tokens;
      before = key;
    }
    if (longest == 0) break;
    found += longest;
  }
  return static_cast<int64_t>(found);
}

}  // namespace aludel
