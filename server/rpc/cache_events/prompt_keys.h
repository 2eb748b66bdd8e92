#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace aludel {

// How servers name the beginnings of prompts to each other: 64 bits of the tokens, the cache salt and the model. Gateways
// route by them, and decode servers say what they have cached in them. The same on every machine and in every release.

// Spreads 64 bits over 64 bits; one to one.
constexpr uint64_t MixBits(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Of texts in their order; ("ab", "c") and ("a", "bc") differ.
inline uint64_t HashTexts(absl::Span<const absl::string_view> texts) {
  uint64_t hash = MixBits(texts.size());
  for (const absl::string_view text : texts) {
    hash = MixBits(hash ^ text.size());
    for (const char c : text) hash = MixBits(hash ^ static_cast<unsigned char>(c));
  }
  return hash;
}

// The keys of a prompt's beginnings, as its tokens come.
class PromptHash {
 public:
  // `seed` says what prompts must have in common beside their tokens: SaltSeed.
  explicit PromptHash(uint64_t seed = 0) : state_(MixBits(seed)) {}

  void Add(int32_t token) {
    // One multiplication a token; the key itself is mixed well.
    state_ = (state_ ^ static_cast<uint32_t>(token)) * 0x9fb21c651e98df25;
    state_ ^= state_ >> 32;
  }
  uint64_t key() const { return MixBits(state_); }

 private:
  uint64_t state_;
};

inline uint64_t SaltSeed(absl::string_view cache_salt) { return HashTexts({cache_salt}); }
// `key` for one model, whose hash is HashTexts({name}).
constexpr uint64_t ModelKey(uint64_t key, uint64_t model) { return MixBits(key ^ model); }

// The shortest beginning that requests are routed by, unless the prompt is shorter: then it is all of it.
constexpr int64_t kPrefixStep = 64;
// The next longer one: every 64 tokens up to 1,024, then in steps of about a sixteenth of the position, so that a prompt of
// 128k tokens has about 100.
constexpr int64_t NextPrefixEnd(int64_t end) {
  return end + std::max(kPrefixStep, end / 16 / kPrefixStep * kPrefixStep);
}
constexpr bool IsPrefixEnd(int64_t tokens) {
  int64_t end = kPrefixStep;
  while (end < tokens) end = NextPrefixEnd(end);
  return end == tokens;
}

// What is cached is told to so many tokens at best.
constexpr int64_t kKeyTokens = 16;

// A beginning that a cache has from now on, or not any more (CacheEvent).
struct KeyChange {
  static constexpr uint8_t kRemoved = 1;
  static constexpr uint8_t kPrefixEnd = 2;  // IsPrefixEnd

  uint64_t key = 0;
  uint8_t kind = 0;

  bool removed() const { return (kind & kRemoved) != 0; }
  bool is_prefix_end() const { return (kind & kPrefixEnd) != 0; }
};

}  // namespace aludel
