#include "runtime/calibrate/aludel/passage.h"

#include <algorithm>

namespace aludel {
namespace {

int64_t CommonTokens(const std::vector<int32_t>& a, const std::vector<int32_t>& b, int64_t most) {
  int64_t common = 0;
  while (common < most && a[common] == b[common]) ++common;
  return common;
}

Passage Pack(absl::Span<const std::vector<int32_t>> prompts, int64_t trunk) {
  Passage passage;
  passage.ids.assign(prompts.front().begin(), prompts.front().begin() + trunk);
  for (const std::vector<int32_t>& prompt : prompts) {
    passage.branches.push_back(passage.tokens());
    passage.ids.insert(passage.ids.end(), prompt.begin() + trunk, prompt.end());
  }
  return passage;
}

}  // namespace

std::vector<Passage> GroupPassages(absl::Span<const std::vector<int32_t>> prompts, size_t most_branches,
                                   int64_t tail_tokens) {
  std::vector<Passage> passages;
  for (size_t begin = 0; begin < prompts.size();) {
    auto longest = static_cast<int64_t>(prompts[begin].size());
    int64_t shortest = longest, shared = longest - 1;
    size_t end = begin + 1;
    for (; end < prompts.size() && end - begin < most_branches; ++end) {
      const auto tokens = static_cast<int64_t>(prompts[end].size());
      const int64_t common = CommonTokens(prompts[begin], prompts[end], std::min(shared, tokens - 1));
      if (2 * common < std::max(longest, tokens)) break;
      shared = common;
      longest = std::max(longest, tokens);
      shortest = std::min(shortest, tokens);
    }
    const int64_t trunk = std::clamp<int64_t>(shortest - 1 - tail_tokens, 0, shared);
    passages.push_back(Pack(prompts.subspan(begin, end - begin), trunk));
    begin = end;
  }
  return passages;
}

}  // namespace aludel
