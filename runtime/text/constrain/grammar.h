#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aludel {

using ByteSet = std::bitset<256>;

ByteSet Bytes(absl::string_view bytes);
ByteSet ByteRange(uint8_t first, uint8_t last);

// A context-free language over bytes, as a graph: a rule is entered at its first node and left at a kReturn;
// what a rule calls, and where it goes on, makes the stack of a pushdown automaton
// (runtime/text/constrain/token_automaton.h runs it). Immutable and thread-safe once built.
struct Grammar {
  enum class Kind : uint8_t { kBytes, kSplit, kCall, kReturn };
  struct Node {
    Kind kind = Kind::kReturn;
    int32_t to = 0;     // kBytes: index into sets; kSplit: one way on; kCall: the rule's first node
    int32_t next = -1;  // kBytes, kCall: where it goes on; kSplit: the other way
  };
  std::vector<Node> nodes;
  std::vector<ByteSet> sets;
  int32_t start = 0;
};

// Builds a grammar from its end to its beginning: every function takes the node that follows and returns the
// first node of what it adds. Rules may be called before they are defined. Not thread-safe.
class GrammarBuilder {
 public:
  using NodeId = int32_t;
  using Rule = int32_t;

  // More than this many nodes are ResourceExhausted at Finish; building stops to grow there.
  static constexpr size_t kMaxNodes = 1 << 19;

  GrammarBuilder();

  NodeId ReturnNode() const { return 0; }
  NodeId Class(const ByteSet& set, NodeId next);
  NodeId Literal(absl::string_view bytes, NodeId next);
  // One of `texts`, of which there must be one: a tree of their beginnings, so that a text in the making
  // stands in one place however many there are.
  NodeId OneOfLiterals(std::vector<std::string> texts, NodeId next);
  // One of `starts`, which must not be empty.
  NodeId OneOf(const std::vector<NodeId>& starts);
  // Between `min` and `max` times `rule` (max < 0: any number of times).
  NodeId Repeat(Rule rule, int64_t min, int64_t max, NodeId next);
  NodeId Call(Rule rule, NodeId next);

  // A node whose ways on are set later: for loops.
  NodeId Later();
  void SetLater(NodeId node, NodeId one, NodeId other);

  Rule NewRule();
  void Define(Rule rule, NodeId start);
  Rule MakeRule(NodeId start);
  size_t size() const { return grammar_.nodes.size(); }

  // InvalidArgument where a rule begins with itself (nothing is consumed in between) or `root` has no finite
  // text; ResourceExhausted where the grammar is too large. Ends the builder.
  absl::StatusOr<Grammar> Finish(Rule root);

 private:
  NodeId Add(Grammar::Node node);
  bool BeginsWithItself() const;
  bool HasFiniteText(NodeId start) const;

  Grammar grammar_;
  std::vector<NodeId> rules_;  // first nodes; -1 until defined
  std::unordered_map<ByteSet, int32_t> set_ids_;
};

}  // namespace aludel
