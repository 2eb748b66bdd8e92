#include "runtime/engine/sampling/token_counts.h"

#include <algorithm>

namespace aludel {

TokenCounts::TokenCounts(absl::Span<const int32_t> prompt, int64_t max_completion) {
  std::vector<int32_t> ids(prompt.begin(), prompt.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  entries_.reserve(ids.size() + max_completion);
  for (const int32_t id : ids) entries_.push_back({id, 0});
}

void TokenCounts::Add(int32_t id) {
  const auto at = std::lower_bound(entries_.begin(), entries_.end(), id,
                                   [](const Entry& entry, int32_t wanted) { return entry.id < wanted; });
  if (at != entries_.end() && at->id == id) {
    ++at->generated;
  } else {
    entries_.insert(at, {id, 1});
  }
}

}  // namespace aludel
