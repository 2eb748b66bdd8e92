#include "server/gateway/openai/tools/tool_call_parser.h"

#include <fstream>
#include <sstream>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/cpu_clock.h"

namespace aludel {
namespace {

struct Parsed {
  std::string text;
  std::vector<ToolCall> calls;
  size_t cut = 0;  // calls that the parser does not count
};

// The same answer in pieces of every size must give the same.
Parsed Parse(ToolCallParser::Options options, const std::string& answer) {
  Parsed first;
  for (size_t size = 1; size <= answer.size() + 1; size = size < 16 ? size + 1 : size * 4) {
    ToolCallParser parser(options);
    Parsed parsed;
    const auto add = [&parsed](const ToolCallParser::Output& output) {
      parsed.text += output.text;
      parsed.calls.insert(parsed.calls.end(), output.calls.begin(), output.calls.end());
    };
    for (size_t i = 0; i < answer.size(); i += size) add(parser.Push(answer.substr(i, size)));
    add(parser.Finish());
    parsed.cut = parsed.calls.size() - parser.calls();
    if (size == 1) first = parsed;
    EXPECT_EQ(parsed.text, first.text) << size;
    EXPECT_EQ(parsed.calls.size(), first.calls.size()) << size;
    EXPECT_EQ(parsed.cut, first.cut) << size;
  }
  return first;
}

ToolCallParser::Options With(ToolDialect dialect) {
  return {.dialect = dialect, .names = {"weather", "clock"}};
}

TEST(ToolCallParser, ABareMistralCallIsOneWithoutItsMarker) {
  ToolCallParser::Options options = With(ToolDialect::kMistral);
  options.bare = true;
  const Parsed call = Parse(options, R"([{"name": "clock", "arguments": {"a": 1}}])");
  ASSERT_EQ(call.calls.size(), 1u);
  EXPECT_EQ(call.calls[0].arguments, R"({"a":1})");
  EXPECT_EQ(call.text, "");
  for (const char* text : {R"([1, 2])", R"({"name": "clock"})", R"([{"name": "other"}])", "[", ""}) {
    const Parsed parsed = Parse(options, text);
    EXPECT_EQ(parsed.text, text);
    EXPECT_TRUE(parsed.calls.empty());
  }
}

TEST(ToolCallParser, ABareHermesAnswerIsAFormatOrACall) {
  ToolCallParser::Options options = With(ToolDialect::kHermes);
  options.bare = true;
  EXPECT_EQ(Parse(options, R"({"name": "clock"})").text, R"({"name": "clock"})");
  EXPECT_EQ(Parse(options, "<tool_call>\n{\"name\": \"clock\"}\n</tool_call>").calls.size(), 1u);
}

TEST(ToolCallParser, ReadsHermesCallsWithTextAround) {
  const Parsed parsed =
      Parse(With(ToolDialect::kHermes),
            "Let me look.<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"place\": \"<b> "
            "Z\u00fcrich\", \"days\": 2}}\n</tool_call>\n<tool_call>{\"name\": \"clock\", "
            "\"arguments\": {}}</tool_call> All done now.");
  EXPECT_EQ(parsed.text, "Let me look.All done now.");
  ASSERT_EQ(parsed.calls.size(), 2u);
  EXPECT_EQ(parsed.calls[0].name, "weather");
  EXPECT_EQ(parsed.calls[0].arguments, "{\"place\":\"<b> Z\u00fcrich\",\"days\":2}");
  EXPECT_EQ(parsed.calls[1].name, "clock");
  EXPECT_EQ(parsed.calls[1].arguments, "{}");
  EXPECT_NE(parsed.calls[0].id, parsed.calls[1].id);
  EXPECT_EQ(parsed.calls[0].id.substr(0, 5), "call_");
}

TEST(ToolCallParser, ReadsAHermesCallThatTheAnswersEndCut) {
  const Parsed parsed =
      Parse(With(ToolDialect::kHermes), "<tool_call>{\"name\": \"clock\", \"arguments\": {}}");
  EXPECT_EQ(parsed.text, "");
  EXPECT_EQ(parsed.calls.size(), 1u);
}

TEST(ToolCallParser, KeepsWhatIsNoCallAsText) {
  for (const std::string answer :
       {"<tool_call>{\"name\": \"rm\", \"arguments\": {}}</tool_call>", "<tool_call>nonsense</tool_call> x",
        "<tool_call>{\"name\": \"clock\", \"arguments\": [1]}</tool_call>", "a <tool_ca",
        "<tool_call>{\"name", "1 < 2"}) {
    const Parsed parsed = Parse(With(ToolDialect::kHermes), answer);
    EXPECT_EQ(parsed.text, answer);
    EXPECT_TRUE(parsed.calls.empty());
  }
  for (const std::string answer :
       {"{\"answer\": \"x\"}", "{\"name\": \"clock\"} and more", "{\"na", "Hello {"}) {
    EXPECT_EQ(Parse(With(ToolDialect::kLlama), answer).text, answer);
  }
  for (const std::string answer :
       {"[TOOL_CALLS] nothing", "[TOOL", "[1, 2]", "[TOOL_CALLS] [{\"name\": \"rm\"}]"}) {
    EXPECT_EQ(Parse(With(ToolDialect::kMistral), answer).text, answer);
  }
}

TEST(ToolCallParser, ReadsLlamaCalls) {
  const Parsed one =
      Parse(With(ToolDialect::kLlama), "\n{\"name\": \"weather\", \"parameters\": {\"place\": \"}\"}}");
  ASSERT_EQ(one.calls.size(), 1u);
  EXPECT_EQ(one.calls[0].arguments, "{\"place\":\"}\"}");
  EXPECT_EQ(one.text, "");
  EXPECT_EQ(Parse(With(ToolDialect::kLlama),
                  "{\"name\": \"clock\", \"parameters\": {}}; {\"name\": \"clock\", \"parameters\": {}}")
                .calls.size(),
            2u);
}

TEST(ToolCallParser, ReadsMistralCalls) {
  const std::string list =
      " [{\"name\": \"weather\", \"arguments\": {\"place\": \"A\"}}, {\"name\": \"clock\", \"arguments\": "
      "{}}]";
  const Parsed parsed = Parse(With(ToolDialect::kMistral), "Well.[TOOL_CALLS]" + list);
  EXPECT_EQ(parsed.text, "Well.");
  ASSERT_EQ(parsed.calls.size(), 2u);
  EXPECT_EQ(parsed.calls[0].id.size(), 9u);
  ToolCallParser::Options required = With(ToolDialect::kMistral);
  required.required = true;
  EXPECT_EQ(Parse(required, list).calls.size(), 2u);
  required.max_calls = 1;
  EXPECT_EQ(Parse(required, list).calls.size(), 1u);
}

TEST(ToolCallParser, ARequiredCallThatIsCutOffIsNoText) {
  const std::tuple<ToolDialect, std::string, std::string> dialects[] = {
      {ToolDialect::kHermes, "<tool_call>\n", "\n</tool_call>"},
      {ToolDialect::kLlama, "", ""},
      {ToolDialect::kMistral, "[", "]"}};
  for (const auto& [dialect, prefix, suffix] : dialects) {
    ToolCallParser::Options required = With(dialect);
    required.required = true;
    const std::string name = "{ \"name\": \"clock\"";
    const std::string key = dialect == ToolDialect::kLlama ? ", \"parameters\": " : ", \"arguments\": ";
    const std::string arguments = "{\"zone\": \"a}\\\"b\"}";
    const std::string whole = prefix + name + key + arguments + " }" + suffix;
    for (size_t end = 0; end <= whole.size(); ++end) {
      const Parsed parsed = Parse(required, whole.substr(0, end));
      EXPECT_EQ(parsed.text, "");
      ASSERT_EQ(parsed.calls.size(), end >= prefix.size() + name.size() ? 1 : 0) << whole.substr(0, end);
      if (parsed.calls.empty()) continue;
      EXPECT_EQ(parsed.calls[0].name, "clock");
      if (parsed.cut == 0) continue;
      const size_t begin = std::min(end, prefix.size() + name.size() + key.size());
      EXPECT_EQ(parsed.calls[0].arguments, whole.substr(begin, std::min(end - begin, arguments.size())));
    }
    EXPECT_EQ(Parse(required, whole).cut, 0);
    EXPECT_TRUE(Parse(required, prefix + "{\"name\": \"rm\", \"arg").calls.empty());
  }
}

TEST(ToolCallParser, TakesArgumentsWrittenAsAString) {
  const Parsed parsed =
      Parse(With(ToolDialect::kLlama), "{\"name\": \"weather\", \"parameters\": \"{\\\"a\\\": 1}\"}");
  ASSERT_EQ(parsed.calls.size(), 1u);
  EXPECT_EQ(parsed.calls[0].arguments, "{\"a\":1}");
}

TEST(ToolDialect, IsToldFromPublishedTemplates) {
  const auto source = [](const std::string& name) {
    std::ifstream file("tests/runtime/text/reference/templates/" + name + ".jinja");
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  };
  EXPECT_EQ(DetectToolDialect(source("llama31")), ToolDialect::kLlama);
  EXPECT_EQ(DetectToolDialect(source("mistral")), ToolDialect::kMistral);
  EXPECT_EQ(DetectToolDialect(source("qwen25")), ToolDialect::kHermes);
  EXPECT_EQ(DetectToolDialect("{{ messages }}"), ToolDialect::kNone);
  EXPECT_EQ(DetectToolDialect("{{ tools }}"), ToolDialect::kNone);
}

// Text that is held while it comes was searched again with every piece: over a minute for the first of these.
TEST(ToolCallParser, TakesTimeInProportionToTheTextHoweverSmallItsPieces) {
  const double start = ThreadCpuSeconds();
  for (const auto& [dialect, head, piece] :
       {std::tuple(ToolDialect::kHermes, "<tool_call>", "<abc"),
        std::tuple(ToolDialect::kHermes, "", "<tool_call"), std::tuple(ToolDialect::kLlama, "", "    "),
        std::tuple(ToolDialect::kLlama, "{", "    "),
        std::tuple(ToolDialect::kMistral, "[TOOL_CALLS]", "[abc"),
        std::tuple(ToolDialect::kMistral, "", "[TOO")}) {
    ToolCallParser parser(With(dialect));
    parser.Push(head);
    for (int i = 0; i < 1 << 18; ++i) parser.Push(piece);
    parser.Finish();
  }
  ToolCallParser parser(With(ToolDialect::kHermes));
  std::string many;
  for (int i = 0; i < 1 << 16; ++i) absl::StrAppend(&many, "<tool_call>", "x</tool_call>");
  EXPECT_EQ(parser.Push(many).text, many);
  EXPECT_LT(ThreadCpuSeconds() - start, 3);
}

}  // namespace
}  // namespace aludel
