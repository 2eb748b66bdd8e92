#include "runtime/text/constrain/regex/regex_tree.h"

#include <unicode/uset.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "runtime/text/tokenizer/utf8.h"

namespace aludel {
namespace {

using Kind = RegexTree::Kind;

// A parser of our own: RE2 and PCRE2 keep what they read to themselves, and neither speaks ECMA-262. What is needed
// here is the tree, to make automata of it that can be intersected and negated.
class RegexParser {
 public:
  RegexParser(absl::string_view pattern, StepBudget* budget) : pattern_(pattern), budget_(budget) {}

  absl::StatusOr<RegexTree> Parse() {
    if (const size_t fault = FirstInvalidUtf8(pattern_); fault != pattern_.size()) {
      return Fault(fault, "no UTF-8");
    }
    ALUDEL_ASSIGN_OR_RETURN(RegexTree tree, Alternatives(0));
    if (at_ < pattern_.size()) return Fault(at_, "a ')' that closes nothing");
    return tree;
  }

 private:
  static absl::Status Fault(size_t byte, absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("has ", what, " at byte ", byte));
  }
  bool Done() const { return at_ == pattern_.size(); }
  bool Next(absl::string_view text) const { return pattern_.substr(at_, text.size()) == text; }
  bool Take(absl::string_view text) {
    if (!Next(text)) return false;
    at_ += text.size();
    return true;
  }

  absl::StatusOr<RegexTree> Alternatives(int depth) {
    if (depth > kMaxRegexDepth)
      return Fault(at_, absl::StrCat("groups deeper than ", kMaxRegexDepth, " levels"));
    RegexTree all{.kind = Kind::kAlternatives};
    do {
      RegexTree sequence;
      while (!Done() && !Next("|") && !Next(")")) {
        ALUDEL_RETURN_IF_ERROR(budget_->Spend(4));
        ALUDEL_ASSIGN_OR_RETURN(RegexTree term, Term(depth));
        ALUDEL_ASSIGN_OR_RETURN(term, Quantified(std::move(term)));
        sequence.parts.push_back(std::move(term));
      }
      all.parts.push_back(std::move(sequence));
    } while (Take("|"));
    if (all.parts.size() > 1) return all;
    return std::move(all.parts.front());
  }

  absl::StatusOr<RegexTree> Term(int depth) {
    const size_t begin = at_;
    if (Take("^")) return RegexTree{.kind = Kind::kStart};
    if (Take("$")) return RegexTree{.kind = Kind::kEnd};
    if (Take(".")) return Characters(AllButLineEnds());
    if (Take("(")) return Group(begin, depth);
    if (Take("[")) return Class(begin);
    if (Next("\\")) {
      CodePointSet set;
      ALUDEL_ASSIGN_OR_RETURN(const auto one, Escape(/*in_class=*/false, &set));
      return Characters(one ? CodePointSet{{*one, *one}} : std::move(set));
    }
    if (Next("*") || Next("+") || Next("?") || Counts(nullptr, nullptr)) {
      return Fault(begin, "a quantifier with nothing in front of it");
    }
    const uint32_t code_point = NextCodePoint(pattern_, &at_);
    return Characters(CodePointSet{{code_point, code_point}});
  }

  static RegexTree Characters(CodePointSet set) { return {.kind = Kind::kSet, .set = std::move(set)}; }

  absl::StatusOr<RegexTree> Group(size_t begin, int depth) {
    if (Take("?")) {
      if (Next("=") || Next("!") || Next("<=") || Next("<!")) {
        return Fault(begin, "lookaround, which is not supported,");
      }
      if (Take("<") || Take("P<")) {
        const size_t name = at_;
        while (!Done() && (absl::ascii_isalnum(pattern_[at_]) || pattern_[at_] == '_')) ++at_;
        if (at_ == name || !Take(">")) return Fault(begin, "a group whose name does not end");
      } else if (!Take(":")) {
        return Fault(begin, "flags or a group that are not supported");
      }
    }
    ALUDEL_ASSIGN_OR_RETURN(RegexTree inside, Alternatives(depth + 1));
    if (!Take(")")) return Fault(begin, "a '(' that is not closed");
    return inside;
  }

