#include "runtime/text/constrain/regex/character_rules.h"

#include <algorithm>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/check.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using NodeId = GrammarBuilder::NodeId;
using Rule = GrammarBuilder::Rule;

constexpr int64_t kStepsPerRange = 16;
// What is written behind a backslash, and what it stands for.
constexpr absl::string_view kEscapes = "\"\\bfnrt", kEscaped = "\"\\\b\f\n\r\t";

// Well-formed UTF-8 of some characters, from the last byte to the first; equal tails are one.
class Utf8Nodes {
 public:
  Utf8Nodes(GrammarBuilder* builder, NodeId next) : builder_(*builder), next_(next) {}

  // The lead bytes of characters of 1 + `tails` bytes, into `ways`.
  void Leads(absl::Span<const CodePointRange> ranges, int tails, std::vector<NodeId>* ways) {
    static constexpr struct {
      uint32_t first, last;
      uint8_t lead;
    } kLengths[] = {{}, {0x80, 0x7ff, 0xc0}, {0x800, 0xffff, 0xe0}, {0x10000, kMaxCodePoint, 0xf0}};
    const auto& length = kLengths[tails];
    const uint32_t size = 1u << (6 * tails);
    for (uint32_t lead = length.first / size; lead <= length.last / size; ++lead) {
      const uint32_t from = std::max(lead * size, length.first);
      const auto part = Slice(ranges, from, lead * size + size - 1, lead * size);
      if (part.empty()) continue;
      ways->push_back(builder_.Class(ByteSet().set(length.lead + lead), Tail(tails, part)));
    }
  }

 private:
  using Ranges = std::vector<CodePointRange>;

  static Ranges Slice(absl::Span<const CodePointRange> ranges, uint32_t first, uint32_t last, uint32_t base) {
    Ranges part;
    for (const CodePointRange& range : ranges) {
      const uint32_t from = std::max(range.first, first), to = std::min(range.last, last);
      if (from <= to) part.push_back({from - base, to - base});
    }
    return part;
  }

  NodeId Tail(int bytes, const Ranges& ranges) {
    if (bytes == 0) return next_;
    const auto [known, added] = tails_.try_emplace({bytes, ranges}, 0);
    if (!added) return known->second;
    const uint32_t size = 1u << (6 * (bytes - 1));
    std::map<Ranges, ByteSet> children;
    for (uint32_t byte = 0; byte < 64; ++byte) {
      Ranges part = Slice(ranges, byte * size, byte * size + size - 1, byte * size);
      if (!part.empty()) children[std::move(part)].set(0x80 + byte);
    }
    std::vector<NodeId> ways;
    for (const auto& [part, set] : children) ways.push_back(builder_.Class(set, Tail(bytes - 1, part)));
    return tails_[{bytes, ranges}] = builder_.OneOf(ways);
  }

  GrammarBuilder& builder_;
  const NodeId next_;
  std::map<std::pair<int, Ranges>, NodeId> tails_;
};

}  // namespace

absl::StatusOr<Rule> CharacterRules::Longer(CodePointSet set) {
  if (const auto known = longer_.find(set); known != longer_.end()) return known->second;
  ALUDEL_RETURN_IF_ERROR(budget_->Spend(kStepsPerRange * static_cast<int64_t>(set.ranges().size())));
  Utf8Nodes nodes(builder_, builder_->ReturnNode());
  std::vector<NodeId> ways;
  for (int tails = 1; tails <= 3; ++tails) nodes.Leads(set.ranges(), tails, &ways);
  return longer_[std::move(set)] = builder_->MakeRule(builder_->OneOf(ways));
}

