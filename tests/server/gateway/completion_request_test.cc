#include "server/gateway/completion_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
  EXPECT_EQ(request.sampling.temperature(), 1.0);
  EXPECT_EQ(request.sampling.top_p(), 0.0);
  EXPECT_EQ(request.sampling.max_tokens(), 0);
  EXPECT_FALSE(request.sampling.has_seed());
  EXPECT_FALSE(request.stream);
  EXPECT_EQ(request.fidelity, v1::FIDELITY_UNSPECIFIED);
}

TEST(CompletionRequest, ReadsEveryServedField) {
  const CompletionRequest request = Chat(
      R"(, "temperature": 0, "top_p": 0.5, "top_k": 7, "seed": -3, "stop": ["a", "b"], "max_tokens": 9,
      "stream": true, "stream_options": {"include_usage": true}, "user": "u",
      "aludel": {"fidelity": "exact", "format": "raw"})");
  EXPECT_EQ(request.sampling.temperature(), 0);
  EXPECT_EQ(request.sampling.top_p(), 0.5);
  EXPECT_EQ(request.sampling.top_k(), 7);
  EXPECT_EQ(request.sampling.seed(), static_cast<uint64_t>(-3));
  EXPECT_THAT(request.sampling.stop(), ElementsAre("a", "b"));
  EXPECT_EQ(request.sampling.max_tokens(), 9);
  EXPECT_TRUE(request.stream);
  EXPECT_TRUE(request.include_usage);
  EXPECT_EQ(request.fidelity, v1::FIDELITY_EXACT);
  EXPECT_EQ(request.format, "raw");
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
  EXPECT_EQ(request.sampling.temperature(), 1.0);
}

TEST(CompletionRequest, NamesTheParameterItDoesNotServe) {
  const std::pair<std::string, std::string> cases[] = {
      {R"("tools": [{"type": "function"}])", "tools"},
      {R"("tool_choice": "required")", "tool_choice"},
      {R"("response_format": {"type": "json_object"})", "response_format.type"},
      {R"("modalities": ["audio"])", "modalities"},
  };
  for (const auto& [field, param] : cases) {
    const ApiError error = ChatError(absl::StrCat(", ", field));
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.param, param);
    EXPECT_EQ(error.code, "unsupported_parameter");
    EXPECT_THAT(error.message, HasSubstr(param));
  }
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
      {R"("aludel": {"tier": 1})", "aludel.tier"},
      {R"("aludel": "exact")", "aludel"},
  };
  for (const auto& [field, param] : cases) {
    const ApiError error = ChatError(absl::StrCat(", ", field));
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.param, param) << field;
  }
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
       "messages[0].tool_calls"},
  };
  for (const auto& [body, param] : cases) EXPECT_EQ(BodyError(body).param, param) << body;
}

TEST(CompletionRequest, RefusesWhatIsNoJsonObject) {
  for (absl::string_view body :
       {"", "{", "[]", "7", "{\"model\": \"\xff\"}", "{\"model\": \"\\ud800\"}", "{} x"}) {
    EXPECT_THAT(BodyError(body).message, HasSubstr("JSON")) << body;
  }
  EXPECT_THAT(BodyError(R"({"model": )").message, HasSubstr("byte 11"));
}

TEST(CompletionRequest, SurvivesDeepNesting) {
  const std::string deep(200000, '[');
  EXPECT_EQ(BodyError(deep).status, 400);
  EXPECT_EQ(
      BodyError(absl::StrCat(R"({"model": "m", "messages": )", deep, std::string(200000, ']'), "}")).param,
      "messages[0]");
  EXPECT_EQ(ChatError(absl::StrCat(R"(, "stop": )", deep, std::string(200000, ']'))).param, "stop");
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

TEST(CompletionRequest, RefusesWhatPlainCompletionsAddAndWeDoNotServe) {
  for (const char* param : {"echo", "best_of", "suffix"}) {
    CompletionRequest request;
    const char* value = std::string(param) == "echo"     ? "true"
                        : std::string(param) == "suffix" ? "\"x\""
                                                         : "3";
    const auto error = ParseCompletionRequest(
        absl::StrCat(R"({"model": "m", "prompt": "a", ")", param, "\": ", value, "}"), &request);
    ASSERT_TRUE(error) << param;
    EXPECT_EQ(error->param, param);
  }
}

}  // namespace
}  // namespace aludel
