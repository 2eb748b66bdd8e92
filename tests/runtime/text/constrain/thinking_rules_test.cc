#include "runtime/text/constrain/thinking_rules.h"

#include <gtest/gtest.h>

#include <string>

#include "runtime/text/constrain/text_constraint.h"
#include "tests/runtime/text/constrain/language.h"

namespace aludel {
namespace {

TEST(ThinkingRules, ThoughtsMayStandInFront) {
  Language language(TextConstraint{.regex = "ab", .think_begin = "<think>", .think_end = "</think>"});
  for (const char* text : {"ab", "<think></think>ab", "<think>any </thin </think>\n\nab",
                           "<think>\xff\x80</think> ab", "<think><</<</think></think>    ab"}) {
    const bool twice = std::string(text).find("</think></think>") != std::string::npos;
    EXPECT_EQ(language.Has(text), !twice) << text;
  }
  for (const char* text : {"<think>ab", "<think>a</think>", "</think>ab", " ab",
                           "<think></think>\n\n\n\n\nab", "<think></think>\tab"}) {
    EXPECT_FALSE(language.Has(text)) << text;
  }
}

TEST(ThinkingRules, ThoughtsThatHaveBegunMustEnd) {
  Language language(TextConstraint{.regex = "ab", .think_end = "aab"});
  EXPECT_TRUE(language.Has("aabab"));
  EXPECT_TRUE(language.Has("aaaaab ab"));
  EXPECT_TRUE(language.Has("abaabab"));
  EXPECT_FALSE(language.Has("ab"));
  EXPECT_FALSE(language.Has("aabaabab"));  // what comes behind the first end is no thought
}

TEST(ThinkingRules, ACallOrAnAnswer) {
  Language language(TextConstraint{.json_schema = R"({"enum": [1, 2]})",
                                   .call_prefix = "<c>",
                                   .call_schema = R"({"const": {"name": "f"}})",
                                   .call_suffix = "</c>"});
  EXPECT_TRUE(language.Has("1"));
  EXPECT_TRUE(language.Has("2"));
  EXPECT_TRUE(language.Has(R"(<c>{"name":"f"}</c>)"));
  for (const char* text : {"3", "<c>1</c>", R"({"name":"f"})", R"(<c>{"name":"f"}</c>1)", "12"}) {
    EXPECT_FALSE(language.Has(text)) << text;
  }
}

TEST(ThinkingRules, ErrorsSayWhetherTheyAreTheCalls) {
  const auto call = CompileConstraint({.json_schema = "{}", .call_schema = R"({"pattern": "("})"});
  EXPECT_TRUE(call.status().GetPayload(kOfCall));
  const auto answer = CompileConstraint({.json_schema = R"({"pattern": "("})", .call_schema = "{}"});
  EXPECT_FALSE(answer.ok());
  EXPECT_FALSE(answer.status().GetPayload(kOfCall));
}

}  // namespace
}  // namespace aludel
