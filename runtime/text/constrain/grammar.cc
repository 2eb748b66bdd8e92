#include "runtime/text/constrain/grammar.h"

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "runtime/text/constrain/byte_tree.h"

namespace aludel {

ByteSet Bytes(absl::string_view bytes) {
  ByteSet set;
  for (const char byte : bytes) set.set(static_cast<uint8_t>(byte));
  return set;
}

ByteSet ByteRange(uint8_t first, uint8_t last) {
  ByteSet set;
  for (int byte = first; byte <= last; ++byte) set.set(byte);
  return set;
}

GrammarBuilder::GrammarBuilder() { grammar_.nodes.push_back({Grammar::Kind::kReturn, 0, -1}); }

GrammarBuilder::NodeId GrammarBuilder::Add(Grammar::Node node) {
  // What is too large is refused at the end; until then its nodes all are the first one.
  if (grammar_.nodes.size() > kMaxNodes) return ReturnNode();
  grammar_.nodes.push_back(node);
  return static_cast<NodeId>(grammar_.nodes.size() - 1);
}

GrammarBuilder::NodeId GrammarBuilder::Class(const ByteSet& set, NodeId next) {
  const auto [it, added] = set_ids_.try_emplace(set, static_cast<int32_t>(grammar_.sets.size()));
  if (added) grammar_.sets.push_back(set);
  return Add({Grammar::Kind::kBytes, it->second, next});
}

GrammarBuilder::NodeId GrammarBuilder::Literal(absl::string_view bytes, NodeId next) {
  for (size_t i = bytes.size(); i > 0; --i) next = Class(Bytes(bytes.substr(i - 1, 1)), next);
  return next;
}

GrammarBuilder::NodeId GrammarBuilder::OneOfLiterals(std::vector<std::string> texts, NodeId next) {
  ALUDEL_CHECK(!texts.empty());
  const ByteTree tree(std::move(texts));
  std::vector<NodeId> starts(tree.nodes().size());
  std::vector<NodeId> ways;
  // Children come after their parents.
  for (size_t i = tree.nodes().size(); i > 0; --i) {
    const ByteTree::Node& node = tree.nodes()[i - 1];
    ways.clear();
    for (int32_t child = node.first_child; child >= 0; child = tree.nodes()[child].sibling) {
      ways.push_back(Class(ByteSet().set(tree.nodes()[child].byte), starts[child]));
    }
    if (node.ends) ways.push_back(next);
    starts[i - 1] = OneOf(ways);
  }
  return starts[0];
}

GrammarBuilder::NodeId GrammarBuilder::OneOf(const std::vector<NodeId>& starts) {
  ALUDEL_CHECK(!starts.empty());
  NodeId node = starts.back();
  for (size_t i = starts.size() - 1; i > 0; --i) node = Add({Grammar::Kind::kSplit, starts[i - 1], node});
  return node;
}

GrammarBuilder::NodeId GrammarBuilder::Repeat(Rule rule, int64_t min, int64_t max, NodeId next) {
  NodeId node = next;
  if (max < 0) {
    node = Later();
    SetLater(node, Call(rule, node), next);
  }
  for (int64_t i = std::max(min, max); i > 0 && grammar_.nodes.size() <= kMaxNodes; --i) {
    node = Call(rule, node);
    if (i > min) node = Add({Grammar::Kind::kSplit, node, next});
  }
  return node;
}

GrammarBuilder::NodeId GrammarBuilder::Call(Rule rule, NodeId next) {
  return Add({Grammar::Kind::kCall, rule, next});
}

GrammarBuilder::NodeId GrammarBuilder::Later() { return Add({Grammar::Kind::kSplit, 0, 0}); }

void GrammarBuilder::SetLater(NodeId node, NodeId one, NodeId other) {
  if (grammar_.nodes.size() > kMaxNodes) return;
  grammar_.nodes[node].to = one;
  grammar_.nodes[node].next = other;
}

GrammarBuilder::Rule GrammarBuilder::NewRule() {
  rules_.push_back(-1);
  return static_cast<Rule>(rules_.size() - 1);
}

void GrammarBuilder::Define(Rule rule, NodeId start) {
  ALUDEL_CHECK(rules_[rule] < 0);
  rules_[rule] = start;
}

GrammarBuilder::Rule GrammarBuilder::MakeRule(NodeId start) {
  const Rule rule = NewRule();
  Define(rule, start);
  return rule;
}

absl::StatusOr<Grammar> GrammarBuilder::Finish(Rule root) {
  if (grammar_.nodes.size() > kMaxNodes) {
    return absl::ResourceExhaustedError(absl::StrCat("needs more than ", kMaxNodes, " states"));
  }
  for (Grammar::Node& node : grammar_.nodes) {
    if (node.kind != Grammar::Kind::kCall) continue;
    ALUDEL_CHECK(rules_[node.to] >= 0);
    node.to = rules_[node.to];
  }
  grammar_.start = rules_[root];
  if (BeginsWithItself()) {
    return absl::InvalidArgumentError("refers to itself with nothing in between");
  }
  if (!HasFiniteText(grammar_.start)) {
    return absl::InvalidArgumentError("is never complete: it needs itself in itself");
  }
  return std::move(grammar_);
}

// A cycle of nodes that consume nothing would keep the automaton busy for ever. Rules consume something
// before they return, so what follows a call is no part of such a cycle.
bool GrammarBuilder::BeginsWithItself() const {
  enum : uint8_t { kNew, kOpen, kDone };
  std::vector<uint8_t> state(grammar_.nodes.size(), kNew);
  for (NodeId root = 0; root < static_cast<NodeId>(grammar_.nodes.size()); ++root) {
    if (state[root] != kNew) continue;
    std::vector<std::pair<NodeId, int>> path = {{root, 0}};
    state[root] = kOpen;
    while (!path.empty()) {
      auto& [id, step] = path.back();
      const Grammar::Node& node = grammar_.nodes[id];
      NodeId to = -1;
      if (node.kind == Grammar::Kind::kSplit && step < 2) to = step == 0 ? node.to : node.next;
      if (node.kind == Grammar::Kind::kCall && step < 1) to = node.to;
      ++step;
      if (to < 0) {
        state[id] = kDone;
        path.pop_back();
      } else if (state[to] == kOpen) {
        return true;
      } else if (state[to] == kNew) {
        state[to] = kOpen;
        path.emplace_back(to, 0);
      }
    }
  }
  return false;
}

// Which nodes lead to an end, from the ends backwards: each node is looked at when what it waits for
// is known.
bool GrammarBuilder::HasFiniteText(NodeId start) const {
  using Kind = Grammar::Kind;
  const size_t count = grammar_.nodes.size();
  // Who waits for a node, as lists in one array.
  std::vector<int32_t> first(count + 1, 0);
  const auto each_edge = [this, count](const auto& visit) {
    for (size_t id = 0; id < count; ++id) {
      const Grammar::Node& node = grammar_.nodes[id];
      if (node.kind == Kind::kSplit || node.kind == Kind::kCall) visit(node.to, id);
      const bool dead = node.kind == Kind::kBytes && grammar_.sets[node.to].none();
      if (node.kind != Kind::kReturn && !dead) visit(node.next, id);
    }
  };
  each_edge([&first](int32_t to, size_t) { ++first[to + 1]; });
  for (size_t id = 0; id < count; ++id) first[id + 1] += first[id];
  std::vector<int32_t> waiting(first[count]);
  std::vector<int32_t> filled(first.begin(), first.end() - 1);
  each_edge([&](int32_t to, size_t from) { waiting[filled[to]++] = static_cast<int32_t>(from); });

  std::vector<uint8_t> missing(count);  // what a node still waits for; a call waits for both
  std::vector<int32_t> ready;
  for (size_t id = 0; id < count; ++id) {
    missing[id] = grammar_.nodes[id].kind == Kind::kCall ? 2 : 1;
    if (grammar_.nodes[id].kind == Kind::kReturn) ready.push_back(static_cast<int32_t>(id));
  }
  for (const int32_t id : ready) missing[id] = 0;
  while (!ready.empty()) {
    const int32_t id = ready.back();
    ready.pop_back();
    for (int32_t i = first[id]; i < first[id + 1]; ++i) {
      uint8_t& left = missing[waiting[i]];
      if (left > 0 && --left == 0) ready.push_back(waiting[i]);
    }
  }
  return missing[start] == 0;
}

}  // namespace aludel