  // {m}, {m,} and {m,n}; nothing moves where `min` is null. A brace that is none of them stands for itself.
  bool Counts(int64_t* min, int64_t* max) {
    if (!Next("{")) return false;
    size_t at = at_ + 1;
    const auto number = [this, &at]() -> std::optional<int64_t> {
      int64_t value = 0;
      const size_t begin = at;
      for (; at < pattern_.size() && absl::ascii_isdigit(pattern_[at]); ++at) {
        value = std::min<int64_t>(value * 10 + (pattern_[at] - '0'), kMaxRegexRepeat + 1);
      }
      return at == begin ? std::nullopt : std::optional(value);
    };
    const auto least = number();
    if (!least) return false;
    std::optional<int64_t> most = least;
    if (at < pattern_.size() && pattern_[at] == ',') {
      ++at;
      most = number();
    }
    if (at >= pattern_.size() || pattern_[at] != '}') return false;
    if (min == nullptr) return true;
    *min = *least;
    *max = most.value_or(-1);
    at_ = at + 1;
    return true;
  }

  absl::StatusOr<RegexTree> Quantified(RegexTree term) {
    const size_t begin = at_;
    int64_t min = 0, max = -1;
    if (Take("*")) {
      min = 0;
    } else if (Take("+")) {
      min = 1;
    } else if (Take("?")) {
      max = 1;
    } else if (!Counts(&min, &max)) {
      return term;
    }
    if (std::max(min, max) > kMaxRegexRepeat) {
      return Fault(begin, absl::StrCat("more than ", kMaxRegexRepeat, " repetitions"));
    }
    if (max >= 0 && min > max) return Fault(begin, "a quantifier whose bounds are out of order");
    Take("?");  // lazy: the same language
    if (Next("*") || Next("+") || Next("?") || Counts(nullptr, nullptr)) {
      return Fault(at_, "a quantifier behind a quantifier");
    }
    RegexTree repeat{
        .kind = Kind::kRepeat, .min = static_cast<int32_t>(min), .max = static_cast<int32_t>(max)};
    repeat.parts.push_back(std::move(term));
    return repeat;
  }

  absl::StatusOr<RegexTree> Class(size_t begin) {
    const bool negated = Take("^");
    CodePointSet set;
    while (!Take("]")) {
      if (Done()) return Fault(begin, "a '[' that is not closed");
      const size_t item = at_;
      ALUDEL_ASSIGN_OR_RETURN(const auto first, ClassItem(&set));
      if (!Next("-") || pattern_.substr(at_, 2) == "-]") {
        if (first) set.Add(*first, *first);
        continue;
      }
      ++at_;
      if (Done()) return Fault(begin, "a '[' that is not closed");
      ALUDEL_ASSIGN_OR_RETURN(const auto last, ClassItem(&set));
      // Beside a class like \w the hyphen stands for itself.
      if (first && last && *first > *last) return Fault(item, "a range that is out of order");
      if (first && last) {
        set.Add(*first, *last);
        continue;
      }
      set.Add('-', '-');
      if (first) set.Add(*first, *first);
      if (last) set.Add(*last, *last);
    }
    return Characters(negated ? set.Negated() : std::move(set));
  }

  // One character, or nothing where several were added to the set.
  absl::StatusOr<std::optional<uint32_t>> ClassItem(CodePointSet* set) {
    ALUDEL_RETURN_IF_ERROR(budget_->Spend(4 + static_cast<int64_t>(set->ranges().size() / 8)));
    if (!Next("\\")) return NextCodePoint(pattern_, &at_);
    CodePointSet more;
    ALUDEL_ASSIGN_OR_RETURN(const auto one, Escape(/*in_class=*/true, &more));
    if (!one) {
      ALUDEL_RETURN_IF_ERROR(budget_->Spend(static_cast<int64_t>(more.ranges().size())));
      set->Add(more);
    }
    return one;
  }

  std::optional<uint32_t> Hex(size_t digits) {
    const absl::string_view text = pattern_.substr(at_, digits);
    if (text.size() < digits || !std::all_of(text.begin(), text.end(), absl::ascii_isxdigit))
      return std::nullopt;
    at_ += digits;
    return static_cast<uint32_t>(std::stoul(std::string(text), nullptr, 16));
  }

