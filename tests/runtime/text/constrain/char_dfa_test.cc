#include "runtime/text/constrain/regex/char_dfa.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/text/constrain/regex/regex_tree.h"
#include "runtime/text/constrain/regex/string_formats.h"
#include "tests/testing/cpu_clock.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;
using Match = CharDfa::Match;

absl::StatusOr<CharDfa> Make(absl::string_view pattern, Match match = Match::kAnywhere) {
  StepBudget budget(kMaxCompileSteps);
  const absl::StatusOr<RegexTree> tree = ParseRegex(pattern, &budget);
  if (!tree.ok()) return tree.status();
  return CharDfa::Make(*tree, match, &budget);
}

std::string Refusal(absl::string_view pattern) { return std::string(Make(pattern).status().message()); }

void Expect(absl::string_view pattern, const std::vector<std::string>& in,
            const std::vector<std::string>& out, Match match = Match::kAnywhere) {
  const absl::StatusOr<CharDfa> dfa = Make(pattern, match);
  ASSERT_TRUE(dfa.ok()) << pattern << ": " << dfa.status();
  for (const std::string& text : in) EXPECT_TRUE(dfa->Has(text)) << pattern << " refuses " << text;
  for (const std::string& text : out) EXPECT_FALSE(dfa->Has(text)) << pattern << " accepts " << text;
}

TEST(CharDfa, MatchesAnywhereUnlessAnchored) {
  Expect("b", {"b", "abc"}, {"", "a"});
  Expect("^b", {"b", "bc"}, {"ab"});
  Expect("b$", {"b", "ab"}, {"bc", "b\n"});
  Expect("^b$", {"b"}, {"ab", "ba", ""});
  Expect("^a|b$", {"ax", "xb"}, {"xa", "bx"});
  Expect("(^a)*b", {"b", "ab", "xb"}, {"a"});
  Expect("a$|^$", {"", "a"}, {"ab"});
  Expect("$^", {""}, {"a"});
  Expect("a^b", {}, {"ab", "b"});
  Expect("b", {"b"}, {"abc", ""}, Match::kWhole);
  Expect("a|ab", {"a", "ab"}, {"b"}, Match::kWhole);
}

TEST(CharDfa, ReadsClassesAndEscapes) {
  Expect(R"(^\d\w\s$)", {"1_ ", "0a\xc2\xa0"},
         {"a1 ", "1- ",
          "\xd9\xa1"
          "a "});
  Expect(R"(^[\d\-x-z]+$)", {"1-xyz"}, {"w", ""});
  Expect(R"(^[\w-.]$)", {"-", ".", "a"}, {","});
  Expect(R"(^[^a\n]$)", {"b", "\r"}, {"a", "\n"});
  Expect("^.$", {"a", "\xf0\x9f\x98\x80"}, {"\n", "\r", "\xe2\x80\xa8"});
  Expect(R"(^\x41\u00e9\u{1f600}\ud83d\ude00\cA\0\/\{$)",
         {std::string("A\xc3\xa9\xf0\x9f\x98\x80\xf0\x9f\x98\x80\x01\0/{", 15)}, {"A"});
  Expect(R"(^\p{Lu}\P{L}\p{Script=Greek}$)", {"A1\xce\xb1"}, {"a1\xce\xb1", "Ab\xce\xb1"});
  Expect("^[^]$", {"\n"}, {""});
  Expect("^a{,2}]}$", {"a{,2}]}"}, {"a"});
}

TEST(CharDfa, Repeats) {
  Expect("^a{2,3}$", {"aa", "aaa"}, {"a", "aaaa"});
  Expect("^(ab){2}c{0,1}d{2,}$", {"ababcdd", "ababddd"}, {"abcdd", "ababd"});
  Expect("^(a*)*(b?)+$", {"", "aab"}, {"ba"});
  Expect("^a+?b*?c??$", {"abc", "a"}, {"bc"});
  Expect("^(?:x|(?<n>y))+$", {"xyx"}, {""});
}