absl::StatusOr<Rule> CharacterRules::Escaped(const ByteSet& set) {
  const std::pair<uint64_t, uint64_t> key = {(set & ByteSet(~uint64_t{0})).to_ullong(),
                                             (set >> 64 & ByteSet(~uint64_t{0})).to_ullong()};
  if (const auto known = escaped_.find(key); known != escaped_.end()) return known->second;
  ALUDEL_RETURN_IF_ERROR(budget_->Spend(16));
  GrammarBuilder& b = *builder_;
  const NodeId end = b.ReturnNode();
  ByteSet letters, low, high;  // and the last digits of codes below and from 0x10
  for (int byte = 0; byte < 128; ++byte) {
    if (!set.test(byte)) continue;
    const size_t known = kEscaped.find(static_cast<char>(byte));
    if (known != absl::string_view::npos) {
      letters.set(static_cast<uint8_t>(kEscapes[known]));
    } else {
      (byte < 16 ? low : high) |= Bytes(absl::string_view("0123456789abcdef").substr(byte % 16, 1));
      (byte < 16 ? low : high) |= Bytes(absl::string_view("0123456789ABCDEF").substr(byte % 16, 1));
    }
  }
  std::vector<NodeId> codes, ways;
  if (low.any()) codes.push_back(b.Literal("0", b.Class(low, end)));
  if (high.any()) codes.push_back(b.Literal("1", b.Class(high, end)));
  if (letters.any()) ways.push_back(b.Class(letters, end));
  if (!codes.empty()) ways.push_back(b.Literal("u00", b.OneOf(codes)));
  return escaped_[key] = b.MakeRule(b.Literal("\\", b.OneOf(ways)));
}

absl::StatusOr<NodeId> CharacterRules::Character(const CodePointSet& set, Writing writing, NodeId next) {
  ByteSet plain, escaped;
  CodePointSet longer;
  for (const CodePointRange& range : set.ranges()) {
    for (uint32_t c = range.first; c <= range.last && c < 0x80; ++c) {
      const bool escape = writing == Writing::kJson && (c < 0x20 || c == '"' || c == '\\');
      (escape ? escaped : plain).set(c);
    }
    if (range.last >= 0x80) longer.Add(std::max(range.first, 0x80u), range.last);
  }
  std::vector<NodeId> ways;
  if (plain.any()) ways.push_back(builder_->Class(plain, next));
  if (escaped.any()) {
    ALUDEL_ASSIGN_OR_RETURN(const Rule rule, Escaped(escaped));
    ways.push_back(builder_->Call(rule, next));
  }
  if (!longer.empty()) {
    ALUDEL_ASSIGN_OR_RETURN(const Rule rule, Longer(std::move(longer)));
    ways.push_back(builder_->Call(rule, next));
  }
  ALUDEL_CHECK(!ways.empty());
  return builder_->OneOf(ways);
}

absl::StatusOr<NodeId> CharacterRules::Text(const CharDfa& dfa, Writing writing, NodeId next) {
  ALUDEL_CHECK(!dfa.empty());
  GrammarBuilder& b = *builder_;
  std::map<std::vector<int32_t>, CodePointSet> sets;
  std::vector<NodeId> states;
  for (size_t i = 0; i < dfa.states(); ++i) states.push_back(b.Later());
  for (size_t i = 0; i < states.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    ALUDEL_RETURN_IF_ERROR(budget_->Spend(4 + dfa.alphabet().size() / 2));
    std::vector<NodeId> ways;
    for (CharDfa::Edge& edge : dfa.EdgesOf(id)) {
      auto set = sets.find(edge.symbols);
      if (set == sets.end()) {
        CodePointSet characters = dfa.alphabet().CharactersOf(edge.symbols);
        ALUDEL_RETURN_IF_ERROR(budget_->Spend(static_cast<int64_t>(characters.ranges().size())));
        set = sets.emplace(std::move(edge.symbols), std::move(characters)).first;
      }
      ALUDEL_RETURN_IF_ERROR(budget_->Spend(4 + static_cast<int64_t>(set->second.ranges().size() / 4)));
      ALUDEL_ASSIGN_OR_RETURN(const NodeId way, Character(set->second, writing, states[edge.to]));
      ways.push_back(way);
    }
    if (dfa.accepts(id)) ways.push_back(next);
    const NodeId first = ways.back();
    ways.pop_back();
    b.SetLater(states[i], first, ways.empty() ? first : b.OneOf(ways));
  }
  return states.front();
}

}  // namespace aludel
