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

// A field, a value that asks for something, and one that does not.
struct Unserved {
  const char* name;
  const char* asking;
  const char* off;
};

void ExpectRefused(const Unserved& field,
                   const std::function<std::optional<ApiError>(const std::string&)>& parse) {
  SCOPED_TRACE(field.name);
  const std::optional<ApiError> error = parse(absl::StrCat(", \"", field.name, "\": ", field.asking));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->status, 400);
  EXPECT_EQ(error->param, field.name);
  EXPECT_EQ(error->code, "unsupported_parameter");
  EXPECT_THAT(error->message, HasSubstr(absl::StrCat("'", field.name, "' is not supported")));
  for (const char* off : {"null", field.off}) {
    const auto fault = parse(absl::StrCat(", \"", field.name, "\": ", off));
    EXPECT_FALSE(fault) << fault->message;
  }
}

constexpr Unserved kOfBoth[] = {
    {"best_of", "3", "1"},
    {"logits_processors", R"(["a.b"])", "[]"},
    {"structural_tag", R"("{}")", R"("")"},
    {"guided_whitespace_pattern", R"(" ")", "null"},
    {"use_beam_search", "true", "false"},
    {"length_penalty", "0.8", "1.0"},
    {"early_stopping", "true", "false"},
    {"prompt_embeds", R"("AAAA")", R"("")"},
    {"skip_special_tokens", "false", "true"},
    {"return_tokens_as_token_ids", "true", "false"},
    {"kv_transfer_params", R"({"do_remote_decode": true})", "{}"},
    {"lora_path", R"("a")", R"("")"},
    {"n_predict", "5", "0"},
    {"typical_p", "0.5", "1.0"},
    {"mirostat", "2", "0"},
    {"dry_multiplier", "0.8", "0"},
    {"xtc_probability", "0.5", "0.0"},
    {"samplers", R"(["top_k"])", "[]"},
    {"tfs_z", "0.9", "1.0"},
    {"t_max_predict_ms", "10", "0"},
    {"no_stop_trim", "true", "false"},
    {"return_hidden_states", "true", "false"},
};

TEST(CompletionRequest, NamesTheParameterItDoesNotServe) {
  constexpr Unserved kOfChat[] = {
      {"echo", "true", "false"},
      {"functions", R"([{"name": "f"}])", "[]"},
      {"function_call", R"({"name": "f"})", R"("none")"},
      {"modalities", R"(["audio"])", R"(["text"])"},
      {"audio", R"({"voice": "x"})", "{}"},
      {"separate_reasoning", "false", "true"},
      {"include_reasoning", "false", "true"},
      {"prediction", R"({"type": "content", "content": "a"})", "{}"},
      {"web_search_options", R"({"user_location": null})", "{}"},
      {"verbosity", R"("low")", R"("medium")"},
      {"chat_template", R"("{{ messages }}")", R"("")"},
      {"documents", R"([{"text": "a"}])", "[]"},
      {"add_special_tokens", "true", "false"},
  };
  const auto parse = [](const std::string& fields) {
    CompletionRequest request;
    return ParseChatRequest(
        absl::StrCat(R"({"model": "m", "messages": [{"role": "user", "content": "hi"}])", fields, "}"),
        &request);
  };
  for (const Unserved& field : kOfBoth) ExpectRefused(field, parse);
  for (const Unserved& field : kOfChat) ExpectRefused(field, parse);
}

TEST(CompletionRequest, NamesTheParameterOfPlainCompletionsThatItDoesNotServe) {
  constexpr Unserved kOfPlain[] = {
      {"suffix", R"("x")", R"("")"},
      {"messages", "[1]", "[]"},
      {"tools", "[1]", "[]"},
      {"max_completion_tokens", "5", "0"},
      {"top_logprobs", "2", "0"},
      {"chat_template_kwargs", R"({"a": 1})", "{}"},
      {"add_special_tokens", "false", "true"},
      {"reasoning_effort", R"("high")", R"("")"},
      {"thinking_token_budget", "5", "0"},
  };
  const auto parse = [](const std::string& fields) {
    CompletionRequest request;
    return ParseCompletionRequest(absl::StrCat(R"({"model": "m", "prompt": "a")", fields, "}"), &request);
  };
  for (const Unserved& field : kOfBoth) ExpectRefused(field, parse);
  for (const Unserved& field : kOfPlain) ExpectRefused(field, parse);
}

