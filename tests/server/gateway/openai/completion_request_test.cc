#include "server/gateway/openai/completion_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "server/gateway/openai/fields/sampling_fields.h"
#include "tests/server/gateway/openai/completion_request_fixture.h"
#include "tests/testing/cpu_clock.h"

namespace aludel::completion_testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(CompletionRequest, HasTheDefaultsOfOpenAi) {
  const CompletionRequest request = Chat("");
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.messages.dump(), R"([{"role":"user","content":"hi"}])");
  EXPECT_FALSE(request.sampling.has_temperature());
  EXPECT_FALSE(request.sampling.has_top_p());
  EXPECT_EQ(request.sampling.max_tokens(), 0);
  EXPECT_FALSE(request.sampling.has_seed());
  EXPECT_FALSE(request.stream);
  EXPECT_EQ(request.fidelity, v1::FIDELITY_UNSPECIFIED);
  EXPECT_EQ(request.priority, 0);
}

TEST(CompletionRequest, TakesTheModelsDefaultsWhereItLeavesFieldsOut) {
  GenerationConfig defaults;
  v1::SamplingParams sampling = Chat("").sampling;
  FillSampling(defaults, &sampling);
  EXPECT_EQ(sampling.temperature(), 1.0);
  EXPECT_EQ(sampling.top_p(), 0.0);
  EXPECT_EQ(sampling.repetition_penalty(), 0.0);
  EXPECT_EQ(sampling.max_tokens(), 0);

  defaults.temperature = 0.6;
  defaults.top_p = 0.9;
  defaults.top_k = 20;
  defaults.min_p = 0.05;
  defaults.repetition_penalty = 1.05;
  defaults.max_new_tokens = 512;
  sampling = Chat("").sampling;
  FillSampling(defaults, &sampling);
  EXPECT_EQ(sampling.temperature(), 0.6);
  EXPECT_EQ(sampling.top_p(), 0.9);
  EXPECT_EQ(sampling.top_k(), 20);
  EXPECT_EQ(sampling.min_p(), 0.05);
  EXPECT_EQ(sampling.repetition_penalty(), 1.05);
  EXPECT_EQ(sampling.max_tokens(), 512);

  // What "off" means is said, too.
  sampling = Chat(R"(, "temperature": 0, "top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1,
                  "max_tokens": 9)")
                 .sampling;
  FillSampling(defaults, &sampling);
  EXPECT_EQ(sampling.temperature(), 0);
  EXPECT_EQ(sampling.top_p(), 1);
  EXPECT_EQ(sampling.top_k(), 0);
  EXPECT_EQ(sampling.min_p(), 0);
  EXPECT_EQ(sampling.repetition_penalty(), 1);
  EXPECT_EQ(sampling.max_tokens(), 9);
}

TEST(CompletionRequest, ReadsEveryServedField) {
  const CompletionRequest request = Chat(
      R"(, "temperature": 0, "top_p": 0.5, "top_k": 7, "seed": -3, "stop": ["a", "b"], "max_tokens": 9,
      "stream": true, "stream_options": {"include_usage": true}, "user": "u", "priority": -3,
      "aludel": {"fidelity": "fast", "format": "raw", "max_staleness_ms": 0, "timeout_ms": 250})");
  EXPECT_EQ(request.sampling.temperature(), 0);
  EXPECT_EQ(request.sampling.top_p(), 0.5);
  EXPECT_EQ(request.sampling.top_k(), 7);
  EXPECT_EQ(request.sampling.seed(), static_cast<uint64_t>(-3));
  EXPECT_THAT(request.sampling.stop(), ElementsAre("a", "b"));
  EXPECT_EQ(request.sampling.max_tokens(), 9);
  EXPECT_TRUE(request.stream);
  EXPECT_TRUE(request.include_usage);
  EXPECT_EQ(request.fidelity, v1::FIDELITY_FAST);
  EXPECT_EQ(request.timeout, absl::Milliseconds(250));
  EXPECT_EQ(request.format, "raw");
  EXPECT_EQ(request.priority, -3);
}

