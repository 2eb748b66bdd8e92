#include "server/gateway/responses/responses_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;
using ::testing::ElementsAre;

// Members of an object.
std::string Pairs(int count) {
  std::string pairs;
  for (int i = 0; i < count; ++i) absl::StrAppend(&pairs, i == 0 ? "" : ", ", "\"k", i, "\": \"v\"");
  return pairs;
}

class ResponsesRequestTest : public ::testing::Test {
 protected:
  std::optional<ApiError> Parse(const std::string& fields) {
    request_ = std::make_unique<CompletionRequest>();
    responses_ = {};
    return ParseResponsesRequest(absl::StrCat(R"({"model": "m")", fields, "}"), context_, request_.get(),
                                 &responses_);
  }
  const CompletionRequest& Parsed(const std::string& fields) {
    const auto error = Parse(fields);
    EXPECT_FALSE(error) << error->message;
    return *request_;
  }

  ordered_json Repeats() const { return ordered_json::parse(responses_.repeats); }

  ResponseStore store_{ResponseStore::Options{}};
  ResponsesContext context_{.store = &store_, .client = "ann"};
  std::unique_ptr<CompletionRequest> request_;
  ResponsesRequest responses_;
};

TEST_F(ResponsesRequestTest, AnAnswerThatIsNotKeptSaysNothingOfCaches) {
  EXPECT_FALSE(Parsed(R"(, "input": "hi", "store": false)").no_store);
  EXPECT_FALSE(responses_.store);
  EXPECT_TRUE(request_->no_capture);
  EXPECT_FALSE(Parsed(R"(, "input": "hi")").no_capture);
  EXPECT_TRUE(Parsed(R"(, "input": "hi", "aludel": {"store": false})").no_store);
}

TEST_F(ResponsesRequestTest, ReadsAStringAndInstructions) {
  const CompletionRequest& request = Parsed(
      R"(, "instructions": "Be brief.", "input": "hi", "max_output_tokens": 7, "metadata": {"a": "b"})");
  EXPECT_EQ(request.messages, ordered_json::parse(R"([{"role": "system", "content": "Be brief."},
                                                      {"role": "user", "content": "hi"}])"));
  EXPECT_EQ(request.sampling.max_tokens(), 7);
  EXPECT_EQ(request.max_tokens_param, "max_output_tokens");
  EXPECT_EQ(request.prompt_param, "input");
  EXPECT_EQ(responses_.instructions, 1);
  EXPECT_TRUE(responses_.store);
  EXPECT_EQ(Repeats()["instructions"], "Be brief.");
  EXPECT_EQ(Repeats()["metadata"]["a"], "b");
  EXPECT_EQ(Repeats()["text"]["format"]["type"], "text");
}

TEST_F(ResponsesRequestTest, ReadsItems) {
  EXPECT_EQ(
      Parsed(R"(, "input": [
      {"role": "developer", "content": "Be kind."},
      {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
      {"type": "reasoning", "id": "rs", "summary": []},
      {"type": "message", "id": "msg", "status": "completed", "role": "assistant",
       "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
      {"type": "function_call", "id": "fc", "call_id": "c1", "name": "look", "arguments": "{\"b\": 1, \"a\": 2}"},
      {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{"},
      {"type": "function_call_output", "call_id": "c1", "output": "seen"},
      {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "no"}]}])")
          .messages,
      ordered_json::parse(R"([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "ab"},
      {"role": "assistant", "content": "I look.", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"b": 1, "a": 2}}},
        {"id": "c2", "type": "function", "function": {"name": "look", "arguments": "{"}}]},
      {"role": "tool", "content": "seen", "tool_call_id": "c1"},
      {"role": "tool", "content": "no", "tool_call_id": "c2"}])"));
}

