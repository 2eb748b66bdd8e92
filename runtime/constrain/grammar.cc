#include "runtime/constrain/grammar.h"

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

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
  const auto [it, added] = set_ids_.emplace(set.to_string(), static_cast<int32_t>(grammar_.sets.size()));
  if (added) grammar_.sets.push_back(set);
  return Add({Grammar::Kind::kBytes, it->second, next});
}

GrammarBuilder::NodeId GrammarBuilder::Literal(absl::string_view bytes, NodeId next) {
  for (size_t i = bytes.size(); i > 0; --i) next = Class(Bytes(bytes.substr(i - 1, 1)), next);
  return next;
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

bool GrammarBuilder::HasFiniteText(NodeId start) const {
  std::vector<bool> finite(grammar_.nodes.size(), false);
  for (bool changed = true; changed;) {
    changed = false;
    // Nodes come after those that follow them, mostly, so that few rounds suffice.
    for (size_t id = 0; id < finite.size(); ++id) {
      if (finite[id]) continue;
      const Grammar::Node& node = grammar_.nodes[id];
      bool now = false;
      switch (node.kind) {
        case Grammar::Kind::kReturn:
          now = true;
          break;
        case Grammar::Kind::kBytes:
          now = grammar_.sets[node.to].any() && finite[node.next];
          break;
        case Grammar::Kind::kSplit:
          now = finite[node.to] || finite[node.next];
          break;
        case Grammar::Kind::kCall:
          now = finite[node.to] && finite[node.next];
          break;
      }
      finite[id] = now;
      changed = changed || now;
    }
  }
  return finite[start];
}

}  // namespace aludel
