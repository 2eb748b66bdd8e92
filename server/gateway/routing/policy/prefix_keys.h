#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace aludel {

// Spreads 64 bits over 64 bits; one to one. The same on every machine and in every release: gateways that share nothing must
// agree on where a prefix lives.
constexpr uint64_t MixBits(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Of texts in their order; ("ab", "c") and ("a", "bc") differ.
uint64_t HashTexts(absl::Span<const absl::string_view> texts);

// The beginnings of a prompt that requests are routed by, shortest first. Two prompts of one seed have a key in common where
// they begin with the same tokens (but for collisions of 64 bits, which cost a cached prefix and nothing else).
struct PrefixKeys {
  std::vector<uint64_t> keys;
  std::vector<int64_t> ends;  // keys[i] is of the first ends[i] tokens; rising
  int64_t tokens = 0;         // of the whole prompt

  size_t size() const { return keys.size(); }
};

// The shortest beginning that has a key, unless the prompt is shorter: then its one key is of all of it.
constexpr int64_t kPrefixStep = 64;

// Where a key ends depends on the position alone: every 64 tokens up to 1,024, then in steps of about a sixteenth of the
// position, so that a prompt of 128k tokens has about 100 keys. No keys for an empty prompt. `seed` says what prefixes must
// have in common beside their tokens: HashTexts({model, salt}).
PrefixKeys MakePrefixKeys(uint64_t seed, absl::Span<const int32_t> prompt);

// What MakePrefixKeys gave for a prompt of so many tokens, whose keys are known. Keys beyond the prompt's are left out.
PrefixKeys WithEnds(absl::Span<const uint64_t> keys, int64_t tokens);

}  // namespace aludel