TEST_F(ResponsesRequestTest, GivesToolsTheFormThatTemplatesKnow) {
  const std::string tools = R"(, "input": "hi", "tools": [
      {"type": "function", "name": "look", "description": "d", "parameters": {"type": "object"}, "strict": true},
      {"type": "function", "name": "wait"}])";
  EXPECT_EQ(Parsed(tools).tools.list[0],
            ordered_json::parse(R"({"type": "function", "function": {"name": "look", "description": "d",
                                    "parameters": {"type": "object"}, "strict": true}})"));
  EXPECT_EQ(Repeats()["tools"][0]["name"], "look");
  EXPECT_THAT(Parsed(tools + R"(, "tool_choice": {"type": "function", "name": "wait"})").tools.names,
              ElementsAre("wait"));
  const Tools allowed = Parsed(tools + R"(, "tool_choice": {"type": "allowed_tools", "mode": "auto",
                                            "tools": [{"type": "function", "name": "wait"}]})")
                            .tools;
  EXPECT_THAT(allowed.names, ElementsAre("wait"));
  EXPECT_EQ(allowed.list.size(), 2);
  EXPECT_EQ(allowed.choice, Tools::Choice::kAuto);
  EXPECT_FALSE(Parsed(tools + R"(, "parallel_tool_calls": false)").tools.parallel);
}

TEST_F(ResponsesRequestTest, EnforcesAFormatOfTheText) {
  const CompletionRequest& request =
      Parsed(R"(, "input": "hi", "text": {"format": {"type": "json_schema", "name": "n",
      "strict": true, "schema": {"type": "object"}}})");
  EXPECT_EQ(request.constraint->json_schema(), R"({"type":"object"})");
  EXPECT_EQ(request.format_name, "n");
  EXPECT_TRUE(Parsed(R"(, "input": "hi", "text": {"format": {"type": "json_object"}})").constraint);
  EXPECT_FALSE(Parsed(R"(, "input": "hi", "text": {"format": {"type": "text"}})").constraint);
}

TEST_F(ResponsesRequestTest, GoesOnFromAStoredAnswerWithoutItsInstructions) {
  store_.Put("ann", "resp_1",
             {.messages = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])"},
             context_.now);
  const std::string ask = R"(, "instructions": "x", "input": "c", "previous_response_id": "resp_1")";
  EXPECT_EQ(Parsed(ask).messages,
            ordered_json::parse(R"([{"role": "system", "content": "x"}, {"role": "user", "content": "a"},
                                    {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}])"));
  context_.client = "bob";
  EXPECT_EQ(Parse(ask)->code, "previous_response_not_found");
  context_.client = "ann";
  context_.max_carried = 10;
  EXPECT_EQ(Parse(ask)->param, "previous_response_id");
}

