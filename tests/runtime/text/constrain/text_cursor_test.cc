#include "runtime/text/constrain/text_cursor.h"

#include "absl/strings/ascii.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

TEST(TextCursor, TakesWhatComesNextOrNothing) {
  TextCursor cursor("ab12");
  EXPECT_FALSE(cursor.Take("b"));
  EXPECT_TRUE(cursor.Take("ab"));
  EXPECT_TRUE(cursor.Next("12"));
  EXPECT_FALSE(cursor.NextIs(absl::ascii_isalpha));
  EXPECT_EQ(cursor.TakeWhile(absl::ascii_isalpha), "");
  EXPECT_EQ(cursor.TakeWhile(absl::ascii_isdigit), "12");
  EXPECT_TRUE(cursor.Done());
  EXPECT_FALSE(cursor.NextIs(absl::ascii_isdigit));
  EXPECT_FALSE(cursor.Take("1"));
}

TEST(TextCursor, CopiesLookAhead) {
  TextCursor cursor("12,");
  TextCursor ahead = cursor;
  EXPECT_EQ(ahead.TakeNumber(100), 12);
  EXPECT_EQ(ahead.at(), 2);
  EXPECT_EQ(cursor.at(), 0);
  EXPECT_EQ(cursor.rest(), "12,");
}

TEST(TextCursor, BoundsNumbers) {
  EXPECT_EQ(TextCursor("65536").TakeNumber(65537), 65536);
  EXPECT_EQ(TextCursor("99999999999999999999").TakeNumber(65537), 65537);
  EXPECT_EQ(TextCursor(",").TakeNumber(65537), std::nullopt);
}

TEST(TextCursor, TakesAllDigitsOfAHexNumberOrNone) {
  TextCursor cursor("fFg");
  EXPECT_EQ(cursor.TakeHex(3), std::nullopt);
  EXPECT_EQ(cursor.at(), 0);
  EXPECT_EQ(cursor.TakeHex(2), 0xffu);
  EXPECT_EQ(cursor.TakeHex(2), std::nullopt) << "fewer are left";
  EXPECT_EQ(TextCursor("ffffffff").TakeHex(8), 0xffffffffu);
}

TEST(TextCursor, TakesCharacters) {
  TextCursor cursor("\xc3\xa9x");
  EXPECT_EQ(cursor.TakeCodePoint(), 0xe9u);
  EXPECT_EQ(cursor.at(), 2);
}

TEST(TextCursor, NamesTheByteOfAFault) {
  EXPECT_TRUE(TextCursor("\xc3\xa9").CheckUtf8().ok());
  EXPECT_THAT(std::string(TextCursor("ab\xff").CheckUtf8().message()), HasSubstr("has no UTF-8 at byte 2"));
}

}  // namespace
}  // namespace aludel