  // Behind "\u". Two halves of a surrogate pair are one character, as JavaScript writes it.
  absl::StatusOr<std::optional<uint32_t>> Unicode(size_t begin) {
    std::optional<uint32_t> code;
    if (Take("{")) {
      size_t end = at_;
      while (end < pattern_.size() && absl::ascii_isxdigit(pattern_[end])) ++end;
      if (end > at_ && end - at_ <= 6) code = Hex(end - at_);
      if (!Take("}")) code.reset();
    } else {
      code = Hex(4);
      if (code && *code >= 0xd800 && *code < 0xdc00 && Take("\\u")) {
        const auto low = Hex(4);
        if (low && *low >= 0xdc00 && *low < 0xe000) {
          code = 0x10000 + ((*code - 0xd800) << 10) + (*low - 0xdc00);
        }
      }
    }
    if (!code || *code > kMaxCodePoint || (*code >= 0xd800 && *code < 0xe000)) {
      return Fault(begin, "an escape that is no character");
    }
    return code;
  }

  absl::StatusOr<std::optional<uint32_t>> Escape(bool in_class, CodePointSet* set) {
    const size_t begin = at_++;
    if (Done()) return Fault(begin, "a '\\' with nothing behind it");
    const uint32_t c = NextCodePoint(pattern_, &at_);
    const auto several = [set](CodePointSet characters) {
      *set = std::move(characters);
      return std::nullopt;
    };
    switch (c) {
      case 'd':
        return several(Digits());
      case 'D':
        return several(Digits().Negated());
      case 'w':
        return several(WordCharacters());
      case 'W':
        return several(WordCharacters().Negated());
      case 's':
        return several(WhiteSpace());
      case 'S':
        return several(WhiteSpace().Negated());
      case 't':
        return '\t';
      case 'n':
        return '\n';
      case 'v':
        return '\v';
      case 'f':
        return '\f';
      case 'r':
        return '\r';
      case 'p':
      case 'P':
        return Property(begin, c == 'P', set);
      case 'u':
        return Unicode(begin);
      case 'b':
      case 'B':
        if (in_class && c == 'b') return '\b';
        return Fault(begin, "a word boundary, which is not supported,");
      default:
        break;
    }
    if (c == 'x') {
      if (const auto code = Hex(2)) return code;
      return Fault(begin, "an escape that is no character");
    }
    if (c == 'c' && !Done() && absl::ascii_isalpha(pattern_[at_])) {
      return static_cast<uint32_t>(pattern_[at_++] & 0x1f);
    }
    if (c == '0' && (Done() || !absl::ascii_isdigit(pattern_[at_]))) return '\0';
    if ((c >= '0' && c <= '9') || c == 'k') return Fault(begin, "a backreference, which is not supported,");
    if (c < 0x80 && absl::ascii_isalpha(static_cast<char>(c))) {
      return Fault(
          begin, absl::StrCat("the escape \\", std::string(1, static_cast<char>(c)), ", which is unknown,"));
    }
    return c;
  }

  // \p{Lu}, \p{Script=Greek}
  absl::StatusOr<std::optional<uint32_t>> Property(size_t begin, bool negated, CodePointSet* set) {
    const size_t end = pattern_.find('}', at_);
    if (!Take("{") || end == absl::string_view::npos) return Fault(begin, "a property without a name");
    const absl::string_view name = pattern_.substr(at_, end - at_);
    at_ = end + 1;
    const auto belongs = [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '='; };
    if (name.empty() || name.size() > 64 || !std::all_of(name.begin(), name.end(), belongs)) {
      return Fault(begin, "a property without a name");
    }
    const std::string query = absl::StrCat("[:", std::string(name), ":]");
    std::u16string wide(query.begin(), query.end());
    UErrorCode status = U_ZERO_ERROR;
    USet* const found = uset_openPattern(wide.data(), static_cast<int32_t>(wide.size()), &status);
    if (U_FAILURE(status)) {
      uset_close(found);
      return Fault(begin, "a property that Unicode does not know");
    }
    for (int32_t i = 0; i < uset_getItemCount(found); ++i) {
      UChar32 first = 0, last = 0;
      UErrorCode ignored = U_ZERO_ERROR;
      if (uset_getItem(found, i, &first, &last, nullptr, 0, &ignored) == 0) set->Add(first, last);
    }
    uset_close(found);
    ALUDEL_RETURN_IF_ERROR(budget_->Spend(10000));  // ICU looks at every character
    if (negated) *set = set->Negated();
    return std::nullopt;
  }

  const absl::string_view pattern_;
  StepBudget* const budget_;
  size_t at_ = 0;
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