TEST(CompletionRequest, ReadsEverySamplingField) {
  const v1::SamplingParams sampling =
      Chat(
          R"(, "n": 3, "min_p": 0.1, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": -1,
      "logit_bias": {"5": 1.5, "7": -100}, "logprobs": true, "top_logprobs": 4, "ignore_eos": true)")
          .sampling;
  EXPECT_EQ(sampling.choices(), 3);
  EXPECT_EQ(sampling.min_p(), 0.1);
  EXPECT_EQ(sampling.repetition_penalty(), 1.3);
  EXPECT_EQ(sampling.presence_penalty(), 0.5);
  EXPECT_EQ(sampling.frequency_penalty(), -1);
  ASSERT_EQ(sampling.logit_bias_size(), 2);
  EXPECT_EQ(sampling.logit_bias(1).token(), 7);
  EXPECT_EQ(sampling.logit_bias(1).bias(), -100);
  EXPECT_EQ(sampling.top_logprobs(), 4);
  EXPECT_TRUE(sampling.ignore_eos());
  EXPECT_FALSE(Chat("").sampling.has_top_logprobs());
  EXPECT_TRUE(Chat(R"(, "logprobs": true)").sampling.has_top_logprobs());
  CompletionRequest plain;
  EXPECT_FALSE(ParseCompletionRequest(R"({"model": "m", "prompt": "a", "logprobs": 5, "n": 2, "best_of": 2})",
                                      &plain));
  EXPECT_EQ(plain.sampling.top_logprobs(), 5);
}

TEST(CompletionRequest, PrefersTheNewerNameOfMaxTokens) {
  EXPECT_EQ(Chat(R"(, "max_tokens": 5, "max_completion_tokens": 6)").sampling.max_tokens(), 6);
}

TEST(CompletionRequest, JoinsTextParts) {
  CompletionRequest request;
  EXPECT_FALSE(ParseChatRequest(R"({"model": "m", "messages": [
      {"role": "developer", "content": "be brief"},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]})",
                                &request));
  EXPECT_EQ(request.messages.dump(),
            R"([{"role":"system","content":"be brief"},{"role":"user","content":"ab"}])");
}

TEST(CompletionRequest, TakesNullAsAbsenceAndIgnoresHarmlessFields) {
  const CompletionRequest request = Chat(
      R"(, "temperature": null, "stop": null, "n": null, "tools": [], "logit_bias": {}, "logprobs": false,
      "presence_penalty": 0.0, "response_format": {"type": "text"}, "tool_choice": "auto",
      "metadata": {"a": "b"}, "store": true, "something_new": 1)");
  EXPECT_FALSE(request.sampling.has_temperature());
}

TEST(CompletionRequest, ReadsThatNothingShallBeStored) {
  EXPECT_FALSE(Chat("").no_store);
  EXPECT_FALSE(Chat(R"(, "store": true)").no_store);
  EXPECT_TRUE(Chat(R"(, "store": false)").no_store);
  EXPECT_TRUE(Chat(R"(, "aludel": {"store": false})").no_store);
  EXPECT_TRUE(Chat(R"(, "store": true, "aludel": {"store": false})").no_store);
}

TEST(CompletionRequest, ReadsTheRequestsPlaceInAWorkflow) {
  EXPECT_FALSE(Chat("").workflow.has_value());
  EXPECT_FALSE(Chat(R"(, "aludel": {"workflow": null})").workflow.has_value());
  const CompletionRequest first = Chat(R"(, "aludel": {"workflow": {"id": "w", "agent": "a"}})");
  ASSERT_TRUE(first.workflow.has_value());
  EXPECT_EQ(first.workflow->next_size(), 0);
  const CompletionRequest request =
      Chat(R"(, "aludel": {"workflow": {"id": "w", "agent": "a", "next": ["b", "c", "b"]}})");
  ASSERT_TRUE(request.workflow.has_value());
  EXPECT_EQ(request.workflow->id(), "w");
  EXPECT_EQ(request.workflow->agent(), "a");
  EXPECT_THAT(request.workflow->next(), testing::ElementsAre("b", "c", "b"));
}

TEST(CompletionRequest, LeavesTheGenerationPromptToTheClient) {
  EXPECT_EQ(Chat("").template_arguments.count("add_generation_prompt"), 0);
  EXPECT_EQ(Chat(R"(, "add_generation_prompt": false)").template_arguments["add_generation_prompt"], false);
}

constexpr char kWeather[] =
    R"({"type": "function", "function": {"name": "weather", "parameters": {"type": "object",
        "properties": {"place": {"$ref": "#/$defs/p"}, "days": {"type": "integer"}}, "required": ["place"],
        "$defs": {"p": {"type": "string"}}}}})";

TEST(CompletionRequest, ReadsToolsInTheirOrder) {
  const CompletionRequest request = Chat(absl::StrCat(R"(, "tools": [)", kWeather, "]"));
  EXPECT_EQ(request.tools.choice, Tools::Choice::kAuto);
  EXPECT_THAT(request.tools.names, ElementsAre("weather"));
  EXPECT_THAT(request.tools.list.dump(),
              HasSubstr(R"({"type":"function","function":{"name":"weather","parameters")"));
  EXPECT_TRUE(
      Chat(absl::StrCat(R"(, "tool_choice": "none", "tools": [)", kWeather, "]")).tools.list.is_null());
  const CompletionRequest named = Chat(absl::StrCat(
      R"(, "parallel_tool_calls": false, "tool_choice": {"type": "function", "function": {"name": "weather"}},
      "tools": [)",
      kWeather, "]"));
  EXPECT_EQ(named.tools.choice, Tools::Choice::kRequired);
  EXPECT_FALSE(named.tools.parallel);
}

