#include "runtime/text/constrain/regex/regex_tree.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "runtime/text/constrain/regex/regex_characters.h"
#include "runtime/text/constrain/text_cursor.h"

namespace aludel {
namespace {

using Kind = RegexTree::Kind;

// A parser of our own: RE2 and PCRE2 keep what they read to themselves, and neither speaks ECMA-262. What is needed
// here is the tree, to make automata of it that can be intersected and negated.
class RegexParser {
 public:
  RegexParser(absl::string_view pattern, StepBudget* budget) : cursor_(pattern), budget_(budget) {}

  absl::StatusOr<RegexTree> Parse() {
    ALUDEL_RETURN_IF_ERROR(cursor_.CheckUtf8());
    ALUDEL_ASSIGN_OR_RETURN(RegexTree tree, Alternatives(0));
    if (!cursor_.Done()) return TextCursor::Fault(cursor_.at(), "a ')' that closes nothing");
    return tree;
  }

 private:
  absl::StatusOr<RegexTree> Alternatives(int depth) {
    if (depth > kMaxRegexDepth) {
      return TextCursor::Fault(cursor_.at(), absl::StrCat("groups deeper than ", kMaxRegexDepth, " levels"));
    }
    RegexTree all{.kind = Kind::kAlternatives};
    do {
      RegexTree sequence;
      while (!cursor_.Done() && !cursor_.Next("|") && !cursor_.Next(")")) {
        ALUDEL_RETURN_IF_ERROR(budget_->Spend(4));
        ALUDEL_ASSIGN_OR_RETURN(RegexTree term, Term(depth));
        ALUDEL_ASSIGN_OR_RETURN(term, Quantified(std::move(term)));
        sequence.parts.push_back(std::move(term));
      }
      all.parts.push_back(std::move(sequence));
    } while (cursor_.Take("|"));
    if (all.parts.size() > 1) return all;
    return std::move(all.parts.front());
  }

  absl::StatusOr<RegexTree> Term(int depth) {
    const size_t begin = cursor_.at();
    if (cursor_.Take("^")) return RegexTree{.kind = Kind::kStart};
    if (cursor_.Take("$")) return RegexTree{.kind = Kind::kEnd};
    if (cursor_.Take(".")) return Characters(AllButLineEnds());
    if (cursor_.Take("(")) return Group(begin, depth);
    if (cursor_.Take("[")) {
      ALUDEL_ASSIGN_OR_RETURN(CodePointSet set, ReadClass(&cursor_, begin, budget_));
      return Characters(std::move(set));
    }
    if (cursor_.Next("\\")) {
      CodePointSet set;
      ALUDEL_ASSIGN_OR_RETURN(const auto one, ReadEscape(&cursor_, /*in_class=*/false, budget_, &set));
      return Characters(one ? CodePointSet{{*one, *one}} : std::move(set));
    }
    if (AtQuantifier()) return TextCursor::Fault(begin, "a quantifier with nothing in front of it");
    const uint32_t code_point = cursor_.TakeCodePoint();
    return Characters(CodePointSet{{code_point, code_point}});
  }

  static RegexTree Characters(CodePointSet set) { return {.kind = Kind::kSet, .set = std::move(set)}; }

  absl::StatusOr<RegexTree> Group(size_t begin, int depth) {
    if (cursor_.Take("?")) {
      if (cursor_.Next("=") || cursor_.Next("!") || cursor_.Next("<=") || cursor_.Next("<!")) {
        return TextCursor::Fault(begin, "lookaround, which is not supported,");
      }
      if (cursor_.Take("<") || cursor_.Take("P<")) {
        const auto in_name = [](char c) { return absl::ascii_isalnum(c) || c == '_'; };
        if (cursor_.TakeWhile(in_name).empty() || !cursor_.Take(">")) {
          return TextCursor::Fault(begin, "a group whose name does not end");
        }
      } else if (!cursor_.Take(":")) {
        return TextCursor::Fault(begin, "flags or a group that are not supported");
      }
    }
    ALUDEL_ASSIGN_OR_RETURN(RegexTree inside, Alternatives(depth + 1));
    if (!cursor_.Take(")")) return TextCursor::Fault(begin, "a '(' that is not closed");
    return inside;
  }

  bool AtQuantifier() const {
    TextCursor ahead = cursor_;
    int32_t min = 0, max = 0;
    return cursor_.Next("*") || cursor_.Next("+") || cursor_.Next("?") || TakeCounts(&ahead, &min, &max);
  }

  // {m}, {m,} and {m,n}. A brace that is none of them stands for itself: false, and nothing is taken.
  static bool TakeCounts(TextCursor* cursor, int32_t* min, int32_t* max) {
    TextCursor ahead = *cursor;
    if (!ahead.Take("{")) return false;
    const auto least = ahead.TakeNumber(kMaxRegexRepeat + 1);
    if (!least) return false;
    const auto most = ahead.Take(",") ? ahead.TakeNumber(kMaxRegexRepeat + 1) : least;
    if (!ahead.Take("}")) return false;
    *min = *least;
    *max = most.value_or(-1);
    *cursor = ahead;
    return true;
  }

  absl::StatusOr<RegexTree> Quantified(RegexTree term) {
    const size_t begin = cursor_.at();
    int32_t min = 0, max = -1;
    if (cursor_.Take("*")) {
      min = 0;
    } else if (cursor_.Take("+")) {
      min = 1;
    } else if (cursor_.Take("?")) {
      max = 1;
    } else if (!TakeCounts(&cursor_, &min, &max)) {
      return term;
    }
    if (std::max(min, max) > kMaxRegexRepeat) {
      return TextCursor::Fault(begin, absl::StrCat("more than ", kMaxRegexRepeat, " repetitions"));
    }
    if (max >= 0 && min > max) {
      return TextCursor::Fault(begin, "a quantifier whose bounds are out of order");
    }
    cursor_.Take("?");  // lazy: the same language
    if (AtQuantifier()) return TextCursor::Fault(cursor_.at(), "a quantifier behind a quantifier");
    RegexTree repeat{.kind = Kind::kRepeat, .min = min, .max = max};
    repeat.parts.push_back(std::move(term));
    return repeat;
  }

  TextCursor cursor_;
  StepBudget* const budget_;
};

}  // namespace

absl::StatusOr<RegexTree> ParseRegex(absl::string_view pattern, StepBudget* budget) {
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", pattern.size(), " bytes, want at most ", kMaxPatternBytes));
  }
  return RegexParser(pattern, budget).Parse();
}

}  // namespace aludel
