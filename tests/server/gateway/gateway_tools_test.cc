#include "server/gateway/gateway.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "runtime/files/stop_scope.h"
#include "tests/server/gateway/event.h"
#include "tests/server/gateway/fake_decode.h"
#include "tests/server/gateway/gateway_fixture.h"
#include "tests/server/gateway/plain_models.h"
#include "tests/server/http/raw_client.h"

namespace aludel::gateway_testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Of a call that does not close nothing is shown.
grpc::Status EndlessCall(grpc::ServerContext* context, const v1::GenerateRequest&,
                         FakeDecode::Writer* writer) {
  writer->Write(FakeDecode::Started());
  writer->Write(FakeDecode::Token("<tool_call>"));
  while (writer->Write(FakeDecode::Token("four"))) {
  }
  return context->IsCancelled() ? grpc::Status::CANCELLED : grpc::Status::OK;
}

TEST_F(GatewayTest, EndsAToolCallThatIsTooLongToBeKept) {
  FakeDecode decode(EndlessCall);
  StartGateway({&decode}, {.max_answer_bytes = 10000});
  const Answer call = Chat(R"(, "tools": [{"type": "function", "function": {"name": "weather"}}])");
  EXPECT_EQ(call.status, 422);
  EXPECT_THAT(call.body, HasSubstr("the answer is longer than the 10000 bytes"));
}

TEST_F(GatewayTest, EndsAStreamWhoseToolCallIsTooLongToBeKept) {
  FakeDecode decode(EndlessCall);
  StartGateway({&decode}, {.max_answer_bytes = 10000});
  const Answer call =
      Chat(R"(, "stream": true, "tools": [{"type": "function", "function": {"name": "weather"}}])");
  EXPECT_EQ(call.status, 200);
  ASSERT_FALSE(call.Events().empty());
  EXPECT_THAT(
      call.Events().back(),
      HasSubstr("the answer is longer than the 10000 bytes that this gateway keeps of what may become "
                "a tool call, after 2502 tokens of 1 choice"));
  router_->AwaitCalls();
}

grpc::Status CallsWeather(grpc::ServerContext*, const v1::GenerateRequest& request,
                          FakeDecode::Writer* writer) {
  writer->Write(FakeDecode::Started());
  for (const char* text : {"Well", ".<tool", "_call>{\"name\": \"weather\", ",
                           "\"arguments\": {\"b\": 1, \"a\": 2}}", "</tool_call>"}) {
    writer->Write(FakeDecode::Token(text));
  }
  writer->Write(FakeDecode::Finished(request, 5));
  return grpc::Status::OK;
}

TEST_F(GatewayTest, GivesToolsToTheTemplateAndReadsCallsBack) {
  FakeDecode decode(CallsWeather);
  StartGateway({&decode});
  const std::string tools = R"(, "tools": [{"type": "function", "function": {"name": "weather"}}])";
  const json whole = Chat(tools).Json();
  EXPECT_THAT(decode.last_request().prompt(),
              ElementsAre('w', 'e', 'a', 't', 'h', 'e', 'r', '!', 'h', 'i', '|'));
  EXPECT_FALSE(decode.last_request().has_constraint());
  const json& choice = whole["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "Well.");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1);
  EXPECT_EQ(choice["message"]["tool_calls"][0]["type"], "function");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "weather");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], R"({"b":1,"a":2})");

  std::string text;
  json call;
  for (const std::string& event : Chat(tools + R"(, "stream": true)").Events()) {
    if (event == "[DONE]") break;
    const json delta = json::parse(event)["choices"][0]["delta"];
    if (delta.contains("content") && !delta["content"].is_null()) text += delta["content"].get<std::string>();
    if (delta.contains("tool_calls")) call = delta["tool_calls"][0];
  }
  EXPECT_EQ(text, "Well.");
  EXPECT_EQ(call["index"], 0);
  EXPECT_EQ(call["function"]["arguments"], R"({"b":1,"a":2})");

  Chat(tools + R"(, "tool_choice": "required")");
  EXPECT_EQ(decode.last_request().constraint().prefix(), "<tool_call>\n");
  const json none = Chat(tools + R"(, "tool_choice": "none")").Json();
  EXPECT_THAT(none["choices"][0]["message"]["content"].get<std::string>(), HasSubstr("<tool_call>"));
  EXPECT_THAT(decode.last_request().prompt(), ElementsAre('h', 'i', '|'));
}