TEST(CompletionRequest, ConstrainsARequiredCallInEachDialect) {
  const CompletionRequest request =
      Chat(absl::StrCat(R"(, "tool_choice": "required", "tools": [)", kWeather, "]"));
  for (const auto& [dialect, prefix, arguments] :
       {std::tuple{ToolDialect::kHermes, "<tool_call>\n", "arguments"},
        std::tuple{ToolDialect::kLlama, "", "parameters"},
        std::tuple{ToolDialect::kMistral, "[", "arguments"}}) {
    std::optional<v1::TextConstraint> constraint;
    ASSERT_FALSE(ConstrainToCall(request.tools, dialect, &constraint));
    ASSERT_TRUE(constraint);
    EXPECT_EQ(constraint->prefix(), prefix);
    EXPECT_THAT(constraint->json_schema(),
                HasSubstr(absl::StrCat("#/anyOf/0/properties/", arguments, "/$defs/p")));
  }
  std::optional<v1::TextConstraint> constraint;
  EXPECT_EQ(ConstrainToCall(request.tools, ToolDialect::kNone, &constraint)->param, "tools");
  EXPECT_FALSE(ConstrainToCall(Chat("").tools, ToolDialect::kNone, &constraint));
  EXPECT_FALSE(constraint);
}

TEST(CompletionRequest, ReadsResponseFormats) {
  EXPECT_FALSE(Chat(R"(, "response_format": {"type": "text"})").constraint);
  EXPECT_EQ(Chat(R"(, "response_format": {"type": "json_object"})").constraint->json_schema(),
            R"({"type":"object"})");
  EXPECT_EQ(Chat(R"(, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema":
                    {"type": "object", "properties": {"b": {"type": "null"}, "a": {}}}}})")
                .constraint->json_schema(),
            R"({"type":"object","properties":{"b":{"type":"null"},"a":{}}})");
  EXPECT_EQ(
      Chat(R"(, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}})")
          .format_name,
      "x");
}

TEST(CompletionRequest, ReadsConstraintsOfOtherServers) {
  EXPECT_EQ(Chat(R"(, "response_format": {"type": "json_object", "schema": {"type": "null"}})")
                .constraint->json_schema(),
            R"({"type":"null"})");
  EXPECT_EQ(Chat(R"(, "response_format": {"type": "regex", "pattern": "a+"})").constraint->regex(), "a+");
  EXPECT_EQ(
      Chat(R"(, "response_format": {"type": "grammar", "grammar": "root ::= \"a\""})").constraint->grammar(),
      "root ::= \"a\"");
  for (const char* field : {"guided_json", "json_schema"}) {
    EXPECT_EQ(Chat(absl::StrCat(", \"", field, R"(": {"type": "null"})")).constraint->json_schema(),
              R"({"type":"null"})");
    EXPECT_EQ(Chat(absl::StrCat(", \"", field, R"(": "{\"a\": 1}")")).constraint->json_schema(),
              R"({"a": 1})");
  }
  for (const char* field : {"guided_regex", "regex"}) {
    const CompletionRequest request = Chat(absl::StrCat(", \"", field, R"(": "a+")"));
    EXPECT_EQ(request.constraint->regex(), "a+");
    EXPECT_EQ(request.format_param, field);
  }
  for (const char* field : {"guided_grammar", "ebnf", "grammar"}) {
    EXPECT_EQ(Chat(absl::StrCat(", \"", field, R"(": "root ::= [a]")")).constraint->grammar(),
              "root ::= [a]");
  }
  EXPECT_EQ(Chat(R"(, "guided_choice": ["a\"\\", "b\nc"])").constraint->grammar(),
            R"(root ::= "a\"\\" | "b\nc")");
  EXPECT_EQ(Chat(R"(, "structured_outputs": {"json_object": true})").constraint->json_schema(),
            R"({"type":"object"})");
  const CompletionRequest choice = Chat(R"(, "structured_outputs": {"choice": ["a"]})");
  EXPECT_EQ(choice.constraint->grammar(), R"(root ::= "a")");
  EXPECT_EQ(choice.format_param, "structured_outputs.choice");
  EXPECT_FALSE(
      Chat(R"(, "guided_regex": "", "guided_json": "", "structured_outputs": {"choice": []}, "ebnf": null)")
          .constraint);
  EXPECT_EQ(Chat(R"(, "guided_json": {})").constraint->json_schema(), "{}");
}

TEST(CompletionRequest, HasOneConstraint) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("guided_regex": "a", "regex": "a")", "regex"},
      {R"("response_format": {"type": "json_object"}, "guided_choice": ["a"])", "guided_choice"},
      {R"("structured_outputs": {"json": {"a": 1}, "grammar": "root ::= [a]"})",
       "structured_outputs.grammar"},
      {R"("structured_outputs": {"json_object": true}, "ebnf": "root ::= [a]")",
       "structured_outputs.json_object"},
      {R"("structured_outputs": {"whitespace_pattern": " "})", "structured_outputs.whitespace_pattern"},
      {R"("structured_outputs": {"regexp": "a"})", "structured_outputs.regexp"},
      {R"("guided_choice": "a")", "guided_choice"},
      {R"("guided_choice": ["a", 1])", "guided_choice"},
      {R"("guided_regex": 1)", "guided_regex"},
      {R"("response_format": {"type": "regex"})", "response_format.pattern"}};
  for (const auto& [fields, param] : cases) {
    CompletionRequest request;
    const auto error = ParseChatRequest(
        absl::StrCat(R"({"model": "m", "messages": [{"role": "user", "content": "hi"}], )", fields, "}"),
        &request);
    ASSERT_TRUE(error) << fields;
    EXPECT_EQ(error->status, 400);
    EXPECT_EQ(error->param, param);
  }
}

