#include "runtime/text/constrain/regex/regex_characters.h"

#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

struct Escape {
  std::optional<uint32_t> one;
  CodePointSet set;
  std::string rest;
  std::string fault;
};

Escape Read(absl::string_view text, bool in_class = false) {
  TextCursor cursor(text);
  StepBudget budget(kMaxCompileSteps);
  Escape read;
  const auto one = ReadEscape(&cursor, in_class, &budget, &read.set);
  if (one.ok()) {
    read.one = *one;
    read.rest = std::string(cursor.rest());
  } else {
    read.fault = std::string(one.status().message());
  }
  return read;
}

TEST(RegexCharacters, ReadsEscapesOfOneCharacter) {
  EXPECT_EQ(Read("\\tx").one, '\t');
  EXPECT_EQ(Read("\\tx").rest, "x");
  EXPECT_EQ(Read("\\x41").one, 0x41u);
  EXPECT_EQ(Read("\\u00e9").one, 0xe9u);
  EXPECT_EQ(Read("\\ud83d\\ude00").one, 0x1f600u);
  EXPECT_EQ(Read("\\u{1F600}!").one, 0x1f600u);
  EXPECT_EQ(Read("\\u{1F600}!").rest, "!");
  EXPECT_EQ(Read("\\cJ").one, '\n');
  EXPECT_EQ(Read("\\0").one, 0u);
  EXPECT_EQ(Read("\\.").one, '.');
  EXPECT_EQ(Read("\\b", /*in_class=*/true).one, '\b');
}

TEST(RegexCharacters, ReadsEscapesOfSeveral) {
  EXPECT_EQ(Read("\\d").one, std::nullopt);
  EXPECT_EQ(Read("\\d").set, Digits());
  EXPECT_EQ(Read("\\S").set, WhiteSpace().Negated());
  EXPECT_TRUE(Read("\\p{Lu}").set.Has('A'));
  EXPECT_FALSE(Read("\\P{Lu}").set.Has('A'));
  EXPECT_TRUE(Read("\\p{Script=Greek}").set.Has(0x3b1));
}

TEST(RegexCharacters, NamesWhatNoEscapeIs) {
  EXPECT_THAT(Read("\\").fault, HasSubstr("a '\\' with nothing behind it at byte 0"));
  EXPECT_THAT(Read("\\b").fault, HasSubstr("a word boundary"));
  EXPECT_THAT(Read("\\1").fault, HasSubstr("a backreference"));
  EXPECT_THAT(Read("\\01").fault, HasSubstr("a backreference"));
  EXPECT_THAT(Read("\\x4").fault, HasSubstr("an escape that is no character"));
  EXPECT_THAT(Read("\\ud83d").fault, HasSubstr("an escape that is no character"));
  EXPECT_THAT(Read("\\u{110000}").fault, HasSubstr("an escape that is no character"));
  EXPECT_THAT(Read("\\u{41").fault, HasSubstr("an escape that is no character"));
  EXPECT_THAT(Read("\\q").fault, HasSubstr("the escape \\q, which is unknown"));
  EXPECT_THAT(Read("\\p").fault, HasSubstr("a property without a name"));
  EXPECT_THAT(Read("\\p{}").fault, HasSubstr("a property without a name"));
  EXPECT_THAT(Read("\\p{Lu").fault, HasSubstr("a property without a name"));
  EXPECT_THAT(Read("\\p{Nonsense}").fault, HasSubstr("a property that Unicode does not know"));
}

absl::StatusOr<CodePointSet> Class(absl::string_view text) {
  TextCursor cursor(text);
  cursor.Skip(1);
  StepBudget budget(kMaxCompileSteps);
  return ReadClass(&cursor, 0, &budget);
}

TEST(RegexCharacters, ReadsClasses) {
  EXPECT_EQ(*Class("[a-c]"), (CodePointSet{{'a', 'c'}}));
  EXPECT_EQ(*Class("[^a-c]"), (CodePointSet{{'a', 'c'}}).Negated());
  EXPECT_EQ(*Class("[ac-]"), (CodePointSet{{'-', '-'}, {'a', 'a'}, {'c', 'c'}}));
  EXPECT_EQ(*Class("[\\d-z]"), (CodePointSet{{'-', '-'}, {'0', '9'}, {'z', 'z'}})) << "beside a class";
  EXPECT_EQ(*Class("[]"), CodePointSet());
  EXPECT_THAT(std::string(Class("[a").status().message()), HasSubstr("a '[' that is not closed at byte 0"));
  EXPECT_THAT(std::string(Class("[a-").status().message()), HasSubstr("a '[' that is not closed at byte 0"));
  EXPECT_THAT(std::string(Class("[c-a]").status().message()),
              HasSubstr("a range that is out of order at byte 1"));
}

}  // namespace
}  // namespace aludel
