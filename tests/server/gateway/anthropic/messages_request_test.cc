#include "server/gateway/anthropic/messages_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Body(const std::string& fields) {
  return absl::StrCat(R"({"model": "m", "max_tokens": 9)", fields, "}");
}

CompletionRequest Parsed(const std::string& fields) {
  CompletionRequest request;
  const auto error = ParseMessagesRequest(Body(fields), &request);
  EXPECT_FALSE(error) << error->message;
  return request;
}

ApiError Refused(const std::string& fields) {
  CompletionRequest request;
  const auto error = ParseMessagesRequest(Body(fields), &request);
  EXPECT_TRUE(error) << fields;
  return error.value_or(ApiError{});
}

constexpr char kHi[] = R"(, "messages": [{"role": "user", "content": "hi"}])";

TEST(MessagesRequest, ReadsSystemAndTextAsStringsOrBlocks) {
  const CompletionRequest request = Parsed(R"(,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
               {"type": "text", "text": "Be kind."}],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                 {"role": "user", "content": "c"}])");
  EXPECT_EQ(request.messages, ordered_json::parse(R"([{"role": "system", "content": "Be brief.\nBe kind."},
                                                      {"role": "user", "content": "a\nb\nc"}])"));
}

TEST(MessagesRequest, ReadsToolUseAndItsResults) {
  const CompletionRequest request = Parsed(R"(, "messages": [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"},
      {"type": "text", "text": "I look."},
      {"type": "tool_use", "id": "t1", "name": "look", "input": {"b": 1, "a": 2}},
      {"type": "tool_use", "id": "t2", "name": "look", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "seen"},
      {"type": "tool_result", "tool_use_id": "t2", "is_error": true,
       "content": [{"type": "text", "text": "no"}, {"type": "text", "text": "luck"}]},
      {"type": "text", "text": "and?"}]}])");
  EXPECT_EQ(request.messages, ordered_json::parse(R"([{"role": "user", "content": "hi"},
    {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [
      {"id": "t1", "type": "function", "function": {"name": "look", "arguments": {"b": 1, "a": 2}}},
      {"id": "t2", "type": "function", "function": {"name": "look", "arguments": {}}}]},
    {"role": "tool", "content": "seen", "tool_call_id": "t1"},
    {"role": "tool", "content": "no\nluck", "tool_call_id": "t2"},
    {"role": "user", "content": "and?"}])"));
  EXPECT_FALSE(request.continue_final_message);
}

TEST(MessagesRequest, GoesOnWhereTheLastMessageIsTheAssistants) {
  const CompletionRequest request =
      Parsed(R"(, "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "He"}])");
  EXPECT_TRUE(request.continue_final_message);
  EXPECT_EQ(request.template_arguments.at("add_generation_prompt"), false);
  EXPECT_EQ(Refused(R"(, "messages": [{"role": "assistant", "content": [
                        {"type": "tool_use", "id": "t", "name": "f", "input": {}}]}])")
                .param,
            "messages");
}

TEST(MessagesRequest, GivesToolsTheFormThatTemplatesKnow) {
  const std::string tools = absl::StrCat(kHi, R"(, "tools": [
    {"name": "look", "description": "d", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}},
    {"type": "custom", "name": "wait", "input_schema": {"type": "object"}}])");
  const CompletionRequest request = Parsed(tools);
  EXPECT_EQ(request.tools.list, ordered_json::parse(R"([
    {"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "wait", "parameters": {"type": "object"}}}])"));
  EXPECT_EQ(request.tools.choice, Tools::Choice::kAuto);
  EXPECT_TRUE(request.tools.parallel);
  const auto choice = [&](const std::string& json) {
    return Parsed(tools + R"(, "tool_choice": )" + json).tools;
  };
  EXPECT_EQ(choice(R"({"type": "any"})").choice, Tools::Choice::kRequired);
  EXPECT_EQ(choice(R"({"type": "none"})").choice, Tools::Choice::kNone);
  EXPECT_FALSE(choice(R"({"type": "auto", "disable_parallel_tool_use": true})").parallel);
  EXPECT_THAT(choice(R"({"type": "tool", "name": "wait"})").names, ElementsAre("wait"));
}

