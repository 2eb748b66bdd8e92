#include "runtime/text/constrain/gbnf/gbnf.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/text/constrain/language.h"
#include "tests/testing/cpu_clock.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

void Expect(const std::string& grammar, const std::vector<std::string>& in,
            const std::vector<std::string>& out) {
  Language language(TextConstraint{.grammar = grammar});
  for (const std::string& text : in) EXPECT_TRUE(language.Has(text)) << grammar << " refuses " << text;
  for (const std::string& text : out) EXPECT_FALSE(language.Has(text)) << grammar << " accepts " << text;
}

std::string Refusal(const std::string& grammar) {
  return std::string(CompileConstraint({.grammar = grammar}).status().message());
}

TEST(Gbnf, ReadsRulesOverSeveralLines) {
  Expect(
      "# moves\nroot ::= \"1. \" move \" \" move \"\\n\" # one\n  ([0-9]+ \". \" move)*\nmove ::= (pawn\n | "
      "\"O-O\")\n"
      "pawn ::= [a-h] [1-8] \"+\"?\n",
      {"1. e4 e5\n", "1. e4+ O-O\n12. a1"}, {"1. e4 e9\n", "1. e4", "1. e4 e5"});
  Expect("root::=\"yes\"|\"no\"", {"yes", "no"}, {"", "ye", "yesno"});
  Expect("root ::= \"\" | \"a\"", {"", "a"}, {"aa"});
}

TEST(Gbnf, ReadsLiteralsAndClasses) {
  Expect(R"(root ::= "\"\\\t\x41\u00e9" [^a-z\]\\] . [-x])",
         {"\"\\\tA\xc3\xa9"
          "B\xf0\x9f\x98\x80-",
          "\"\\\tA\xc3\xa9"
          "0\nx"},
         {"\"\\\tA\xc3\xa9"
          "a0-",
          "\"\\\tA\xc3\xa9"
          "]0x"});
}

TEST(Gbnf, Repeats) {
  Expect("root ::= \"a\"{2} \"b\"{1,} \"c\"{0,2} \"d\"+", {"aabd", "aabbccdd"}, {"abd", "aabcccd", "aab"});
  Expect("root ::= (\"a\"* \"b\"?)* \"c\"", {"c", "aabbac"}, {"", "ca"});
  Expect("root ::= ws \"x\" ws\nws ::= [ \\n]*", {"x", "  x\n"}, {"y"});
}

TEST(Gbnf, NestsWithoutBound) {
  const std::string grammar =
      "root ::= value\nvalue ::= \"(\" list? \")\" | [0-9]+\nlist ::= value (\",\" value)*\n";
  const std::string deep = std::string(200, '(') + std::string(200, ')');
  Expect(grammar, {"1", "()", "(1,(2,3))", deep}, {"(", "(1,)", ")", deep + ")"});
}

TEST(Gbnf, SaysWhatItDoesNotServe) {
  EXPECT_EQ(Refusal("root ::= sum\nsum ::= sum \"+\" [0-9] | [0-9]"),
            "the grammar is left-recursive: the rule 'sum' may begin with itself, which is not supported");
  EXPECT_THAT(Refusal("root ::= ws root \"x\" | \"y\"\nws ::= \" \"*"),
              HasSubstr("left-recursive: the rule 'root'"));
  EXPECT_THAT(Refusal("root ::= (b? root)"), HasSubstr("uses the rule 'b', which is not defined"));
  EXPECT_THAT(Refusal("start: \"a\" | \"b\""), HasSubstr("Lark and other notations are not"));
  EXPECT_THAT(Refusal("a ::= \"x\""), HasSubstr("has no rule 'root'"));
  EXPECT_THAT(Refusal("root ::= \"x\"\nroot ::= \"y\""), HasSubstr("a second rule 'root' at byte 13"));
  EXPECT_THAT(Refusal("root ::= \"x"), HasSubstr("a literal that does not end at byte 9"));
  EXPECT_THAT(Refusal("root ::= [x"), HasSubstr("a '[' that is not closed"));
  EXPECT_THAT(Refusal("root ::= (\"x\""), HasSubstr("a '(' that is not closed"));
  EXPECT_THAT(Refusal("root ::= \"x\" )"), HasSubstr("what no rule may hold at byte 13"));
  EXPECT_THAT(Refusal("root ::= (=\"x\")"), HasSubstr("lookahead"));
  EXPECT_THAT(Refusal("root ::= \"a\"{2,1}"), HasSubstr("out of order"));
  EXPECT_THAT(Refusal("root ::= \"\\q\""), HasSubstr("an escape that is unknown"));
  EXPECT_THAT(Refusal("root ::= \"a\" root"), HasSubstr("is never complete"));
}

TEST(Gbnf, HostileSizesEndWithinTheBudget) {
  std::string chain = "root ::= r0\n", wide = "root ::= \"a\"";
  for (int i = 0; i < 3000; ++i) absl::StrAppend(&chain, "r", i, " ::= r", i + 1, "?\n");
  for (int i = 0; i < 20000; ++i) absl::StrAppend(&wide, " | \"", i, "\"");
  const std::string cases[] = {
      chain + "r3000 ::= \"x\"",
      wide,
      "root ::= ((\"a\"{65536}){65536}){65536}",
      "root ::= " + std::string(90, '(') + "\"a\"*" + std::string(90, ')') + "{60000}",
      "root ::= \"a\"" + std::string(300, '*'),
      "root ::= " + std::string(5000, '(')};
  for (const std::string& grammar : cases) {
    const double start = ThreadCpuSeconds();
    CompileConstraint({.grammar = grammar}).status().IgnoreError();
    EXPECT_LT(ThreadCpuSeconds() - start, 2) << grammar.substr(0, 60);
  }
  Expect(wide, {"a", "19999"}, {"20000"});
}

TEST(Regex, IsTheWholeText) {
  Language language(TextConstraint{.regex = R"(\d{3}-[a-z]+|caf\u00e9)"});
  for (const char* text : {"123-ab", "caf\xc3\xa9"}) EXPECT_TRUE(language.Has(text)) << text;
  for (const char* text : {"123-", "x123-ab", "\"123-ab\"", ""}) EXPECT_FALSE(language.Has(text)) << text;
  EXPECT_EQ(std::string(CompileConstraint({.regex = "a(?!b)"}).status().message()),
            "the regex has lookaround, which is not supported, at byte 1");
  EXPECT_EQ(std::string(CompileConstraint({.regex = "a^b"}).status().message()), "the regex matches no text");
  EXPECT_FALSE(CompileConstraint({.regex = "a", .grammar = "root ::= \"a\""}).ok());
}

}  // namespace
}  // namespace aludel
