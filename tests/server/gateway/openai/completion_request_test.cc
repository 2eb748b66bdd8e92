#include "server/gateway/openai/completion_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "server/gateway/openai/sampling_fields.h"
#include "tests/testing/cpu_clock.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

CompletionRequest Chat(const std::string& fields) {
  CompletionRequest request;
  const auto error = ParseChatRequest(
      absl::StrCat(R"({"model": "m", "messages": [{"role": "user", "content": "hi"}])", fields, "}"),
      &request);
  EXPECT_FALSE(error) << error->message;
  return request;
}

ApiError ChatError(const std::string& fields) {
  CompletionRequest request;
  const auto error = ParseChatRequest(
      absl::StrCat(R"({"model": "m", "messages": [{"role": "user", "content": "hi"}])", fields, "}"),
      &request);
  EXPECT_TRUE(error) << fields;
  return error.value_or(ApiError{});
}

ApiError BodyError(absl::string_view body) {
  CompletionRequest request;
  const auto error = ParseChatRequest(body, &request);
  EXPECT_TRUE(error) << body;
  return error.value_or(ApiError{});
}

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
    {"echo", "true", "false"},
    {"best_of", "3", "1"},
    {"logits_processors", R"(["a.b"])", "[]"},
    {"guided_json", R"({"type": "object"})", R"("")"},
    {"guided_regex", R"("a+")", R"("")"},
    {"guided_choice", R"(["a", "b"])", "[]"},
    {"guided_grammar", R"("root ::= x")", R"("")"},
    {"structural_tag", R"("{}")", R"("")"},
    {"structured_outputs", R"({"regex": "a"})", "{}"},
    {"use_beam_search", "true", "false"},
    {"length_penalty", "0.8", "1.0"},
    {"early_stopping", "true", "false"},
    {"prompt_logprobs", "0", "false"},
    {"prompt_embeds", R"("AAAA")", R"("")"},
    {"skip_special_tokens", "false", "true"},
    {"return_tokens_as_token_ids", "true", "false"},
    {"kv_transfer_params", R"({"do_remote_decode": true})", "{}"},
    {"regex", R"("a+")", R"("")"},
    {"grammar", R"("root ::= x")", R"("")"},
    {"lora_path", R"("a")", R"("")"},
    {"n_predict", "5", "0"},
    {"typical_p", "0.5", "1.0"},
    {"mirostat", "2", "0"},
    {"dry_multiplier", "0.8", "0"},
    {"xtc_probability", "0.5", "0.0"},
    {"samplers", R"(["top_k"])", "[]"},
};

TEST(CompletionRequest, NamesTheParameterItDoesNotServe) {
  constexpr Unserved kOfChat[] = {
      {"functions", R"([{"name": "f"}])", "[]"},
      {"function_call", R"({"name": "f"})", R"("none")"},
      {"modalities", R"(["audio"])", R"(["text"])"},
      {"audio", R"({"voice": "x"})", "{}"},
      {"prediction", R"({"type": "content", "content": "a"})", "{}"},
      {"web_search_options", R"({"user_location": null})", "{}"},
      {"reasoning_effort", R"("high")", R"("none")"},
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
  };
  const auto parse = [](const std::string& fields) {
    CompletionRequest request;
    return ParseCompletionRequest(absl::StrCat(R"({"model": "m", "prompt": "a")", fields, "}"), &request);
  };
  for (const Unserved& field : kOfBoth) ExpectRefused(field, parse);
  for (const Unserved& field : kOfPlain) ExpectRefused(field, parse);
}

TEST(CompletionRequest, LeavesTheGenerationPromptToTheClient) {
  EXPECT_EQ(Chat("").template_arguments.count("add_generation_prompt"), 0);
  EXPECT_EQ(Chat(R"(, "add_generation_prompt": false)").template_arguments["add_generation_prompt"], false);
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
      {R"("stop": ["a", "b", "c", "d", "e"])", "stop"},
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
      {R"("tools": [{"type": "function", "function": {"name": "a"}}], "response_format": {"type": "json_object"})",
       "response_format"},
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
    EXPECT_EQ(request.prompt, text);
    EXPECT_EQ(request.sampling.max_tokens(), 16);
  }
  for (const char* prompt : {"[1, 2]", "[[1, 2]]"}) {
    CompletionRequest request;
    EXPECT_FALSE(ParseCompletionRequest(absl::StrCat(R"({"model": "m", "prompt": )", prompt, "}"), &request));
    EXPECT_THAT(request.prompt_ids, ElementsAre(1, 2));
  }
  for (const char* prompt : {"null", "[]", "[[]]", "[-1]", "[1.5]", "{}", R"(["a", "b"])", "[4294967296]"}) {
    CompletionRequest request;
    const auto error =
        ParseCompletionRequest(absl::StrCat(R"({"model": "m", "prompt": )", prompt, "}"), &request);
    ASSERT_TRUE(error) << prompt;
    EXPECT_EQ(error->param, "prompt");
  }
}

}  // namespace
}  // namespace aludel