TEST(MessagesRequest, ReadsSamplingUnderItsOwnNamesAndLeavesTheContextToEndTheAnswer) {
  const CompletionRequest request = Parsed(absl::StrCat(
      kHi, R"(, "stop_sequences": ["x", "y"], "temperature": 0.5, "top_k": 3, "top_p": 0.25, "stream": true,
              "metadata": {"user_id": "u"}, "service_tier": "auto", "thinking": {"type": "disabled"},
              "aludel": {"timeout_ms": 7})"));
  EXPECT_THAT(request.sampling.stop(), ElementsAre("x", "y"));
  EXPECT_EQ(request.sampling.temperature(), 0.5);
  EXPECT_EQ(request.sampling.top_k(), 3);
  EXPECT_EQ(request.sampling.max_tokens(), 9);
  EXPECT_EQ(request.max_tokens_param, "max_tokens");
  EXPECT_TRUE(request.max_tokens_yields);
  EXPECT_TRUE(request.stream);
  EXPECT_EQ(request.timeout, absl::Milliseconds(7));
}

TEST(MessagesRequest, LeavesItToTheModelWhetherItThinks) {
  Parsed(absl::StrCat(kHi, R"(, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"})"));
}

TEST(MessagesRequest, EnforcesAFormatOfTheOutput) {
  const CompletionRequest request = Parsed(absl::StrCat(
      kHi, R"(, "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}})"));
  ASSERT_TRUE(request.constraint);
  EXPECT_EQ(request.constraint->json_schema(), R"({"type":"object"})");
  EXPECT_EQ(request.format_param, "output_config.format");
}

TEST(MessagesRequest, NamesWhatItRefuses) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "messages"},
      {R"(, "messages": [])", "messages"},
      {R"(, "messages": [{"role": "system", "content": "hi"}])", "messages[0].role"},
      {R"(, "messages": [{"role": "user"}])", "messages[0].content"},
      {R"(, "messages": [{"role": "user", "content": 3}])", "messages[0].content"},
      {R"(, "messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}])",
       "messages[0].content[0].type"},
      {R"(, "messages": [{"role": "user", "content": [{"type": "document"}]}])",
       "messages[0].content[0].type"},
      {R"(, "messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}])",
       "messages[0].content[0].type"},
      {R"(, "messages": [{"role": "user", "content": [{"type": "text"}]}])", "messages[0].content[0].text"},
      {R"(, "messages": [{"role": "user", "content": [{"text": "hi"}]}])", "messages[0].content[0]"},
      {R"(, "messages": [{"role": "user", "content": [{"type": "tool_result"}]}])",
       "messages[0].content[0].tool_use_id"},
      {R"(, "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t",
            "content": [{"type": "image"}]}]}])",
       "messages[0].content[0].content[0].type"},
      {R"(, "messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f"}]}])",
       "messages[0].content[0].input"},
      {absl::StrCat(kHi, R"(, "system": [{"type": "image"}])"), "system[0].type"},
      {absl::StrCat(kHi, R"(, "tools": [{"type": "web_search_20250305", "name": "web_search"}])"),
       "tools[0].type"},
      {absl::StrCat(kHi, R"(, "tools": [{"name": "f"}])"), "tools[0].input_schema"},
      {absl::StrCat(kHi, R"(, "tools": [{"name": "f g", "input_schema": {}}])"), "tools[0].name"},
      {absl::StrCat(kHi,
                    R"(, "tools": [{"name": "f", "input_schema": {}}, {"name": "f", "input_schema": {}}])"),
       "tools[1].name"},
      {absl::StrCat(kHi, R"(, "tool_choice": {"type": "any"})"), "tool_choice"},
      {absl::StrCat(kHi, R"(, "tool_choice": {"type": "all"})"), "tool_choice.type"},
      {absl::StrCat(kHi, R"(, "stop_sequences": [1])"), "stop_sequences"},
      {absl::StrCat(kHi, R"(, "stop": "x")"), "stop"},
      {absl::StrCat(kHi, R"(, "n": 2)"), "n"},
      {absl::StrCat(kHi, R"(, "output_format": {"type": "json_schema", "schema": {}})"), "output_format"},
      {absl::StrCat(kHi, R"(, "output_config": {"effort": "much"})"), "output_config.effort"},
      {absl::StrCat(kHi, R"(, "temperature": 3)"), "temperature"},
      {absl::StrCat(kHi, R"(, "thinking": {"type": "maybe"})"), "thinking.type"},
      {absl::StrCat(kHi, R"(, "mcp_servers": [{}])"), "mcp_servers"},
      {absl::StrCat(kHi, R"(, "thinking": {"type": "enabled", "budget_tokens": 0})"),
       "thinking.budget_tokens"},
      {absl::StrCat(kHi, R"(, "lora_path": "a")"), "lora_path"},
      {absl::StrCat(kHi, R"(, "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]})"),
       "context_management.edits"},
  };
  for (const auto& [fields, param] : cases) {
    const ApiError error = Refused(fields);
    EXPECT_EQ(error.status, 400) << fields;
    EXPECT_EQ(error.param, param) << fields << ": " << error.message;
  }
  CompletionRequest request;
  EXPECT_EQ(ParseMessagesRequest(absl::StrCat(R"({"model": "m")", kHi, "}"), &request)->param, "max_tokens");
  EXPECT_THAT(ParseMessagesRequest(R"({"model": "m", "model": "n"})", &request)->message, HasSubstr("model"));
}

TEST(MessagesRequest, CountsWithoutAMaximum) {
  CompletionRequest request;
  EXPECT_FALSE(ParseCountRequest(absl::StrCat(R"({"model": "m")", kHi, "}"), &request));
}

}  // namespace
}  // namespace aludel
