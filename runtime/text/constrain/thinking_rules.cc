#include "runtime/text/constrain/thinking_rules.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace aludel {
namespace {

class Builder {
 public:
  explicit Builder(Grammar* grammar) : grammar_(*grammar) {}

  int32_t Class(const ByteSet& set, int32_t next) {
    grammar_.sets.push_back(set);
    return Add({Grammar::Kind::kBytes, static_cast<int32_t>(grammar_.sets.size() - 1), next});
  }
  int32_t Split(int32_t one, int32_t other) { return Add({Grammar::Kind::kSplit, one, other}); }
  // A node that Fill makes one later.
  int32_t Later() { return Add({}); }
  void FillSplit(int32_t node, int32_t one, int32_t other) {
    grammar_.nodes[node] = {Grammar::Kind::kSplit, one, other};
  }
  int32_t Literal(absl::string_view bytes, int32_t next) {
    for (size_t i = bytes.size(); i > 0; --i) next = Class(Bytes(bytes.substr(i - 1, 1)), next);
    return next;
  }

 private:
  int32_t Add(Grammar::Node node) {
    grammar_.nodes.push_back(node);
    return static_cast<int32_t>(grammar_.nodes.size() - 1);
  }

  Grammar& grammar_;
};

// How much of the end of `seen` is a beginning of `word`, which it does not hold.
size_t Matched(const std::string& seen, absl::string_view word) {
  size_t size = std::min(seen.size(), word.size());
  while (size > 0 && seen.compare(seen.size() - size, size, word.data(), size) != 0) --size;
  return size;
}

// Any bytes up to the first `word`, and on to `next`: a node for each part of it that may have been seen.
int32_t UpTo(Builder& builder, absl::string_view word, int32_t next) {
  std::vector<int32_t> states;
  for (size_t i = 0; i < word.size(); ++i) states.push_back(builder.Later());
  states.push_back(next);
  for (size_t seen = 0; seen < word.size(); ++seen) {
    std::map<size_t, ByteSet> ways;
    for (int byte = 0; byte < 256; ++byte) {
      const std::string text = std::string(word.substr(0, seen)) + static_cast<char>(byte);
      ways[Matched(text, word)].set(byte);
    }
    int32_t node = -1;
    for (const auto& [matched, bytes] : ways) {
      const int32_t way = builder.Class(bytes, states[matched]);
      node = node < 0 ? way : builder.Split(way, node);
    }
    builder.FillSplit(states[seen], node, node);
  }
  return states[0];
}

}  // namespace

Grammar EitherOf(Grammar one, const Grammar& other) {
  const auto nodes = static_cast<int32_t>(one.nodes.size());
  const auto sets = static_cast<int32_t>(one.sets.size());
  one.sets.insert(one.sets.end(), other.sets.begin(), other.sets.end());
  for (Grammar::Node node : other.nodes) {
    if (node.kind == Grammar::Kind::kBytes) {
      node.to += sets;
    } else if (node.kind != Grammar::Kind::kReturn) {
      node.to += nodes;
    }
    if (node.next >= 0) node.next += nodes;
    one.nodes.push_back(node);
  }
  const int32_t start = Builder(&one).Split(one.start, other.start + nodes);
  one.start = start;
  return one;
}

Grammar WithThoughts(Grammar answer, absl::string_view begin, absl::string_view end) {
  Builder builder(&answer);
  int32_t behind = answer.start;
  for (int i = 0; i < kMaxThoughtSpace; ++i) {
    behind = builder.Split(answer.start, builder.Class(Bytes(" \n"), behind));
  }
  const int32_t thoughts = UpTo(builder, end, behind);
  answer.start = begin.empty() ? thoughts : builder.Split(answer.start, builder.Literal(begin, thoughts));
  return answer;
}

}  // namespace aludel
