#include "runtime/text/constrain/token_table.h"

#include <algorithm>
#include <limits>

namespace aludel {

TokenTable::TokenTable(const Tokenizer& tokenizer, absl::Span<const int> eos_ids, int vocab)
    : entry_of_(vocab, -1), eos_ids_(eos_ids.begin(), eos_ids.end()), vocab_(vocab) {
  std::vector<std::pair<std::string, int32_t>> tokens;
  for (int32_t id = 0; id < std::min(vocab, tokenizer.vocab_size()); ++id) {
    if (std::find(eos_ids_.begin(), eos_ids_.end(), id) != eos_ids_.end()) continue;
    std::string bytes = tokenizer.TokenBytes(id);
    if (bytes.empty() || bytes.size() > std::numeric_limits<uint16_t>::max()) continue;
    tokens.emplace_back(std::move(bytes), id);
  }
  std::sort(tokens.begin(), tokens.end());
  absl::string_view before;
  for (const auto& [bytes, id] : tokens) {
    size_t shared = 0;
    while (shared < std::min(before.size(), bytes.size()) && before[shared] == bytes[shared]) ++shared;
    entry_of_[id] = static_cast<int32_t>(entries_.size());
    entries_.push_back({id, static_cast<uint32_t>(bytes_.size()), static_cast<uint16_t>(bytes.size()),
                        static_cast<uint16_t>(shared)});
    bytes_ += bytes;
    longest_ = std::max(longest_, bytes.size());
    before = bytes;
  }
}

absl::string_view TokenTable::bytes(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= entry_of_.size() || entry_of_[id] < 0) return {};
  return bytes(entries_[entry_of_[id]]);
}

}  // namespace aludel