TEST(CharDfa, SaysWhatItDoesNotServeAndWhere) {
  EXPECT_EQ(Refusal("ab(?=c)"), "has lookaround, which is not supported, at byte 2");
  EXPECT_THAT(Refusal("(?<!a)b"), HasSubstr("lookaround"));
  EXPECT_THAT(Refusal(R"((a)\1)"), HasSubstr("a backreference, which is not supported, at byte 3"));
  EXPECT_THAT(Refusal(R"(\bword)"), HasSubstr("a word boundary"));
  EXPECT_THAT(Refusal("(?i)a"), HasSubstr("flags"));
  EXPECT_THAT(Refusal("a**"), HasSubstr("a quantifier behind a quantifier at byte 2"));
  EXPECT_THAT(Refusal("*a"), HasSubstr("nothing in front of it at byte 0"));
  EXPECT_THAT(Refusal("(a"), HasSubstr("a '(' that is not closed at byte 0"));
  EXPECT_THAT(Refusal("a)"), HasSubstr("a ')' that closes nothing"));
  EXPECT_THAT(Refusal("[a"), HasSubstr("a '[' that is not closed"));
  EXPECT_THAT(Refusal("[z-a]"), HasSubstr("out of order at byte 1"));
  EXPECT_THAT(Refusal("a{3,2}"), HasSubstr("out of order"));
  EXPECT_THAT(Refusal("a{70000}"), HasSubstr("more than 65536 repetitions"));
  EXPECT_THAT(Refusal(R"(\ud800)"), HasSubstr("no character"));
  EXPECT_THAT(Refusal(R"(\p{Nothing})"), HasSubstr("a property that Unicode does not know"));
  EXPECT_THAT(Refusal("\xff"), HasSubstr("no UTF-8 at byte 0"));
  EXPECT_THAT(Refusal(std::string(200, '(') + std::string(200, ')')), HasSubstr("deeper than 100 levels"));
  EXPECT_THAT(Refusal(std::string(kMaxPatternBytes + 1, 'a')), HasSubstr("want at most 16384"));
}

TEST(CharDfa, HostileSizesEndWithinTheBudget) {
  std::string alternatives = "^(", alphabet;
  for (int i = 0; i < 3000; ++i)
    absl::StrAppend(&alternatives, absl::string_view("abcdefgh").substr(i % 8, 1), "*|");
  for (int i = 0; i < 1000; ++i) {
    absl::StrAppend(&alphabet, "[", absl::string_view("abcdefgh").substr(i % 8, 1), "-\\u{1f600}]?");
  }
  std::string unicode;
  for (int i = 0; i < 1000; ++i) unicode += "\\p{L}?\\p{N}";
  const std::string cases[] = {"(a{1000}){1000}",
                               "((a?){1000}){1000}",
                               "((){65536}){65536}",
                               "[ab]*a[ab]{30}",
                               "(.|a|b|c){1,9999}x",
                               "(a|aa)+(b|bb){1,500}(\\w+\\s?){1,300}",
                               alternatives + "z)",
                               alphabet,
                               unicode,
                               ".{0,1000}(foo|bar).{0,1000}"};
  for (const std::string& pattern : cases) {
    const double start = ThreadCpuSeconds();
    const absl::Status status = Make(pattern).status();
    EXPECT_LT(ThreadCpuSeconds() - start, 2) << pattern.substr(0, 60);
    if (!status.ok()) {
      EXPECT_THAT(std::string(status.message()),
                  ::testing::AnyOf(HasSubstr("steps to compile"), HasSubstr("needs more than")));
    }
  }
  EXPECT_FALSE(Make("(a{1000}){1000}").ok());
  EXPECT_TRUE(Make("^.{0,2000}$").ok());
}

TEST(CharDfa, IntersectsAndNegates) {
  StepBudget budget(kMaxCompileSteps);
  const CharDfa words = *Make("^[a-z]+$"), start = *Make("^a"), length = *CharDfa::MakeLengths(2, 3, &budget);
  const CharDfa listed = *CharDfa::MakeList({"ab", "abc", "\xc3\xa9"}, &budget);
  const auto both = CharDfa::Intersect(
      std::vector<CharDfa::Term>{{&words, false}, {&start, false}, {&length, false}, {&listed, true}},
      &budget);
  ASSERT_TRUE(both.ok());
  for (const char* text : {"aa", "axy"}) EXPECT_TRUE(both->Has(text)) << text;
  for (const char* text : {"a", "ab", "abc", "xa", "aaaa", "a1"}) EXPECT_FALSE(both->Has(text)) << text;
  EXPECT_TRUE(
      CharDfa::Intersect(std::vector<CharDfa::Term>{{&start, false}, {&start, true}}, &budget)->empty());
  EXPECT_TRUE(listed.Has("\xc3\xa9"));
  EXPECT_TRUE(CharDfa::Intersect(std::vector<CharDfa::Term>{{&words, true}}, &budget)->Has(""));
}

TEST(StringFormats, AreRegularExpressions) {
  for (const char* name : {"date", "time", "date-time", "email", "hostname", "uuid", "uri", "ipv4", "ipv6"}) {
    const absl::string_view pattern = FormatPattern(name);
    ASSERT_FALSE(pattern.empty()) << name;
    EXPECT_TRUE(Make(pattern).ok()) << name << ": " << Make(pattern).status();
  }
  EXPECT_EQ(FormatPattern("int32"), "");
}

}  // namespace
}  // namespace aludel
