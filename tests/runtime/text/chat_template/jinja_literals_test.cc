#include "runtime/text/chat_template/jinja_literals.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

TEST(JinjaLiterals, ReadNumbersAsPythonWritesThem) {
  const struct {
    const char* in;
    const char* digits;
    bool is_float;
    size_t end;
  } kCases[] = {{"7", "7", false, 1},
                {"1_000 }}", "1000", false, 5},
                {"2.5|round", "2.5", true, 3},
                {"1e-3,", "1e-3", true, 4},
                {"1e", "1", false, 1},
                {"3.real", "3", false, 1},
                {"1_0.2_5E+1_0", "10.25E+10", true, 12},
                {"4.", "4", false, 1},
                {"5e+", "5", false, 1}};
  for (const auto& one : kCases) {
    const JinjaNumber number = ReadJinjaNumber(one.in, 0);
    EXPECT_EQ(number.digits, one.digits) << one.in;
    EXPECT_EQ(number.is_float, one.is_float) << one.in;
    EXPECT_EQ(number.end, one.end) << one.in;
  }
  EXPECT_EQ(ReadJinjaNumber("a12b", 1).end, 3);
}

TEST(JinjaLiterals, ResolveEscapesAndMoveBehindTheClosingQuote) {
  const struct {
    const char* in;
    const char* text;
  } kCases[] = {{R"("it's")", "it's"},       {R"('a\tb\n')", "a\tb\n"}, {R"("\x41\u00e9\U0001F600")", "Aé😀"},
                {R"('\101\7')", "A\a"},      {R"("\q")", "\\q"},        {R"('\'')", "'"},
                {"'one\\\nline'", "oneline"}};
  for (const auto& one : kCases) {
    size_t at = 0;
    const auto text = ReadJinjaString(one.in, 1, &at);
    ASSERT_TRUE(text.ok()) << one.in << ": " << text.status();
    EXPECT_EQ(*text, one.text);
    EXPECT_EQ(at, std::string(one.in).size()) << one.in;
  }
  size_t at = 3;
  EXPECT_EQ(*ReadJinjaString("x =\"y\" z", 1, &at), "y");
  EXPECT_EQ(at, 6);
}

TEST(JinjaLiterals, NameTheLineOfWhatIsNoString) {
  for (const char* in :
       {"'open", "'\\", R"("\x4")", R"("\u12")", R"("\ud800")", R"("\U00110000")", R"("\xg0")"}) {
    size_t at = 0;
    const auto text = ReadJinjaString(in, 12, &at);
    ASSERT_FALSE(text.ok()) << in;
    EXPECT_THAT(std::string(text.status().message()), HasSubstr("line 12")) << in;
    EXPECT_EQ(at, 0) << in;
  }
}

}  // namespace
}  // namespace aludel
