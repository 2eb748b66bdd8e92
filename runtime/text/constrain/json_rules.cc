#include "runtime/text/constrain/json_rules.h"

#include <algorithm>

#include "kernels/check.h"
#include "runtime/text/constrain/byte_tree.h"

namespace aludel {
namespace {

using NodeId = GrammarBuilder::NodeId;

constexpr int kMaxIndent = 20;

// Characters that a string holds as they are, of those with one byte.
ByteSet PlainAscii() { return ByteRange(0x20, 0x7f) & ~Bytes("\"\\"); }

ByteSet HexDigits() { return Bytes("0123456789abcdefABCDEF"); }

int64_t PowerOfTen(int exponent) {
  int64_t power = 1;
  for (int i = 0; i < exponent; ++i) power *= 10;
  return power;
}

}  // namespace

JsonRules::JsonRules(GrammarBuilder* builder) : builder_(builder) {
  GrammarBuilder& b = *builder_;
  const NodeId end = b.ReturnNode();
  const Rule blank = b.MakeRule(b.Class(Bytes(" "), end));
  space_ = b.MakeRule(
      b.OneOf({b.Class(Bytes(" "), end), b.Class(Bytes("\n"), b.Repeat(blank, 0, kMaxIndent, end)), end}));
  digit_ = b.MakeRule(b.Class(ByteRange('0', '9'), end));

  const NodeId hex1 = b.Class(HexDigits(), end);
  const NodeId hex2 = b.Class(HexDigits(), hex1);
  const NodeId hex3 = b.Class(HexDigits(), hex2);
  const NodeId code = b.OneOf(
      {b.Class(HexDigits() & ~Bytes("dD"), hex3), b.Class(Bytes("dD"), b.Class(ByteRange('0', '7'), hex2))});
  const NodeId escape = b.OneOf({b.Class(Bytes("\"\\/bfnrt"), end), b.Class(Bytes("u"), code)});
  character_ = b.MakeRule(b.OneOf({b.Class(Bytes("\\"), escape), Utf8(PlainAscii(), end)}));
  any_ = b.NewRule();
  any_object_ = b.NewRule();
  DefineAny();
}

// One character: `ascii`, or a well-formed sequence of two to four bytes (Unicode, table 3-7).
NodeId JsonRules::Utf8(const ByteSet& ascii, NodeId next) {
  GrammarBuilder& b = *builder_;
  const ByteSet tail = ByteRange(0x80, 0xbf);
  const NodeId one = b.Class(tail, next);
  const NodeId two = b.Class(tail, one);
  const NodeId three = b.Class(tail, two);
  return b.OneOf({b.Class(ascii, next), b.Class(ByteRange(0xc2, 0xdf), one),
                  b.Class(Bytes("\xe0"), b.Class(ByteRange(0xa0, 0xbf), one)),
                  b.Class(ByteRange(0xe1, 0xec) | Bytes("\xee\xef"), two),
                  b.Class(Bytes("\xed"), b.Class(ByteRange(0x80, 0x9f), one)),
                  b.Class(Bytes("\xf0"), b.Class(ByteRange(0x90, 0xbf), two)),
                  b.Class(ByteRange(0xf1, 0xf3), three),
                  b.Class(Bytes("\xf4"), b.Class(ByteRange(0x80, 0x8f), two))});
}

NodeId JsonRules::String(int64_t min, int64_t max, NodeId next) {
  return builder_->Literal("\"", builder_->Repeat(character_, min, max, builder_->Literal("\"", next)));
}

NodeId JsonRules::StringExcept(const std::vector<std::string>& names, NodeId next) {
  GrammarBuilder& b = *builder_;
  const NodeId quote = b.Literal("\"", next);
  const Rule plain = b.MakeRule(Utf8(PlainAscii(), b.ReturnNode()));
  const NodeId rest = b.Repeat(plain, 0, -1, quote);
  // Along the tree of the names; what leaves it is free, and on it a name must not end. A name that needs an
  // escape cannot come up here.
  std::vector<std::string> plain_names;
  for (const std::string& name : names) {
    const auto plain_byte = [](char c) { return static_cast<uint8_t>(c) >= 0x80 || PlainAscii().test(c); };
    if (std::all_of(name.begin(), name.end(), plain_byte)) plain_names.push_back(name);
  }
  if (plain_names.empty()) return b.Literal("\"", rest);
  const ByteTree tree(std::move(plain_names));
  std::vector<NodeId> starts(tree.nodes().size());
  std::vector<NodeId> ways;
  for (size_t i = tree.nodes().size(); i > 0; --i) {
    const ByteTree::Node& node = tree.nodes()[i - 1];
    ways.clear();
    ByteSet onward;
    for (int32_t child = node.first_child; child >= 0; child = tree.nodes()[child].sibling) {
      onward.set(tree.nodes()[child].byte);
      ways.push_back(b.Class(ByteSet().set(tree.nodes()[child].byte), starts[child]));
    }
    // Inside a character there is no other way.
    const bool whole = (onward & ByteRange(0x80, 0xbf)).none();
    if (whole) ways.push_back(b.Class(PlainAscii() & ~onward, rest));
    if (whole && !node.ends) ways.push_back(quote);
    starts[i - 1] = b.OneOf(ways);
  }
  return b.Literal("\"", starts[0]);
}

NodeId JsonRules::Fraction(NodeId next) {
  GrammarBuilder& b = *builder_;
  // The last digit is no zero, so that the number is no integer.
  return b.Literal(".", b.Repeat(digit_, 0, kMaxDigits - 1, b.Class(ByteRange('1', '9'), next)));
}

NodeId JsonRules::Number(NodeId next) {
  GrammarBuilder& b = *builder_;
  const NodeId power = b.Repeat(digit_, 1, 2, next);
  const NodeId exponent =
      b.OneOf({b.Class(Bytes("eE"), b.OneOf({b.Class(Bytes("+-"), power), power})), next});
  const NodeId fraction = b.OneOf({b.Literal(".", b.Repeat(digit_, 1, kMaxDigits, exponent)), exponent});
  const NodeId natural =
      b.OneOf({b.Literal("0", fraction),
               b.Class(ByteRange('1', '9'), b.Repeat(digit_, 0, kMaxDigits - 1, fraction))});
  return b.OneOf({b.Literal("-", natural), natural});
}

NodeId JsonRules::Integer(int64_t min, int64_t max, NodeId next) {
  ALUDEL_CHECK(-kMaxInteger <= min && min <= max && max <= kMaxInteger);
  GrammarBuilder& b = *builder_;
  std::vector<NodeId> ways;
  if (max >= 0) ways.push_back(Natural(std::max<int64_t>(min, 0), max, next));
  if (min < 0) ways.push_back(b.Literal("-", Natural(std::max<int64_t>(1, -max), -min, next)));
  return b.OneOf(ways);
}

NodeId JsonRules::BoundedNumber(int64_t min, int64_t max, bool integers_at_min, bool integers_at_max,
                                NodeId next) {
  std::vector<NodeId> ways;
  const int64_t first = integers_at_min ? min : min + 1;
  const int64_t last = integers_at_max ? max : max - 1;
  if (first <= last) ways.push_back(Integer(first, last, next));
  if (min < max) ways.push_back(Fractions(min, max, next));
  return builder_->OneOf(ways);
}

NodeId JsonRules::Fractions(int64_t min, int64_t max, NodeId next) {
  ALUDEL_CHECK(min < max);
  std::vector<NodeId> ways;
  // n.f lies between n and n + 1, and -n.f between -(n + 1) and -n.
  if (max >= 1) ways.push_back(Natural(std::max<int64_t>(min, 0), max - 1, Fraction(next)));
  if (min <= -1) {
    ways.push_back(builder_->Literal("-", Natural(std::max<int64_t>(0, -max), -min - 1, Fraction(next))));
  }
  return builder_->OneOf(ways);
}

// Numbers of [min, max] without leading zeros, 0 <= min <= max: of each length apart, digit by digit; a digit
// that is neither the least nor the greatest leaves the rest free.
NodeId JsonRules::Natural(int64_t min, int64_t max, NodeId next) {
  GrammarBuilder& b = *builder_;
  std::vector<NodeId> ways;
  for (int digits = 1; digits <= kMaxDigits; ++digits) {
    const int64_t least = std::max(min, digits == 1 ? 0 : PowerOfTen(digits - 1));
    const int64_t greatest = std::min(max, PowerOfTen(digits) - 1);
    if (least > greatest) continue;
    // After each prefix that equals least's, greatest's, both, or neither; from the last digit backwards.
    NodeId low = next, high = next, both = next, free = next;
    for (int i = 0; i < digits; ++i) {
      const auto from = static_cast<uint8_t>('0' + least / PowerOfTen(i) % 10);
      const auto to = static_cast<uint8_t>('0' + greatest / PowerOfTen(i) % 10);
      const NodeId new_low =
          b.OneOf({b.Class(ByteRange(from, from), low), b.Class(ByteRange(from + 1, '9'), free)});
      const NodeId new_high =
          b.OneOf({b.Class(ByteRange(to, to), high), b.Class(ByteRange('0', to - 1), free)});
      NodeId new_both = 0;
      if (from == to) {
        new_both = b.Class(ByteRange(from, from), both);
      } else if (from < to) {
        new_both = b.OneOf({b.Class(ByteRange(from, from), low), b.Class(ByteRange(from + 1, to - 1), free),
                            b.Class(ByteRange(to, to), high)});
      } else {
        new_both = b.Class(ByteSet(), next);  // least <= greatest: their prefixes never are equal here
      }
      free = b.Class(ByteRange('0', '9'), free);
      low = new_low;
      high = new_high;
      both = new_both;
    }
    ways.push_back(both);
  }
  return b.OneOf(ways);
}

NodeId JsonRules::Array(Rule item, int64_t min_items, int64_t max_items, NodeId next) {
  GrammarBuilder& b = *builder_;
  const NodeId close = Space(b.Literal("]", next));
  std::vector<NodeId> ways;
  if (max_items != 0) {
    const Rule more = b.MakeRule(b.Literal(",", Space(b.Call(item, b.ReturnNode()))));
    ways.push_back(b.Call(item, b.Repeat(more, std::max<int64_t>(0, min_items - 1),
                                         max_items < 0 ? -1 : max_items - 1, close)));
  }
  if (min_items == 0) ways.push_back(b.Literal("]", next));
  return b.Literal("[", Space(b.OneOf(ways)));
}

void JsonRules::DefineAny() {
  GrammarBuilder& b = *builder_;
  const NodeId end = b.ReturnNode();
  const Rule member = b.MakeRule(String(0, -1, b.Literal(":", Space(b.Call(any_, end)))));
  const Rule more = b.MakeRule(b.Literal(",", Space(b.Call(member, end))));
  const NodeId members = b.Call(member, b.Repeat(more, 0, -1, Space(b.Literal("}", end))));
  b.Define(any_object_, b.Literal("{", Space(b.OneOf({members, b.Literal("}", end)}))));
  b.Define(any_, b.OneOf({b.Call(any_object_, end), Array(any_, 0, -1, end), String(0, -1, end), Number(end),
                          b.Literal("true", end), b.Literal("false", end), b.Literal("null", end)}));
}

}  // namespace aludel