TEST(CompletionRequest, NamesTheParameterThatIsWrong) {
  const std::pair<std::string, std::string> cases[] = {
      {R"("temperature": "hot")", "temperature"},
      {R"("temperature": 2.5)", "temperature"},
      {R"("temperature": -0.1)", "temperature"},
      {R"("top_p": 1.5)", "top_p"},
      {R"("max_tokens": 0)", "max_tokens"},
      {R"("max_tokens": 1.5)", "max_tokens"},
      {R"("max_tokens": 99999999999999999999)", "max_tokens"},
      {R"("seed": 18446744073709551615)", "seed"},
      {R"("stop": ["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p","q"])", "stop"},
      {R"("stop": [""])", "stop"},
      {R"("stop": 7)", "stop"},
      {R"("stream": "yes")", "stream"},
      {R"("stream_options": {"include_usage": true})", "stream_options"},
      {R"("tools": 3)", "tools"},
      {R"("tools": [{"type": "retrieval"}])", "tools[0]"},
      {R"("tools": [{"type": "function"}])", "tools[0].function"},
      {R"("tools": [{"type": "function", "function": {"name": "a b"}}])", "tools[0].function.name"},
      {R"("tools": [{"type": "function", "function": {"name": "a", "parameters": 3}}])",
       "tools[0].function.parameters"},
      {R"("tool_choice": "required")", "tool_choice"},
      {R"("tools": [{"type": "function", "function": {"name": "a"}}], "tool_choice": "some")", "tool_choice"},
      {R"("tools": [{"type": "function", "function": {"name": "a"}}],
          "tool_choice": {"type": "function", "function": {"name": "b"}})",
       "tool_choice"},
      {R"("reasoning_effort": "much")", "reasoning_effort"},
      {R"("thinking_token_budget": -1)", "thinking_token_budget"},
      {R"("parallel_tool_calls": 1)", "parallel_tool_calls"},
      {R"("response_format": "json")", "response_format"},
      {R"("response_format": {"type": "xml"})", "response_format.type"},
      {R"("response_format": {"type": "json_schema"})", "response_format.json_schema"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "x"}})",
       "response_format.json_schema.schema"},
      {R"("chat_template_kwargs": 3)", "chat_template_kwargs"},
      {R"("aludel": {"max_staleness": 3})", "aludel.max_staleness"},
      {R"("priority": 17)", "priority"},
      {R"("priority": -17)", "priority"},
      {R"("priority": 0.5)", "priority"},
      {R"("n": 0)", "n"},
      {R"("n": 129)", "n"},
      {R"("logprobs": 2)", "logprobs"},
      {R"("top_logprobs": 2)", "top_logprobs"},
      {R"("logprobs": true, "top_logprobs": 21)", "top_logprobs"},
      {R"("logit_bias": [1])", "logit_bias"},
      {R"("logit_bias": {"a": 1})", "logit_bias"},
      {R"("logit_bias": {"-5": 1})", "logit_bias"},
      {R"("logit_bias": {"5": 101})", "logit_bias"},
      {R"("logit_bias": {"5": "high"})", "logit_bias"},
      {R"("presence_penalty": 2.5)", "presence_penalty"},
      {R"("frequency_penalty": -3)", "frequency_penalty"},
      {R"("repetition_penalty": 0)", "repetition_penalty"},
      {R"("min_p": 1.5)", "min_p"},
      {R"("aludel": {"fidelity": "perfect"})", "aludel.fidelity"},
      {R"("aludel": {"fidelity": "coded"})", "aludel.fidelity"},
      {R"("aludel": {"timeout_ms": 0})", "aludel.timeout_ms"},
      {R"("aludel": {"max_staleness_ms": -1})", "aludel.max_staleness_ms"},
      {R"("aludel": {"tier": 1})", "aludel.tier"},
      {R"("aludel": {"workflow": "w"})", "aludel.workflow"},
      {R"("aludel": {"workflow": {"agent": "a"}})", "aludel.workflow.id"},
      {R"("aludel": {"workflow": {"id": "w"}})", "aludel.workflow.agent"},
      {R"("aludel": {"workflow": {"id": "", "agent": "a"}})", "aludel.workflow.id"},
      {R"("aludel": {"workflow": {"id": 1, "agent": "a"}})", "aludel.workflow.id"},
      {R"("aludel": {"workflow": {"id": "w", "agent": "0123456789012345678901234567890123456789012345678901234567890123x"}})",
       "aludel.workflow.agent"},
      {R"("aludel": {"workflow": {"id": "w", "agent": "a", "next": "b"}})", "aludel.workflow.next"},
      {R"("aludel": {"workflow": {"id": "w", "agent": "a", "next": [1]}})", "aludel.workflow.next"},
      {R"("aludel": {"workflow": {"id": "w", "agent": "a", "next": [""]}})", "aludel.workflow.next"},
      {R"("aludel": {"workflow": {"id": "w", "agent": "a",
          "next": ["0","1","2","3","4","5","6","7","8","9","a","b","c","d","e","f","g"]}})",
       "aludel.workflow.next"},
      {R"("aludel": {"workflow": {"id": "w", "agent": "a", "steps": 1}})", "aludel.workflow.steps"},
      {R"("aludel": {"fidelity": "exact", "format": "raw"})", "aludel.format"},
      {R"("aludel": "exact")", "aludel"},
  };
  for (const auto& [field, param] : cases) {
    const ApiError error = ChatError(absl::StrCat(", ", field));
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.param, param) << field;
  }
}

