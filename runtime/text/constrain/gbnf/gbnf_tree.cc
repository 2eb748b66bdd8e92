#include "runtime/text/constrain/gbnf/gbnf_tree.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {
namespace {

using Kind = GbnfNode::Kind;

constexpr size_t kShownNameBytes = 64;

bool InName(char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_'; }

class GbnfParser {
 public:
  GbnfParser(absl::string_view text, StepBudget* budget) : text_(text), budget_(budget) {}

  absl::StatusOr<GbnfGrammar> Parse() {
    if (const size_t fault = FirstInvalidUtf8(text_); fault != text_.size()) return Fault(fault, "no UTF-8");
    if (text_.find("::=") == absl::string_view::npos) {
      return absl::InvalidArgumentError(
          "has no rule of the form 'name ::= ...': GBNF is supported, Lark and other notations are not");
    }
    SkipBlanks();
    while (at_ < text_.size()) {
      const size_t begin = at_;
      const absl::string_view name = TakeName();
      SkipBlanks();
      if (name.empty() || !Take("::=")) return Fault(begin, "no 'name ::=' where a rule should begin");
      SkipBlanks();
      const int32_t id = Number(name);
      if (defined_[id]) return Fault(begin, absl::StrCat("a second rule '", Shown(name), "'"));
      ALUDEL_ASSIGN_OR_RETURN(GbnfNode body, Alternatives(0));
      grammar_.rules[id] = std::move(body);
      defined_[id] = true;
      if (at_ < text_.size() && !AtRule()) return Fault(at_, "what no rule may hold");
    }
    for (size_t id = 0; id < defined_.size(); ++id) {
      if (defined_[id]) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("uses the rule '", Shown(grammar_.names[id]), "', which is not defined"));
    }
    const auto root = ids_.find("root");
    if (root == ids_.end()) return absl::InvalidArgumentError("has no rule 'root'");
    grammar_.root = root->second;
    return std::move(grammar_);
  }

 private:
  static std::string Shown(absl::string_view name) { return std::string(name.substr(0, kShownNameBytes)); }
  static absl::Status Fault(size_t byte, absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("has ", what, " at byte ", byte));
  }
  bool Next(absl::string_view text) const { return text_.substr(at_, text.size()) == text; }
  bool Take(absl::string_view text) {
    if (!Next(text)) return false;
    at_ += text.size();
    return true;
  }
  void SkipBlanks() {
    while (at_ < text_.size()) {
      if (text_[at_] == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (absl::ascii_isspace(text_[at_])) {
        ++at_;
      } else {
        return;
      }
    }
  }
  absl::string_view TakeName() {
    const size_t begin = at_;
    while (at_ < text_.size() && InName(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  // A name and "::=" come next. What stands between them is looked at once a name, so at most twice in all.
  bool AtRule() {
    const size_t begin = at_;
    const bool named = !TakeName().empty();
    SkipBlanks();
    const bool rule = named && Next("::=");
    at_ = begin;
    return rule;
  }
  int32_t Number(absl::string_view name) {
    const auto [it, added] = ids_.try_emplace(std::string(name), static_cast<int32_t>(ids_.size()));
    if (added) {
      grammar_.names.emplace_back(name);
      grammar_.rules.emplace_back();
      defined_.push_back(false);
    }
    return it->second;
  }

  absl::StatusOr<GbnfNode> Alternatives(int depth) {
    if (depth > kMaxGbnfDepth)
      return Fault(at_, absl::StrCat("groups deeper than ", kMaxGbnfDepth, " levels"));
    GbnfNode all{.kind = Kind::kAlternatives};
    do {
      SkipBlanks();
      GbnfNode sequence;
      while (at_ < text_.size() && !Next("|") && !Next(")") && !AtRule()) {
        ALUDEL_RETURN_IF_ERROR(budget_->Spend(4));
        ALUDEL_ASSIGN_OR_RETURN(GbnfNode term, Term(depth));
        ALUDEL_ASSIGN_OR_RETURN(term, Quantified(std::move(term)));
        sequence.parts.push_back(std::move(term));
        SkipBlanks();
      }
      all.parts.push_back(sequence.parts.size() == 1 ? std::move(sequence.parts.front())
                                                     : std::move(sequence));
    } while (Take("|"));
    if (all.parts.size() > 1) return all;
    return std::move(all.parts.front());
  }

  absl::StatusOr<GbnfNode> Term(int depth) {
    const size_t begin = at_;
    if (Take("\"")) return Literal(begin);
    if (Take("[")) return Class(begin);
    if (Take(".")) return GbnfNode{.kind = Kind::kSet, .set = CodePointSet::All()};
    if (Take("(")) {
      if (Next("=")) return Fault(begin, "lookahead, which is not supported,");
      ALUDEL_ASSIGN_OR_RETURN(GbnfNode inside, Alternatives(depth + 1));
      if (!Take(")")) return Fault(begin, "a '(' that is not closed");
      return inside;
    }
    const absl::string_view name = TakeName();
    if (name.empty()) return Fault(begin, "what no rule may hold");
    return GbnfNode{.kind = Kind::kRule, .rule = Number(name)};
  }

  absl::StatusOr<GbnfNode> Quantified(GbnfNode term) {
    for (int quantifiers = 0;; ++quantifiers) {
      SkipSpaces();
      const size_t begin = at_;
      int32_t min = 0, max = -1;
      if (Take("*")) {
        min = 0;
      } else if (Take("+")) {
        min = 1;
      } else if (Take("?")) {
        max = 1;
      } else if (Take("{")) {
        ALUDEL_RETURN_IF_ERROR(Counts(begin, &min, &max));
      } else {
        return term;
      }
      if (quantifiers == kMaxGbnfDepth) return Fault(begin, "too many quantifiers, one behind another,");
      GbnfNode repeat{.kind = Kind::kRepeat, .min = min, .max = max};
      repeat.parts.push_back(std::move(term));
      term = std::move(repeat);
    }
  }

  void SkipSpaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }

  absl::Status Counts(size_t begin, int32_t* min, int32_t* max) {
    const auto number = [this]() -> int32_t {
      SkipSpaces();
      int32_t value = -1;
      for (; at_ < text_.size() && absl::ascii_isdigit(text_[at_]); ++at_) {
        value = std::min(std::max(value, 0) * 10 + (text_[at_] - '0'), kMaxGbnfRepeat + 1);
      }
      SkipSpaces();
      return value;
    };
    *min = number();
    *max = *min;
    if (Take(",")) *max = number();
    if (*min < 0 || !Take("}")) return Fault(begin, "a '{' that is no number of repetitions");
    if (std::max(*min, *max) > kMaxGbnfRepeat) {
      return Fault(begin, absl::StrCat("more than ", kMaxGbnfRepeat, " repetitions"));
    }
    if (*max >= 0 && *min > *max) return Fault(begin, "a quantifier whose bounds are out of order");
    return absl::OkStatus();
  }

  // One character, escaped or not.
  absl::StatusOr<uint32_t> Character() {
    ALUDEL_RETURN_IF_ERROR(budget_->Spend(1));
    const size_t begin = at_;
    const uint32_t c = NextCodePoint(text_, &at_);
    if (c != '\\') return c;
    if (at_ == text_.size()) return Fault(begin, "a '\\' with nothing behind it");
    const uint32_t escaped = NextCodePoint(text_, &at_);
    switch (escaped) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return Hex(begin, 2);
      case 'u':
        return Hex(begin, 4);
      case 'U':
        return Hex(begin, 8);
      default:
        break;
    }
    if (escaped < 0x80 && absl::ascii_ispunct(static_cast<char>(escaped))) return escaped;
    return Fault(begin, "an escape that is unknown");
  }

  absl::StatusOr<uint32_t> Hex(size_t begin, size_t digits) {
    const absl::string_view code = text_.substr(at_, digits);
    uint64_t value = 0;
    const bool whole = code.size() == digits && std::all_of(code.begin(), code.end(), absl::ascii_isxdigit);
    if (whole) value = std::stoull(std::string(code), nullptr, 16);
    if (!whole || value > kMaxCodePoint || (value >= 0xd800 && value < 0xe000)) {
      return Fault(begin, "an escape that is no character");
    }
    at_ += digits;
    return static_cast<uint32_t>(value);
  }

  absl::StatusOr<GbnfNode> Literal(size_t begin) {
    GbnfNode literal{.kind = Kind::kText};
    while (!Take("\"")) {
      if (at_ == text_.size() || Next("\n")) return Fault(begin, "a literal that does not end");
      ALUDEL_ASSIGN_OR_RETURN(const uint32_t c, Character());
      AppendUtf8(c, &literal.text);
    }
    return literal;
  }

  absl::StatusOr<GbnfNode> Class(size_t begin) {
    const bool negated = Take("^");
    CodePointSet set;
    while (!Take("]")) {
      if (at_ == text_.size() || Next("\n")) return Fault(begin, "a '[' that is not closed");
      const size_t item = at_;
      ALUDEL_RETURN_IF_ERROR(budget_->Spend(1 + static_cast<int64_t>(set.ranges().size() / 8)));
      ALUDEL_ASSIGN_OR_RETURN(const uint32_t first, Character());
      uint32_t last = first;
      if (Next("-") && text_.substr(at_, 2) != "-]" && at_ + 1 < text_.size()) {
        ++at_;
        ALUDEL_ASSIGN_OR_RETURN(last, Character());
      }
      if (first > last) return Fault(item, "a range that is out of order");
      set.Add(first, last);
    }
    if (negated) set = set.Negated();
    if (set.empty()) return Fault(begin, "a class of no character");
    return GbnfNode{.kind = Kind::kSet, .set = std::move(set)};
  }

  const absl::string_view text_;
  StepBudget* const budget_;
  size_t at_ = 0;
  GbnfGrammar grammar_;
  std::vector<bool> defined_;
  absl::flat_hash_map<std::string, int32_t> ids_;
};

}  // namespace

absl::StatusOr<GbnfGrammar> ParseGbnf(absl::string_view text, StepBudget* budget) {
  return GbnfParser(text, budget).Parse();
}

}  // namespace aludel
