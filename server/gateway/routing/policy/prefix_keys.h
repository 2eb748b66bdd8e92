#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/rpc/cache_events/prompt_keys.h"

namespace aludel {

// The beginnings of a prompt that requests are routed by, shortest first. Two prompts of one seed have a key in common where
// they begin with the same tokens (but for collisions of 64 bits, which cost a cached prefix and nothing else).
struct PrefixKeys {
  std::vector<uint64_t> keys;
  std::vector<int64_t> ends;  // keys[i] is of the first ends[i] tokens; rising
  int64_t tokens = 0;         // of the whole prompt
  // Of the first kKeyTokens tokens, twice as many and so on, where servers tell of what they have cached under this seed; a
  // prompt of fewer has none.
  std::vector<uint64_t> blocks;
  bool has_blocks = false;
  // Where the request lives in place of its beginning: its client has said which requests belong together (HomeKey).
  std::optional<uint64_t> home;

  size_t size() const { return keys.size(); }
};

// Where a key ends depends on the position alone (NextPrefixEnd). No keys for an empty prompt. `seed` says what prefixes must
// have in common beside their tokens.
PrefixKeys MakePrefixKeys(const PromptSeed& seed, absl::Span<const int32_t> prompt, bool with_blocks = false);

// Of a `prompt_cache_key` that clients of one seed share; no other seed's requests have it. Says nothing of what is cached.
constexpr uint64_t HomeKey(const PromptSeed& seed, absl::string_view cache_key) {
  return SipHashOf(seed, cache_key);
}

// Whose codes a model's decode servers take: equal for all consumers of one producer and encoder. "": neither is known.
std::string PrefillSource(absl::string_view producer, absl::string_view encoder);
// By which prefill servers are ordered for a prompt with this beginning, whose key knows of no model: what one of them has
// computed serves every model of the source.
uint64_t PrefillKey(uint64_t key, absl::string_view source);

// What MakePrefixKeys gave for a prompt of so many tokens, whose keys are known. Keys beyond the prompt's are left out.
PrefixKeys WithEnds(absl::Span<const uint64_t> keys, int64_t tokens);

}  // namespace aludel
