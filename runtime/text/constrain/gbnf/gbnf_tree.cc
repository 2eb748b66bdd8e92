#include "runtime/text/constrain/gbnf/gbnf_tree.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "runtime/text/constrain/gbnf/gbnf_characters.h"
#include "runtime/text/constrain/text_cursor.h"

namespace aludel {
namespace {

using Kind = GbnfNode::Kind;

constexpr size_t kShownNameBytes = 64;

bool InName(unsigned char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_'; }

class GbnfParser {
 public:
  GbnfParser(absl::string_view text, StepBudget* budget) : cursor_(text), budget_(budget) {}

  absl::StatusOr<GbnfGrammar> Parse() {
    ALUDEL_RETURN_IF_ERROR(cursor_.CheckUtf8());
    if (!absl::StrContains(cursor_.rest(), "::=")) {
      return absl::InvalidArgumentError(
          "has no rule of the form 'name ::= ...': GBNF is supported, Lark and other notations are not");
    }
    SkipBlanks();
    while (!cursor_.Done()) {
      const size_t begin = cursor_.at();
      const absl::string_view name = cursor_.TakeWhile(InName);
      SkipBlanks();
      if (name.empty() || !cursor_.Take("::="))
        return TextCursor::Fault(begin, "no 'name ::=' where a rule should begin");
      SkipBlanks();
      const int32_t id = Number(name);
      if (defined_[id]) return TextCursor::Fault(begin, absl::StrCat("a second rule '", Shown(name), "'"));
      ALUDEL_ASSIGN_OR_RETURN(GbnfNode body, Alternatives(0));
      grammar_.rules[id] = std::move(body);
      defined_[id] = true;
      if (!cursor_.Done() && !AtRule()) return TextCursor::Fault(cursor_.at(), "what no rule may hold");
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
  // Blanks, line ends and comments.
  void SkipBlanks() {
    do {
      cursor_.TakeWhile(absl::ascii_isspace);
    } while (cursor_.Next("#") && !cursor_.TakeWhile([](char c) { return c != '\n'; }).empty());
  }
  void SkipSpaces() {
    cursor_.TakeWhile([](char c) { return c == ' ' || c == '\t'; });
  }
  // A name and "::=" come next. What stands between them is looked at once a name, so at most twice in all.
  bool AtRule() {
    const TextCursor begin = cursor_;
    const bool named = !cursor_.TakeWhile(InName).empty();
    SkipBlanks();
    const bool rule = named && cursor_.Next("::=");
    cursor_ = begin;
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
      return TextCursor::Fault(cursor_.at(), absl::StrCat("groups deeper than ", kMaxGbnfDepth, " levels"));
    GbnfNode all{.kind = Kind::kAlternatives};
    do {
      SkipBlanks();
      GbnfNode sequence;
      while (!cursor_.Done() && !cursor_.Next("|") && !cursor_.Next(")") && !AtRule()) {
        ALUDEL_RETURN_IF_ERROR(budget_->Spend(4));
        ALUDEL_ASSIGN_OR_RETURN(GbnfNode term, Term(depth));
        ALUDEL_ASSIGN_OR_RETURN(term, Quantified(std::move(term)));
        sequence.parts.push_back(std::move(term));
        SkipBlanks();
      }
      all.parts.push_back(sequence.parts.size() == 1 ? std::move(sequence.parts.front())
                                                     : std::move(sequence));
    } while (cursor_.Take("|"));
    if (all.parts.size() > 1) return all;
    return std::move(all.parts.front());
  }

  absl::StatusOr<GbnfNode> Term(int depth) {
    const size_t begin = cursor_.at();
    if (cursor_.Take("\"")) {
      GbnfNode literal{.kind = Kind::kText};
      ALUDEL_ASSIGN_OR_RETURN(literal.text, ReadGbnfLiteral(&cursor_, begin, budget_));
      return literal;
    }
    if (cursor_.Take("[")) {
      GbnfNode characters{.kind = Kind::kSet};
      ALUDEL_ASSIGN_OR_RETURN(characters.set, ReadGbnfClass(&cursor_, begin, budget_));
      return characters;
    }
    if (cursor_.Take(".")) return GbnfNode{.kind = Kind::kSet, .set = CodePointSet::All()};
    if (cursor_.Take("(")) {
      if (cursor_.Next("=")) return TextCursor::Fault(begin, "lookahead, which is not supported,");
      ALUDEL_ASSIGN_OR_RETURN(GbnfNode inside, Alternatives(depth + 1));
      if (!cursor_.Take(")")) return TextCursor::Fault(begin, "a '(' that is not closed");
      return inside;
    }
    const absl::string_view name = cursor_.TakeWhile(InName);
    if (name.empty()) return TextCursor::Fault(begin, "what no rule may hold");
    return GbnfNode{.kind = Kind::kRule, .rule = Number(name)};
  }

  absl::StatusOr<GbnfNode> Quantified(GbnfNode term) {
    for (int quantifiers = 0;; ++quantifiers) {
      SkipSpaces();
      const size_t begin = cursor_.at();
      int32_t min = 0, max = -1;
      if (cursor_.Take("*")) {
        min = 0;
      } else if (cursor_.Take("+")) {
        min = 1;
      } else if (cursor_.Take("?")) {
        max = 1;
      } else if (cursor_.Take("{")) {
        ALUDEL_RETURN_IF_ERROR(Counts(begin, &min, &max));
      } else {
        return term;
      }
      if (quantifiers == kMaxGbnfDepth)
        return TextCursor::Fault(begin, "too many quantifiers, one behind another,");
      GbnfNode repeat{.kind = Kind::kRepeat, .min = min, .max = max};
      repeat.parts.push_back(std::move(term));
      term = std::move(repeat);
    }
  }

  absl::Status Counts(size_t begin, int32_t* min, int32_t* max) {
    const auto number = [this] {
      SkipSpaces();
      const auto value = cursor_.TakeNumber(kMaxGbnfRepeat + 1);
      SkipSpaces();
      return value.value_or(-1);
    };
    *min = number();
    *max = *min;
    if (cursor_.Take(",")) *max = number();
    if (*min < 0 || !cursor_.Take("}"))
      return TextCursor::Fault(begin, "a '{' that is no number of repetitions");
    if (std::max(*min, *max) > kMaxGbnfRepeat) {
      return TextCursor::Fault(begin, absl::StrCat("more than ", kMaxGbnfRepeat, " repetitions"));
    }
    if (*max >= 0 && *min > *max)
      return TextCursor::Fault(begin, "a quantifier whose bounds are out of order");
    return absl::OkStatus();
  }

  TextCursor cursor_;
  StepBudget* const budget_;
  GbnfGrammar grammar_;
  std::vector<bool> defined_;
  absl::flat_hash_map<std::string, int32_t> ids_;
};

}  // namespace

absl::StatusOr<GbnfGrammar> ParseGbnf(absl::string_view text, StepBudget* budget) {
  return GbnfParser(text, budget).Parse();
}

}  // namespace aludel
