#include "runtime/text/constrain/array_rules.h"

#include <algorithm>
#include <map>

#include "runtime/status_macros.h"

namespace aludel {
namespace {

using NodeId = ArrayRules::NodeId;

}  // namespace

NodeId ArrayRules::Listed(absl::Span<const Rule> listed, Rule more, int64_t least, int64_t most) {
  const auto count = static_cast<int64_t>(listed.size());
  const NodeId close = Close(), spaced = json_.Space(close);
  NodeId after = spaced;
  if (more >= 0) {
    const Rule next = builder_.MakeRule(Comma(builder_.Call(more, builder_.ReturnNode())));
    after = builder_.Repeat(next, std::max<int64_t>(0, least - count), most < 0 ? -1 : most - count, spaced);
  }
  for (int64_t i = count - 1; i >= 0; --i) {
    const NodeId written = builder_.Call(listed[i], after);
    const NodeId next = i == 0 ? written : Comma(written);
    after = i >= least ? builder_.OneOf({next, i == 0 ? close : spaced}) : next;
  }
  return Open(count == 0 ? close : after);
}

NodeId ArrayRules::Place(int64_t count, const std::vector<NodeId>& items, bool may_close, NodeId close,
                         NodeId spaced) {
  std::vector<NodeId> ways;
  if (!items.empty()) ways.push_back(count == 0 ? builder_.OneOf(items) : Comma(builder_.OneOf(items)));
  if (may_close) ways.push_back(count == 0 ? close : spaced);
  return ways.empty() ? -1 : builder_.OneOf(ways);
}

absl::StatusOr<NodeId> ArrayRules::Unique(const std::vector<std::string>& values, int64_t least,
                                          int64_t most) {
  std::vector<Rule> rules;
  for (const std::string& value : values) {
    rules.push_back(builder_.MakeRule(builder_.Literal(value, builder_.ReturnNode())));
  }
  const size_t longest = most < 0 ? rules.size() : std::min<size_t>(rules.size(), most);
  std::vector<std::map<uint64_t, NodeId>> used(longest + 1);  // by how many
  used[0][0] = -1;
  for (size_t count = 0; count < longest; ++count) {
    for (const auto& [set, node] : used[count]) {
      ALUDEL_RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(rules.size()) * 4));
      for (size_t i = 0; i < rules.size(); ++i) {
        if ((set >> i & 1) == 0) used[count + 1][set | uint64_t{1} << i] = -1;
      }
    }
  }
  const NodeId close = Close(), spaced = json_.Space(close);
  for (size_t count = longest + 1; count-- > 0;) {
    for (auto& [set, node] : used[count]) {
      ALUDEL_RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(rules.size()) * 4));
      std::vector<NodeId> items;
      for (size_t i = 0; i < rules.size() && count < longest; ++i) {
        if ((set >> i & 1) == 0) {
          items.push_back(builder_.Call(rules[i], used[count + 1].at(set | uint64_t{1} << i)));
        }
      }
      const auto here = static_cast<int64_t>(count);
      node = Place(here, items, here >= least, close, spaced);
    }
  }
  return Open(used[0][0]);
}

absl::StatusOr<NodeId> ArrayRules::WithCounted(const Counted& items) {
  // By how many items there are, and how many of them count, each as far as it matters.
  const int64_t rows = items.most < 0 ? std::max<int64_t>(items.least, 1) : items.most;
  const int64_t columns = items.counted_most < 0 ? items.counted_least : items.counted_most;
  std::vector<std::vector<NodeId>> nodes;
  for (int64_t row = 0; row <= rows; ++row) {
    ALUDEL_RETURN_IF_ERROR(budget_.Spend(8 * (columns + 1)));
    nodes.emplace_back(columns + 1);
    for (NodeId& node : nodes.back()) node = builder_.Later();
  }
  const NodeId close = Close(), spaced = json_.Space(close);
  // Backwards, so that it is known which of them can still be closed.
  std::vector<std::vector<bool>> live(rows + 1, std::vector<bool>(columns + 1, false));
  for (int64_t row = rows; row >= 0; --row) {
    const int64_t below = row < rows ? row + 1 : items.most < 0 ? row : -1;
    for (int64_t column = columns; column >= 0; --column) {
      const int64_t beside = column < columns ? column + 1 : items.counted_most < 0 ? column : -1;
      const bool closes = row >= items.least && column >= items.counted_least;
      std::vector<NodeId> ways;
      const auto add = [&](Rule rule, int64_t to_column) {
        if (rule < 0 || below < 0 || to_column < 0) return;
        // A way back to the same place is worth as much as the others there.
        const bool same = below == row && to_column == column;
        if (same ? closes || !ways.empty() : live[below][to_column]) {
          ways.push_back(builder_.Call(rule, nodes[below][to_column]));
        }
      };
      add(items.counted, beside);
      add(items.other, column);
      const NodeId node = Place(row, ways, closes, close, spaced);
      live[row][column] = node >= 0;
      if (node >= 0) builder_.SetLater(nodes[row][column], node, node);
    }
  }
  return live[0][0] ? Open(nodes[0][0]) : -1;
}

}  // namespace aludel