TEST(CompletionRequest, AFormerFidelityIsRefusedWithItsName) {
  EXPECT_THAT(
      ChatError(R"(, "aludel": {"fidelity": "coded"})").message,
      HasSubstr("must be 'exact', 'high', 'balanced' or 'fast', found 'coded', whose name is 'fast'"));
  EXPECT_THAT(ChatError(R"(, "aludel": {"fidelity": "perfect"})").message, Not(HasSubstr("whose name")));
}

TEST(CompletionRequest, SaysWhereMessagesAreWrong) {
  const std::pair<std::string, std::string> cases[] = {
      {R"({"model": "m"})", "messages"},
      {R"({"messages": []})", "model"},
      {R"({"model": "m", "messages": []})", "messages"},
      {R"({"model": "m", "messages": "hi"})", "messages"},
      {R"({"model": "m", "messages": [1]})", "messages[0]"},
      {R"({"model": "m", "messages": [{"role": "user"}]})", "messages[0].content"},
      {R"({"model": "m", "messages": [{"role": "robot", "content": ""}]})", "messages[0].role"},
      {R"({"model": "m", "messages": [{"role": "user", "content": 7}]})", "messages[0].content"},
      {R"({"model": "m", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
       "messages[0].content[0].type"},
      {R"({"model": "m", "messages": [{"role": "assistant", "content": "", "tool_calls": [1]}]})",
       "messages[0].tool_calls[0]"},
      {R"({"model": "m", "messages": [{"role": "user", "content": null, "refusal": "no"}]})",
       "messages[0].content"},
      {R"({"model": "m", "messages": [{"role": "assistant", "content": [{"type": "refusal", "text": "no"}]}]})",
       "messages[0].content[0].refusal"},
      {R"({"model": "m", "messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f",
          "arguments": {"a": 1}}}]}]})",
       "messages[0].tool_calls[0].function.arguments"},
      {R"({"model": "m", "messages": [{"role": "user", "content": "", "tool_calls": [1]}]})",
       "messages[0].tool_calls"},
      {R"({"model": "m", "messages": [{"role": "tool", "content": "x"}]})", "messages[0].tool_call_id"},
  };
  for (const auto& [body, param] : cases) EXPECT_EQ(BodyError(body).param, param) << body;
}

TEST(CompletionRequest, RefusesWhatIsNoJsonObject) {
  for (absl::string_view body :
       {"", "{", "[]", "7", "{\"model\": \"\xff\"}", "{\"model\": \"\\ud800\"}", "{} x"}) {
    EXPECT_THAT(BodyError(body).message, HasSubstr("JSON")) << body;
  }
  EXPECT_THAT(BodyError(R"({"model": )").message, HasSubstr("byte 11"));
  for (absl::string_view body : {"1e999", R"({"model": "m", "temperature": -1e999})"}) {
    EXPECT_THAT(BodyError(body).message, HasSubstr("a number that is too large")) << body;
  }
}

TEST(CompletionRequest, RefusesDeepNestingWhereverItIs) {
  EXPECT_THAT(BodyError(std::string(200000, '[')).message, HasSubstr("nested"));
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  for (const char* field : {"stop", "tools", "tool_choice", "logit_bias", "metadata", "aludel"}) {
    EXPECT_THAT(ChatError(absl::StrCat(", \"", field, "\": ", deep)).message, HasSubstr("nested")) << field;
  }
  EXPECT_FALSE(ParseObject(R"({"a": "[[[[\"[[[["})", std::make_unique<nlohmann::ordered_json>().get()));
}

TEST(CompletionRequest, RefusesAKeyThatIsThereTwiceWhereverItIs) {
  std::string members;
  for (int i = 0; i < 80000; ++i) absl::StrAppend(&members, i == 0 ? "" : ",", "\"k", i, "\":0");
  const double start = ThreadCpuSeconds();
  EXPECT_THAT(ChatError(absl::StrCat(", \"tools\": {", members, "}, \"tools\": []")).message,
              HasSubstr("more than 1024 members at tools"));
  EXPECT_LT(ThreadCpuSeconds() - start, 2);
  EXPECT_THAT(ChatError(R"(, "tools": {}, "tools": [])").message, HasSubstr("the key \"tools\" twice"));
  EXPECT_THAT(ChatError(R"(, "metadata": {"a": {"x": 1, "x": 2}})").message,
              HasSubstr("the key \"x\" twice in one object at metadata.a"));
  EXPECT_EQ(ChatError(R"(, "n": 1, "n": 2)").status, 400);
}

}  // namespace
}  // namespace aludel::completion_testing
