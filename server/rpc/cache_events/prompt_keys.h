#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace aludel {

// How servers name the beginnings of prompts to each other: 64 bits of the tokens, the cache salt and the model. Gateways
// route by them, and decode servers say what they have cached in them. The same on every machine and in every release. Of a
// key no other can be computed, and no prompt be tried out, without the salt.

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

// What prompts must have in common beside their tokens to have keys in common, as a secret of 128 bits: SaltSeed.
struct PromptSeed {
  uint64_t first = 0;
  uint64_t second = 0;
};

// SipHash-2-4, by words. Without the seed its values tell neither of each other nor of what they are of.
class SipHash {
 public:
  constexpr explicit SipHash(const PromptSeed& seed)
      : v0_(seed.first ^ 0x736f6d6570736575),
        v1_(seed.second ^ 0x646f72616e646f6d),
        v2_(seed.first ^ 0x6c7967656e657261),
        v3_(seed.second ^ 0x7465646279746573) {}

  constexpr void Add(uint64_t word) {
    v3_ ^= word;
    Round();
    Round();
    v0_ ^= word;
  }
  // `rest`: the bytes behind the last word, and in its highest byte how many there were in all.
  constexpr uint64_t End(uint64_t rest) {
    Add(rest);
    v2_ ^= 0xff;
    for (int i = 0; i < 4; ++i) Round();
    return v0_ ^ v1_ ^ v2_ ^ v3_;
  }

 private:
  constexpr void Round() {
    v0_ += v1_;
    v2_ += v3_;
    v1_ = std::rotl(v1_, 13) ^ v0_;
    v3_ = std::rotl(v3_, 16) ^ v2_;
    v0_ = std::rotl(v0_, 32);
    v2_ += v1_;
    v0_ += v3_;
    v1_ = std::rotl(v1_, 17) ^ v2_;
    v3_ = std::rotl(v3_, 21) ^ v0_;
    v2_ = std::rotl(v2_, 32);
  }

  uint64_t v0_, v1_, v2_, v3_;
};

constexpr uint64_t SipHashOf(const PromptSeed& seed, absl::string_view text) {
  SipHash hash(seed);
  uint64_t word = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    word |= uint64_t{static_cast<unsigned char>(text[i])} << (8 * (i % 8));
    if (i % 8 != 7) continue;
    hash.Add(word);
    word = 0;
  }
  return hash.End(word | uint64_t{text.size()} << 56);
}

// The keys of a prompt's beginnings, as its tokens come. What is inside can be computed back and forth by anyone who knows
// it; the keys cannot without the seed.
class PromptHash {
 public:
  explicit PromptHash(const PromptSeed& seed = {}) : seed_(seed), state_(MixBits(seed.first)) {}

  void Add(int32_t token) {
    // One multiplication a token; the key itself is mixed well.
    state_ = (state_ ^ static_cast<uint32_t>(token)) * 0x9fb21c651e98df25;
    state_ ^= state_ >> 32;
  }
  uint64_t key() const {
    SipHash hash(seed_);
    hash.Add(state_);
    return hash.End(uint64_t{sizeof(state_)} << 56);
  }

 private:
  PromptSeed seed_;
  uint64_t state_;
};

// As secret as the salt is.
constexpr PromptSeed SaltSeed(absl::string_view cache_salt) {
  return {SipHashOf({1, 0}, cache_salt), SipHashOf({2, 0}, cache_salt)};
}
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