TEST_F(GatewayTest, AFormatBesideToolsIsACallOrATextOfIt) {
  FakeDecode decode(CallsWeather);
  StartGateway({&decode});
  const std::string both =
      R"(, "response_format": {"type": "json_object"}, "tools": [{"type": "function", "function": {"name": "weather"}}])";
  const json called = Chat(both).Json()["choices"][0];
  EXPECT_EQ(called["message"]["tool_calls"][0]["function"]["name"], "weather");
  const v1::TextConstraint either = decode.last_request().constraint();
  EXPECT_EQ(either.json_schema(), R"({"type":"object"})");
  EXPECT_EQ(either.prefix(), "");
  EXPECT_EQ(either.call_prefix(), "<tool_call>\n");
  EXPECT_THAT(either.call_schema(), HasSubstr("\"const\":\"weather\""));
  EXPECT_EQ(Chat(both + R"(, "tool_choice": "required")").status, 200);
  EXPECT_EQ(decode.last_request().constraint().call_schema(), "");
  EXPECT_EQ(decode.last_request().constraint().prefix(), "<tool_call>\n");
  EXPECT_EQ(Chat(both + R"(, "tool_choice": "none")").status, 200);
  EXPECT_EQ(decode.last_request().constraint().call_schema(), "");
  EXPECT_EQ(decode.last_request().constraint().json_schema(), R"({"type":"object"})");
  // What of the two cannot be enforced is named.
  const std::string pattern = R"({"type": "object", "properties": {"a": {"pattern": "("}}})";
  const Answer of_tool = Chat(absl::StrCat(
      R"(, "guided_choice": ["a"], "tools": [{"type": "function", "function": {"name": "f", "parameters": )",
      pattern, "}}]"));
  EXPECT_EQ(of_tool.status, 400);
  EXPECT_EQ(of_tool.error_param(), "tools");
  const Answer of_format = Chat(absl::StrCat(
      R"(, "guided_json": )", pattern, R"(, "tools": [{"type": "function", "function": {"name": "f"}}])"));
  EXPECT_EQ(of_format.error_param(), "guided_json");
}

TEST_F(GatewayTest, AllowedToolsAreThoseThatACallMayName) {
  FakeDecode decode(CallsWeather);
  StartGateway({&decode});
  const auto ask = [this](const char* mode, const char* name) {
    return Chat(absl::StrCat(
        R"(, "tools": [{"type": "function", "function": {"name": "weather"}},
           {"type": "function", "function": {"name": "clock"}}],
           "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": ")",
        mode, R"(", "tools": [{"type": "function", "function": {"name": ")", name, "\"}}]}}"));
  };
  EXPECT_EQ(ask("auto", "weather").Json()["choices"][0]["message"]["tool_calls"].size(), 1);
  const json other = ask("auto", "clock").Json()["choices"][0]["message"];
  EXPECT_FALSE(other.contains("tool_calls"));
  EXPECT_THAT(other["content"].get<std::string>(), HasSubstr("<tool_call>"));
  ask("required", "clock");
  EXPECT_THAT(decode.last_request().constraint().json_schema(), HasSubstr("clock"));
  EXPECT_THAT(decode.last_request().constraint().json_schema(), Not(HasSubstr("weather")));
}

TEST_F(GatewayTest, FingerprintsTellTheServersNumerics) {
  std::string fingerprints[2];
  for (int i = 0; i < 2; ++i) {
    FakeDecode decode(FakeDecode::Hello, "chat", "", i == 0 ? "fake" : "other");
    StartGateway({&decode});
    const json whole = Chat("").Json();
    fingerprints[i] = whole["system_fingerprint"];
    EXPECT_THAT(fingerprints[i], StartsWith("fp_"));
    EXPECT_EQ(Chat("").Json()["system_fingerprint"], fingerprints[i]);
    EXPECT_EQ(json::parse(Chat(R"(, "stream": true)").Events()[0])["system_fingerprint"], fingerprints[i]);
    server_.reset();
    gateway_.reset();
    router_.reset();
  }
  EXPECT_NE(fingerprints[0], fingerprints[1]);
}

// A call that comes in two pieces, kPause apart, and nothing before it. Half of that may pass before a busy
// machine lets the gateway look.
constexpr absl::Duration kPause = absl::Milliseconds(400);
grpc::Status CallsSlowly(grpc::ServerContext*, const v1::GenerateRequest& request,
                         FakeDecode::Writer* writer) {
  writer->Write(FakeDecode::Started());
  writer->Write(FakeDecode::Token("<tool_call>{\"name\": "));
  absl::SleepFor(kPause);
  writer->Write(FakeDecode::Token("\"weather\"}</tool_call>"));
  writer->Write(FakeDecode::Finished(request, 2));
  return grpc::Status::OK;
}

TEST_F(GatewayTest, AnAnswerThatIsACallHasNoContent) {
  FakeDecode decode(CallsSlowly);
  StartGateway({&decode});
  const std::string tools = R"(, "tools": [{"type": "function", "function": {"name": "weather"}}])";
  EXPECT_TRUE(Chat(tools).Json()["choices"][0]["message"].at("content").is_null());
  const std::vector<std::string> events = Chat(tools + R"(, "stream": true)").Events();
  const json first = json::parse(events[0])["choices"][0]["delta"];
  EXPECT_EQ(first["role"], "assistant");
  EXPECT_TRUE(first.at("content").is_null());
  for (size_t i = 1; i + 1 < events.size(); ++i) {
    EXPECT_FALSE(json::parse(events[i])["choices"][0]["delta"].contains("content")) << events[i];
  }
  EXPECT_EQ(json::parse(Chat(R"(, "stream": true)").Events()[0])["choices"][0]["delta"]["content"], "");
}

grpc::Status CutsACall(grpc::ServerContext*, const v1::GenerateRequest& request, FakeDecode::Writer* writer) {
  writer->Write(FakeDecode::Started());
  writer->Write(FakeDecode::Token("<tool_call>\n{ \"name\": \"weather\", "));
  writer->Write(FakeDecode::Token("\"arguments\": {\"place\": \"Par"));
  v1::GenerateEvent event = FakeDecode::Finished(request, 2);
  event.mutable_finished()->set_reason("length");
  writer->Write(event);
  return grpc::Status::OK;
}

TEST_F(GatewayTest, ARequiredCallThatIsCutOffIsACallWithTheArgumentsSoFar) {
  FakeDecode decode(CutsACall);
  StartGateway({&decode});
  const std::string tools =
      R"(, "tool_choice": "required", "tools": [{"type": "function", "function": {"name": "weather"}}])";
  const json choice = Chat(tools).Json()["choices"][0];
  EXPECT_TRUE(choice["message"]["content"].is_null());
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"place\": \"Par");
  EXPECT_EQ(choice["finish_reason"], "length");
  const std::vector<std::string> events = Chat(tools + R"(, "stream": true)").Events();
  ASSERT_EQ(events.size(), 4);
  const json call = json::parse(events[1])["choices"][0]["delta"];
  EXPECT_EQ(call["tool_calls"][0]["function"]["name"], "weather");
  EXPECT_FALSE(call.contains("content"));
  EXPECT_EQ(json::parse(events[2])["choices"][0]["finish_reason"], "length");
}

TEST_F(GatewayTest, WhatIsGeneratedWhileTextIsHeldBackIsAStageOfItsOwn) {
  FakeDecode decode(CallsSlowly);
  StartGateway({&decode});
  const std::string tools = R"(, "tools": [{"type": "function", "function": {"name": "weather"}}])";
  const std::vector<std::string> events = Chat(tools + R"(, "stream": true)").Events();
  for (const json& report :
       {Chat(tools).Json()["aludel"], json::parse(events[events.size() - 2])["aludel"]}) {
    EXPECT_GE(report["stages"]["held"].get<double>(), absl::ToDoubleSeconds(kPause / 2));
    EXPECT_LT(report["stages"]["gateway"].get<double>(), absl::ToDoubleSeconds(kPause / 2));
    double sum = 0;
    for (const auto& stage : report["stages"]) sum += stage.get<double>();
    EXPECT_NEAR(sum, report["ttft"].get<double>(), 1e-9);
  }
  const auto value_of = [this](const std::string& sample) {
    const std::string metrics = Get("/metrics").body;
    const size_t name = metrics.find(absl::StrCat("\n", sample, "{"));
    return name == std::string::npos ? 0.0 : std::stod(metrics.substr(metrics.find('}', name) + 1));
  };
  ASSERT_EQ(value_of("aludel_request_decode_time_seconds_count"), 2);
  // What the model made is the decode phase, shown or not.
  EXPECT_GE(value_of("aludel_request_decode_time_seconds_sum"), absl::ToDoubleSeconds(kPause));
  EXPECT_LT(value_of("aludel_request_prefill_time_seconds_sum"), absl::ToDoubleSeconds(kPause));
}

}  // namespace
}  // namespace aludel::gateway_testing