TEST(CompletionRequest, ReadsToolCallsAndTheirAnswers) {
  CompletionRequest request;
  const auto error = ParseChatRequest(R"({"model": "m", "messages": [{"role": "user", "content": "w?"},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function",
       "function": {"name": "weather", "arguments": "{\"place\": \"A\", \"days\": 2}"}}]},
      {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sun"}]}]})",
                                      &request);
  ASSERT_FALSE(error) << error->message;
  EXPECT_EQ(request.messages[1].dump(),
            R"({"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"function","function":)"
            R"({"name":"weather","arguments":{"place":"A","days":2}}}]})");
  EXPECT_EQ(request.messages[2].dump(), R"({"role":"tool","content":"sun","tool_call_id":"c1"})");
}

TEST(CompletionRequest, TakesCallsWithoutValidArgumentsAndRefusalsBack) {
  CompletionRequest request;
  const auto error = ParseChatRequest(R"({"model": "m", "messages": [
      {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{\"a\": "}}]},
      {"role": "assistant", "tool_calls": [{"id": "c2", "function": {"name": "f", "arguments": "[1]"}}]},
      {"role": "assistant", "content": null, "refusal": "no"},
      {"role": "assistant", "content": [{"type": "refusal", "refusal": "never"}]}]})",
                                      &request);
  ASSERT_FALSE(error) << error->message;
  EXPECT_EQ(request.messages[0]["tool_calls"][0]["function"]["arguments"], "{\"a\": ");
  EXPECT_EQ(request.messages[1]["tool_calls"][0]["function"]["arguments"], "[1]");
  EXPECT_EQ(request.messages[2].dump(), R"({"role":"assistant","content":"no"})");
  EXPECT_EQ(request.messages[3]["content"], "never");
}

TEST(CompletionRequest, ReadsPromptsAsTextOrTokens) {
  const std::pair<std::string, std::string> texts[] = {{R"("abc")", "abc"}, {R"(["abc"])", "abc"}};
  for (const auto& [prompt, text] : texts) {
    CompletionRequest request;
    EXPECT_FALSE(ParseCompletionRequest(absl::StrCat(R"({"model": "m", "prompt": )", prompt, "}"), &request));
    ASSERT_EQ(request.prompts.size(), 1);
    EXPECT_EQ(request.prompts[0].text, text);
    EXPECT_EQ(request.sampling.max_tokens(), 16);
  }
  for (const char* prompt : {"[1, 2]", "[[1, 2]]"}) {
    CompletionRequest request;
    EXPECT_FALSE(ParseCompletionRequest(absl::StrCat(R"({"model": "m", "prompt": )", prompt, "}"), &request));
    ASSERT_EQ(request.prompts.size(), 1);
    EXPECT_THAT(request.prompts[0].ids, ElementsAre(1, 2));
  }
  for (const char* prompt :
       {"null", "[]", "[[]]", "[-1]", "[1.5]", "{}", R"(["a", 1])", R"(["a", []])", "[4294967296]"}) {
    CompletionRequest request;
    const auto error =
        ParseCompletionRequest(absl::StrCat(R"({"model": "m", "prompt": )", prompt, "}"), &request);
    ASSERT_TRUE(error) << prompt;
    EXPECT_THAT(error->param, ::testing::StartsWith("prompt"));
  }
}

}  // namespace
}  // namespace aludel::completion_testing
