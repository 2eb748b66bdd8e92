#include "runtime/text/tokenizer/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Words(absl::string_view pattern, absl::string_view text) {
  auto regex = Regex::Compile(pattern, "test");
  EXPECT_TRUE(regex.ok()) << regex.status();
  if (!regex.ok()) return {};
  std::vector<std::string> words;
  const absl::Status found = regex->ForEach(
      text, [&](TextRange match) { words.emplace_back(text.substr(match.begin, match.size())); });
  EXPECT_TRUE(found.ok()) << found;
  return words;
}

TEST(Regex, WhiteSpaceIsUnicodes) {
  // U+0085 and U+3000 are white space, U+180E and U+200B are not.
  EXPECT_THAT(Words("\\s", "\xc2\x85\xe3\x80\x80\xe1\xa0\x8e\xe2\x80\x8b"),
              ElementsAre("\xc2\x85", "\xe3\x80\x80"));
  EXPECT_THAT(Words("[^\\s]+", "a\xe1\xa0\x8e b"), ElementsAre("a\xe1\xa0\x8e", "b"));
}

TEST(Regex, WordCharactersIncludeMarks) {
  EXPECT_THAT(Words("\\w+", "e\xcc\x81t\xc3\xa9_1-"), ElementsAre("e\xcc\x81t\xc3\xa9_1"));
}

TEST(Regex, WordCharactersIncludeTheFractionsOfLatin1Alone) {
  // U+00BD is one, U+2155 (a fifth) and U+2460 (a circled one) are none.
  EXPECT_THAT(Words("\\w+", "a\xc2\xbd-\xe2\x85\x95-\xe2\x91\xa0"), ElementsAre("a\xc2\xbd"));
  EXPECT_THAT(Words("\\W+", "a\xc2\xbd-\xe2\x85\x95"), ElementsAre("-\xe2\x85\x95"));
  // In a class they are not, as Oniguruma has it.
  EXPECT_THAT(Words("[\\w]+", "a\xc2\xbd-"), ElementsAre("a"));
  EXPECT_THAT(Words("[^\\w]+", "a\xc2\xbd-"), ElementsAre("\xc2\xbd-"));
}

TEST(Regex, MatchesEmptyStringsOncePerPlace) { EXPECT_THAT(Words("x*", "axb"), ElementsAre("", "x", "")); }

TEST(Regex, ScriptNamesMeanTheScriptAlone) {
  // U+3001 is used with Han (Script_Extensions), but its Script is Common.
  EXPECT_THAT(Words("\\p{Han}+", "\xe4\xbd\xa0\xe3\x80\x81\xe5\xa5\xbd"),
              ElementsAre("\xe4\xbd\xa0", "\xe5\xa5\xbd"));
}

TEST(Regex, VerticalTabAndCodePointsKeepTheirMeaning) {
  EXPECT_THAT(Words("\\v", "\n\x0b"), ElementsAre("\x0b"));
  EXPECT_THAT(Words("[\\u0041-\\u0043]+", "xABCD"), ElementsAre("ABC"));
}

TEST(Regex, RefusesWhatTheEnginesReadDifferently) {
  for (const char* pattern : {"\\h", "[a&&b]", "[a[b]]", "a{1,2}+", "(?m)a", "\\b", "\\1", "[\\W]", "\\p{L",
                              "[]a]", "a{,3}", "[a", "(?<name>a)", "\\"}) {
    EXPECT_THAT(std::string(Regex::Compile(pattern, "test").status().message()), HasSubstr("not supported"))
        << pattern;
  }
  EXPECT_FALSE(Regex::Compile("", "test").ok());
  EXPECT_FALSE(Regex::Compile("(", "test").ok());
  EXPECT_FALSE(Regex::Compile("\xff", "test").ok());
}

}  // namespace
}  // namespace aludel
