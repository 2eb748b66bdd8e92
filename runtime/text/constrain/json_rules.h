#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/text/constrain/grammar.h"

namespace aludel {

// JSON's own productions (RFC 8259), bounded where a rambling model would never end: white space is nothing,
// one space, or a line break with at most 20 spaces; numbers have at most 15 digits before and after the
// point and two in the exponent. Strings are valid UTF-8, and \u escapes name no surrogates, so that
// characters can be counted.
class JsonRules {
 public:
  using NodeId = GrammarBuilder::NodeId;
  using Rule = GrammarBuilder::Rule;

  static constexpr int kMaxDigits = 15;
  static constexpr int64_t kMaxInteger = 999999999999999;

  explicit JsonRules(GrammarBuilder* builder);

  NodeId Space(NodeId next) const { return builder_->Call(space_, next); }
  NodeId Quote(NodeId next) const { return builder_->Literal("\"", next); }
  // A string of `min` to `max` characters (max < 0: any), quotes included.
  NodeId String(int64_t min, int64_t max, NodeId next);
  // A string whose text is none of `names`, written without escapes.
  NodeId StringExcept(const std::vector<std::string>& names, NodeId next);
  NodeId Number(NodeId next);
  // Integers of [min, max], within +-kMaxInteger; min <= max.
  NodeId Integer(int64_t min, int64_t max, NodeId next);
  // Numbers of [min, max] written without exponent: the integers, and what lies between two of them.
  NodeId BoundedNumber(int64_t min, int64_t max, bool integers_at_min, bool integers_at_max, NodeId next);
  // The same without the integers; min < max.
  NodeId Fractions(int64_t min, int64_t max, NodeId next);
  // [item, item, ...], with between min_items and max_items items (max_items < 0: any).
  NodeId Array(Rule item, int64_t min_items, int64_t max_items, NodeId next);
  // Any JSON value; any JSON object.
  Rule any() const { return any_; }
  Rule any_object() const { return any_object_; }

 private:
  NodeId Utf8(const ByteSet& ascii, NodeId next);
  NodeId Natural(int64_t min, int64_t max, NodeId next);
  NodeId Fraction(NodeId next);
  void DefineAny();

  GrammarBuilder* const builder_;
  Rule space_;
  Rule character_;
  Rule digit_;
  Rule any_;
  Rule any_object_;
};

}  // namespace aludel