TEST_F(ResponsesRequestTest, FindsItemsThatAreReferredTo) {
  store_.Put(
      "ann", "resp_1",
      {.items = {{"fc_1", R"({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"})"}}},
      context_.now);
  const std::string ask = R"(, "input": [{"type": "item_reference", "id": "fc_1"},
                                         {"type": "function_call_output", "call_id": "c", "output": "x"}])";
  EXPECT_EQ(Parsed(ask).messages[0]["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(Parse(R"(, "input": [{"type": "item_reference", "id": "fc_2"}])")->param, "input[0].id");
  context_.max_carried = 60;
  EXPECT_EQ(Parse(R"(, "input": [{"type": "item_reference", "id": "fc_1"}])")->param, "input");
}

TEST_F(ResponsesRequestTest, TakesAsMuchMetadataAsOpenAi) {
  Parsed(absl::StrCat(R"(, "input": "hi", "user": "u", "metadata": {)", Pairs(16), "}"));
  EXPECT_EQ(Repeats()["metadata"].size(), 16);
  EXPECT_EQ(Repeats()["user"], "u");
}

TEST_F(ResponsesRequestTest, AllowsNoMoreToolsThanThereMayBe) {
  const std::string tools = R"(, "input": "hi", "tools": [{"type": "function", "name": "wait"}],
      "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [)";
  const auto wait = [](int count) {
    std::string list;
    for (int i = 0; i < count; ++i) {
      absl::StrAppend(&list, i == 0 ? "" : ", ", R"({"type": "function", "name": "wait"})");
    }
    return list + "]}";
  };
  EXPECT_THAT(Parsed(tools + wait(kMaxTools)).tools.names, ElementsAre("wait"));
  EXPECT_EQ(Parse(tools + wait(kMaxTools + 1))->param, "tool_choice");
}

TEST_F(ResponsesRequestTest, SaysSoWhereNothingIsKept) {
  ResponseStore none({.max_responses = 0});
  context_.store = &none;
  EXPECT_EQ(Parse(R"(, "input": "c", "previous_response_id": "resp_1")")->code, "unsupported_parameter");
  Parsed(R"(, "input": "c")");
  EXPECT_FALSE(responses_.store);
}

TEST_F(ResponsesRequestTest, NamesWhatItRefuses) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "input"},
      {R"(, "input": [])", "input"},
      {R"(, "input": [3])", "input[0]"},
      {R"(, "input": [{"type": "reasoning"}])", "input"},
      {R"(, "input": [{"role": "tool", "content": "x"}])", "input[0].role"},
      {R"(, "input": [{"role": "user"}])", "input[0].content"},
      {R"(, "input": [{"role": "user", "content": [{"type": "input_image"}]}])", "input[0].content[0].type"},
      {R"(, "input": [{"role": "user", "content": [{"type": "input_text"}]}])", "input[0].content[0].text"},
      {R"(, "input": [{"type": "web_search_call"}])", "input[0].type"},
      {R"(, "input": [{"type": "function_call", "name": "f"}])", "input[0].call_id"},
      {R"(, "input": [{"type": "function_call_output", "call_id": "c"}])", "input[0].output"},
      {R"(, "input": "hi", "instructions": ["x"])", "instructions"},
      {R"(, "input": "hi", "tools": [{"type": "web_search"}])", "tools[0].type"},
      {R"(, "input": "hi", "tools": [{"type": "function", "name": ""}])", "tools[0].name"},
      {R"(, "input": "hi", "tools": [{"type": "function", "name": "f", "parameters": 3}])",
       "tools[0].parameters"},
      {R"(, "input": "hi", "tool_choice": {"type": "file_search"})", "tool_choice"},
      {R"(, "input": "hi", "tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "allowed_tools"})",
       "tool_choice"},
      {R"(, "input": "hi", "text": {"format": {"type": "xml"}})", "text.format.type"},
      {R"(, "input": "hi", "text": {"format": {"type": "json_schema"}})", "text.format.schema"},
      {R"(, "input": "hi", "text": {"verbosity": "low"})", "text.verbosity"},
      {R"(, "input": "hi", "background": true)", "background"},
      {R"(, "input": "hi", "conversation": "conv_1")", "conversation"},
      {R"(, "input": "hi", "include": ["file_search_call.results"])", "include"},
      {R"(, "input": "hi", "reasoning": {"effort": "much"})", "reasoning.effort"},
      {R"(, "input": "hi", "truncation": "auto")", "truncation"},
      {R"(, "input": "hi", "max_output_tokens": 0)", "max_output_tokens"},
      {R"(, "input": "hi", "max_tokens": 3)", "max_tokens"},
      {R"(, "input": "hi", "previous_response_id": 3)", "previous_response_id"},
      {R"(, "input": "hi", "user": {"a": 1})", "user"},
      {R"(, "input": "hi", "metadata": {"a": 1})", "metadata"},
      {absl::StrCat(R"(, "input": "hi", "metadata": {")", std::string(65, 'k'), R"(": "v"})"), "metadata"},
      {absl::StrCat(R"(, "input": "hi", "metadata": {"k": ")", std::string(513, 'v'), R"("})"), "metadata"},
      {absl::StrCat(R"(, "input": "hi", "metadata": {)", Pairs(17), "}"), "metadata"},
  };
  for (const auto& [fields, param] : cases) {
    const auto error = Parse(fields);
    ASSERT_TRUE(error) << fields;
    EXPECT_EQ(error->status, 400) << fields;
    EXPECT_EQ(error->param, param) << fields << ": " << error->message;
  }
}

}  // namespace
}  // namespace aludel
