#pragma once

#include <algorithm>
#include <cstdint>
#include <future>
#include <string>
#include <vector>

#include "server/store/prefix_store.h"
#include "tests/testing/fake_codec.h"

namespace aludel {

// Prompts of letters, in chunks of four; the fake codec ships two layers. A chunk's payloads say which tokens it is of.
inline std::vector<int32_t> Letters(const std::string& text) { return {text.begin(), text.end()}; }

inline std::vector<StoredFrame> LetterFrames(const std::vector<int32_t>& prompt, int64_t begin, int64_t end) {
  const std::vector<uint8_t> payload(prompt.begin() + begin, prompt.begin() + end);
  const auto from = static_cast<uint32_t>(begin);
  const auto tokens = static_cast<uint32_t>(end - begin);
  return {{{0, 1, 0, from, tokens}, payload}, {{1, 1, 0, from, tokens}, payload}};
}

inline absl::Status ClearAndWait(PrefixStore& store) {
  std::promise<absl::Status> cleared;
  store.Clear([&cleared](const absl::Status& status) { cleared.set_value(status); });
  return cleared.get_future().get();
}

// How many tokens are being read into memory.
inline int64_t Prefetch(PrefixStore& store, const std::string& text, const std::string& salt = "") {
  std::promise<int64_t> loading;
  store.Prefetch(Letters(text), store.Begin(FakeSpec(), salt),
                 [&](int64_t tokens) { loading.set_value(tokens); });
  return loading.get_future().get();
}

// Stores what is not stored yet from `begin` on, as a run does. False where the store refuses a chunk.
inline bool PutLetters(PrefixStore& store, const std::string& text, const std::string& salt = "") {
  const std::vector<int32_t> prompt = Letters(text);
  StorePosition at = store.Begin(FakeSpec(), salt);
  store.Find(prompt, absl::InfiniteDuration(), &at);
  while (at.tokens < static_cast<int64_t>(prompt.size())) {
    const int64_t end = std::min(at.tokens + 4, static_cast<int64_t>(prompt.size()));
    if (!store.Put(prompt, end, LetterFrames(prompt, at.tokens, end), &at)) return false;
  }
  return true;
}

}  // namespace aludel
