#include "server/gateway/routing/policy/prefix_keys.h"

#include <algorithm>

namespace aludel {
namespace {

int64_t NextEnd(int64_t end) { return end + std::max(kPrefixStep, end / 16 / kPrefixStep * kPrefixStep); }

}  // namespace

uint64_t HashTexts(absl::Span<const absl::string_view> texts) {
  uint64_t hash = MixBits(texts.size());
  for (const absl::string_view text : texts) {
    hash = MixBits(hash ^ text.size());
    for (const char c : text) hash = MixBits(hash ^ static_cast<unsigned char>(c));
  }
  return hash;
}

PrefixKeys MakePrefixKeys(uint64_t seed, absl::Span<const int32_t> prompt) {
  const auto tokens = static_cast<int64_t>(prompt.size());
  PrefixKeys result{.tokens = tokens};
  if (tokens == 0) return result;
  uint64_t hash = MixBits(seed);
  int64_t at = 0;
  for (int64_t end = std::min(tokens, kPrefixStep); end <= tokens; end = NextEnd(end)) {
    for (; at < end; ++at) {
      // One multiplication a token; the key itself is mixed well.
      hash = (hash ^ static_cast<uint32_t>(prompt[at])) * 0x9fb21c651e98df25;
      hash ^= hash >> 32;
    }
    result.keys.push_back(MixBits(hash));
    result.ends.push_back(end);
  }
  return result;
}

PrefixKeys WithEnds(absl::Span<const uint64_t> keys, int64_t tokens) {
  PrefixKeys result{.tokens = tokens};
  if (tokens <= 0) return result;
  int64_t end = std::min(tokens, kPrefixStep);
  for (size_t i = 0; i < keys.size() && end <= tokens; ++i, end = NextEnd(end)) {
    result.keys.push_back(keys[i]);
    result.ends.push_back(end);
  }
  return result;
}

}  // namespace aludel
