#include "server/gateway/openapi/openapi.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "server/gateway/openai/chat_messages.h"
#include "server/gateway/openapi/docs_page.h"
#include "server/gateway/routes.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;

const ordered_json& Body(const char* path) {
  return OpenApi()["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
}

bool TakesBody(const std::string& method, const std::string& path) {
  return method == "post" && path != "/reset_prefix_cache";
}

TEST(OpenApi, HasEveryRoute) {
  EXPECT_EQ(OpenApi()["openapi"], "3.1.0");
  EXPECT_EQ(OpenApi()["paths"].size(), Routes().size());
  for (const auto& [path, methods] : OpenApi()["paths"].items()) {
    EXPECT_FALSE(methods.empty()) << path;
    for (const auto& [method, operation] : methods.items()) {
      EXPECT_GT(operation.value("summary", "").size(), 8u) << path;
      for (const char* status : {"200", "400", "503"}) {
        EXPECT_TRUE(operation["responses"].contains(status)) << path << " " << status;
      }
      EXPECT_EQ(operation["responses"].contains("401"), operation.contains("security")) << path;
      EXPECT_FALSE(operation["responses"].contains("500")) << path;
      EXPECT_FALSE(operation["responses"].contains("default")) << path;
      EXPECT_EQ(operation.contains("requestBody"), TakesBody(method, path)) << path;
      const bool bare = TakesBody(method, path) && Body(path.c_str())["properties"].empty();
      EXPECT_FALSE(bare) << path;
      for (const auto& [status, answer] : operation["responses"].items()) {
        if (!answer.contains("content")) continue;
        for (const auto& [type, content] : answer["content"].items()) {
          EXPECT_FALSE(content["schema"].empty()) << path << " " << status << " " << type;
        }
      }
    }
  }
  EXPECT_TRUE(OpenApi()["paths"].contains("/v1/models/{id}"));
  EXPECT_TRUE(OpenApi()["paths"]["/v1/models"]["get"].contains("security"));
  EXPECT_FALSE(OpenApi()["paths"]["/health"]["get"].contains("security"));
}

TEST(OpenApi, SaysOfEveryOperationWhatItIs) {
  for (const auto& [path, operations] : OpenApi()["paths"].items()) {
    for (const auto& [method, operation] : operations.items()) {
      EXPECT_NE(operation["summary"], "") << method << " " << path;
      EXPECT_EQ(operation.contains("requestBody"), TakesBody(method, path)) << path;
      EXPECT_TRUE(!TakesBody(method, path) ||
                  operation["requestBody"]["content"]["application/json"]["schema"].contains("properties"))
          << path;
    }
  }
  EXPECT_TRUE(OpenApi()["paths"]["/v1/responses/{id}"].contains("delete"));
}

TEST(OpenApi, OtherDialectsNameTheirOwnFields) {
  const ordered_json& messages = Body("/v1/messages");
  EXPECT_EQ(messages["required"], ordered_json::array({"messages", "max_tokens", "model"}));
  for (const char* name :
       {"system", "stop_sequences", "tools", "tool_choice", "output_config", "top_k", "aludel"}) {
    EXPECT_TRUE(messages["properties"].contains(name)) << name;
  }
  EXPECT_EQ(Body("/v1/messages/count_tokens")["required"], ordered_json::array({"messages", "model"}));
  const ordered_json& responses = Body("/v1/responses");
  EXPECT_EQ(responses["required"], ordered_json::array({"model", "input"}));
  for (const char* name :
       {"instructions", "previous_response_id", "store", "text", "max_output_tokens", "metadata"}) {
    EXPECT_TRUE(responses["properties"].contains(name)) << name;
  }
  // What a dialect refuses it does not name, although other dialects read it.
  for (const char* name : {"n", "stop", "logprobs", "prompt_logprobs", "response_format"}) {
    EXPECT_FALSE(messages["properties"].contains(name)) << name;
  }
  EXPECT_FALSE(responses["properties"].contains("n"));
  const ordered_json& refusal = OpenApi()["paths"]["/v1/messages"]["post"]["responses"]["400"];
  EXPECT_THAT(refusal.dump(), HasSubstr("AnthropicError"));
}

TEST(OpenApi, FieldsAreWhatTheParsersRead) {
  const ordered_json& plain = Body("/v1/completions");
  EXPECT_EQ(plain["required"], ordered_json::array({"model", "prompt"}));
  EXPECT_EQ(plain["properties"]["temperature"],
            ordered_json::parse(R"({"type": ["number", "null"], "minimum": 0.0, "maximum": 2.0})"));
  EXPECT_EQ(plain["properties"]["echo"], ordered_json::parse(R"({"type": ["boolean", "null"]})"));
  EXPECT_EQ(plain["properties"]["model"], ordered_json::parse(R"({"type": "string"})"));
  EXPECT_EQ(plain["properties"]["prompt"]["anyOf"][2]["maxItems"], 256);
  EXPECT_EQ(plain["properties"]["stream_options"]["properties"]["include_usage"]["type"][0], "boolean");
  EXPECT_EQ(plain["properties"]["aludel"]["additionalProperties"], false);
  EXPECT_EQ(plain["properties"]["aludel"]["properties"]["timeout_ms"]["minimum"], 1);
  EXPECT_EQ(plain["properties"]["aludel"]["properties"]["workflow"]["required"],
            ordered_json::array({"id", "agent"}));
  const ordered_json& chat = Body("/v1/chat/completions");
  EXPECT_EQ(chat["required"], ordered_json::array({"messages", "model"}));
  for (const char* name : {"tools", "tool_choice", "top_logprobs", "max_completion_tokens",
                           "chat_template_kwargs", "seed", "logit_bias", "stop", "response_format",
                           "allowed_token_ids", "bad_words", "cache_salt", "prompt_cache_key"}) {
    EXPECT_TRUE(chat["properties"].contains(name)) << name;
  }
  EXPECT_FALSE(chat["properties"].contains("echo"));
  EXPECT_TRUE(Body("/tokenize")["properties"].contains("return_token_strs"));
  EXPECT_EQ(Body("/detokenize")["required"], ordered_json::array({"model", "tokens"}));
}

TEST(OpenApi, MessagesAreThoseThatTheParserTakes) {
  const ordered_json& kinds = Body("/v1/chat/completions")["properties"]["messages"]["items"]["anyOf"];
  ASSERT_EQ(kinds.size(), 5);
  EXPECT_EQ(kinds[0]["properties"]["role"]["enum"],
            ordered_json::parse(R"(["system", "developer", "user"])"));
  const char* const kMessages[] = {
      R"({"role": "user", "content": [{"type": "text", "text": "a"}]})",
      R"({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "tool_calls": null})",
      R"({"role": "assistant", "content": null,
          "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]})",
      R"({"role": "assistant", "refusal": "no"})",
      R"({"role": "tool", "content": "4", "tool_call_id": "1", "name": "f"})",
  };
  for (size_t i = 0; i < kinds.size(); ++i) {
    const ordered_json message = ordered_json::parse(kMessages[i]);
    ordered_json parsed = ordered_json::array();
    EXPECT_FALSE(ParseMessages(ordered_json::array({message}), &parsed)) << kMessages[i];
    for (const auto& [name, value] : message.items())
      EXPECT_TRUE(kinds[i]["properties"].contains(name)) << name;
    // Without what the schema requires, the parser refuses it, too.
    for (const auto& name : kinds[i]["required"]) {
      ordered_json lacking = message;
      lacking.erase(name.get<std::string>());
      EXPECT_TRUE(ParseMessages(ordered_json::array({lacking}), &parsed)) << i << " without " << name;
    }
  }
}

void CollectReferences(const ordered_json& value, std::set<std::string>* references) {
  if (!value.is_structured()) return;
  for (const auto& [name, member] : value.items()) {
    if (name == "$ref") references->insert(member.get<std::string>());
    CollectReferences(member, references);
  }
}

TEST(OpenApi, ReferencesLeadSomewhere) {
  std::set<std::string> references;
  CollectReferences(OpenApi(), &references);
  EXPECT_GT(references.size(), 10u);
  for (const std::string& reference : references) {
    EXPECT_TRUE(OpenApi().contains(ordered_json::json_pointer(reference.substr(1)))) << reference;
  }
}

TEST(OpenApi, IsAPageWithoutScript) {
  const HttpResponse page = DocsPage();
  EXPECT_THAT(page.body, HasSubstr("POST /v1/completions"));
  EXPECT_THAT(page.body, HasSubstr("<code>prompt_logprobs</code>"));
  EXPECT_EQ(page.body.find("<script"), std::string::npos);
  EXPECT_THAT(page.headers[0].value, HasSubstr("default-src 'none'"));
}

}  // namespace
}  // namespace aludel
