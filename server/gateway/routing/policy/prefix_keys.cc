#include "server/gateway/routing/policy/prefix_keys.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace aludel {

PrefixKeys MakePrefixKeys(const PromptSeed& seed, absl::Span<const int32_t> prompt, bool with_blocks) {
  const auto tokens = static_cast<int64_t>(prompt.size());
  PrefixKeys result{.tokens = tokens, .has_blocks = with_blocks};
  if (tokens == 0) return result;
  PromptHash hash(seed);
  int64_t end = std::min(tokens, kPrefixStep);
  for (int64_t at = 0; at < tokens;) {
    hash.Add(prompt[static_cast<size_t>(at++)]);
    if (at == end) {
      result.keys.push_back(hash.key());
      result.ends.push_back(end);
      end = NextPrefixEnd(end);
    }
    if (with_blocks && at % kKeyTokens == 0) result.blocks.push_back(hash.key());
  }
  return result;
}

std::string PrefillSource(absl::string_view producer, absl::string_view encoder) {
  if (producer.empty() && encoder.empty()) return "";
  return absl::StrCat(producer, " ", encoder);
}

uint64_t PrefillKey(uint64_t key, absl::string_view source) {
  return source.empty() ? key : ModelKey(key, HashTexts({source}));
}

PrefixKeys WithEnds(absl::Span<const uint64_t> keys, int64_t tokens) {
  PrefixKeys result{.tokens = tokens};
  if (tokens <= 0) return result;
  int64_t end = std::min(tokens, kPrefixStep);
  for (size_t i = 0; i < keys.size() && end <= tokens; ++i, end = NextPrefixEnd(end)) {
    result.keys.push_back(keys[i]);
    result.ends.push_back(end);
  }
  return result;
}

}  // namespace aludel
