// POST /v1/messages over HTTP, in front of a scripted decode server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/server/gateway/fake_decode.h"
#include "tests/server/gateway/gateway_fixture.h"

namespace aludel::gateway_testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kTools[] =
    R"(, "tools": [{"name": "weather", "description": "d", "input_schema": {"type": "object"}}])";

class GatewayMessagesTest : public GatewayTest {
 protected:
  Answer Messages(const std::string& fields, const std::string& headers = "",
                  const std::string& path = "/v1/messages") {
    return Send(
        "POST", path,
        absl::StrCat(R"({"model": "chat", "max_tokens": 20, "messages": [{"role": "user", "content": "hi"}])",
                     fields, "}"),
        headers);
  }

  // The data of each event, whose type is the event's name.
  static std::vector<json> Events(const Answer& answer) {
    std::vector<json> events;
    for (const std::string& event :
         std::vector<std::string>(absl::StrSplit(answer.body, "\n\n", absl::SkipEmpty()))) {
      const std::vector<std::string> lines = absl::StrSplit(event, '\n');
      EXPECT_EQ(lines.size(), 2) << event;
      events.push_back(json::parse(lines.back().substr(6)));
      EXPECT_EQ(lines[0], absl::StrCat("event: ", events.back()["type"].get<std::string>()));
    }
    return events;
  }

  static std::vector<std::string> Types(const std::vector<json>& events) {
    std::vector<std::string> types;
    for (const json& event : events) types.push_back(event["type"]);
    return types;
  }
};

TEST_F(GatewayMessagesTest, AnswersWithAMessage) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  const Answer answer = Messages("");
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.head, HasSubstr("\r\nrequest-id: "));
  EXPECT_THAT(answer.head, HasSubstr("x-aludel-plan: remote"));
  const json body = answer.Json();
  EXPECT_THAT(body["id"].get<std::string>(), StartsWith("msg_"));
  EXPECT_EQ(body["type"], "message");
  EXPECT_EQ(body["role"], "assistant");
  EXPECT_EQ(body["content"], json::parse(R"([{"type": "text", "text": "Hello wörld!"}])"));
  EXPECT_EQ(body["stop_reason"], "end_turn");
  EXPECT_TRUE(body["stop_sequence"].is_null());
  EXPECT_EQ(body["usage"]["input_tokens"], 3);
  EXPECT_EQ(body["usage"]["output_tokens"], 3);
  EXPECT_EQ(body["aludel"]["plan"], "remote");
  EXPECT_THAT(decode.last_request().prompt(), ElementsAre('h', 'i', '|'));
  EXPECT_EQ(decode.last_request().sampling().max_tokens(), 20);
}

TEST_F(GatewayMessagesTest, StreamsEventsInTheirOrder) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  const std::vector<json> events = Events(Messages(R"(, "stream": true)", "", "/v1/messages?beta=true"));
  EXPECT_THAT(Types(events), ElementsAre("message_start", "ping", "content_block_start",
                                         "content_block_delta", "content_block_delta", "content_block_delta",
                                         "content_block_stop", "message_delta", "message_stop"));
  EXPECT_EQ(events[0]["message"]["usage"]["input_tokens"], 3);
  EXPECT_TRUE(events[0]["message"]["stop_reason"].is_null());
  EXPECT_EQ(events[3]["delta"]["text"], "Hello");
  EXPECT_EQ(events[3]["delta"]["type"], "text_delta");
  EXPECT_EQ(events[7]["delta"]["stop_reason"], "end_turn");
  EXPECT_EQ(events[7]["usage"]["output_tokens"], 3);
}

grpc::Status CallsWeather(grpc::ServerContext*, const v1::GenerateRequest& request,
                          FakeDecode::Writer* writer) {
  v1::GenerateEvent started = FakeDecode::Started();
  started.mutable_started()->set_cached_tokens(2);
  writer->Write(started);
  for (const char* text :
       {"Well", ".<tool", "_call>{\"name\": \"weather\", \"arguments\": {\"b\": 1, \"a\": 2}}",
        "</tool_call>"}) {
    writer->Write(FakeDecode::Token(text));
  }
  writer->Write(FakeDecode::Finished(request, 5));
  return grpc::Status::OK;
}

TEST_F(GatewayMessagesTest, AnswersWithToolUse) {
  FakeDecode decode(CallsWeather);
  StartGateway({&decode});
  const Answer answer = Messages(kTools);
  const json body = answer.Json();
  ASSERT_EQ(body["content"].size(), 2);
  EXPECT_EQ(body["content"][0]["text"], "Well.");
  EXPECT_EQ(body["content"][1]["type"], "tool_use");
  EXPECT_EQ(body["content"][1]["name"], "weather");
  EXPECT_THAT(answer.body, HasSubstr(R"("input":{"b":1,"a":2})"));
  EXPECT_EQ(body["stop_reason"], "tool_use");
  // "weather!hi|", two of whose tokens were cached.
  EXPECT_EQ(body["usage"]["input_tokens"], 9);
  EXPECT_EQ(body["usage"]["cache_read_input_tokens"], 2);

  const std::vector<json> events = Events(Messages(absl::StrCat(kTools, R"(, "stream": true)")));
  const std::vector<json> blocks(events.end() - 7, events.end());
  EXPECT_THAT(Types(blocks),
              ElementsAre("content_block_delta", "content_block_stop", "content_block_start",
                          "content_block_delta", "content_block_stop", "message_delta", "message_stop"));
  EXPECT_EQ(blocks[1]["index"], 0);
  EXPECT_EQ(blocks[2]["index"], 1);
  EXPECT_EQ(blocks[2]["content_block"]["input"], json::object());
  EXPECT_EQ(blocks[3]["delta"]["type"], "input_json_delta");
  EXPECT_EQ(blocks[3]["delta"]["partial_json"], R"({"b":1,"a":2})");
  EXPECT_EQ(blocks[5]["delta"]["stop_reason"], "tool_use");
}

TEST_F(GatewayMessagesTest, SaysWhatEndedTheAnswer) {
  std::string reason = "length";
  std::string stop;
  FakeDecode decode(
      [&](grpc::ServerContext*, const v1::GenerateRequest& request, FakeDecode::Writer* writer) {
        writer->Write(FakeDecode::Started());
        v1::GenerateEvent event = FakeDecode::Finished(request, 1, "x");
        event.mutable_finished()->set_reason(reason);
        if (!stop.empty()) event.mutable_finished()->set_stop_string(stop);
        writer->Write(event);
        return grpc::Status::OK;
      });
  StartGateway({&decode});
  EXPECT_EQ(Messages("").Json()["stop_reason"], "max_tokens");
  reason = "stop";
  stop = "END";
  const json stopped = Messages(R"(, "stop_sequences": ["END"])").Json();
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "END");
}

TEST_F(GatewayMessagesTest, ShowsACallThatWasCut) {
  FakeDecode decode([](grpc::ServerContext*, const v1::GenerateRequest& request, FakeDecode::Writer* writer) {
    writer->Write(FakeDecode::Started());
    writer->Write(FakeDecode::Token(R"(<tool_call>{"name": "weather", "arguments": {"b": )"));
    v1::GenerateEvent event = FakeDecode::Finished(request, 1);
    event.mutable_finished()->set_reason("length");
    writer->Write(event);
    return grpc::Status::OK;
  });
  StartGateway({&decode});
  const std::string tools = absl::StrCat(kTools, R"(, "tool_choice": {"type": "any"})");
  const json whole = Messages(tools).Json();
  EXPECT_EQ(whole["stop_reason"], "max_tokens");
  ASSERT_EQ(whole["content"].size(), 1);
  EXPECT_EQ(whole["content"][0]["name"], "weather");
  EXPECT_EQ(whole["content"][0]["input"], json::object());
  const std::vector<json> events = Events(Messages(absl::StrCat(tools, R"(, "stream": true)")));
  EXPECT_EQ(events[events.size() - 2]["delta"]["stop_reason"], "max_tokens");
  // The client that puts the parts together sees that they are no JSON.
  EXPECT_EQ(events[events.size() - 4]["delta"]["partial_json"], "{\"b\": ");
}

TEST_F(GatewayMessagesTest, EndsTheAnswerWhereTheContextDoes) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  const std::string ask =
      R"({"model": "chat", "max_tokens": 32000, "messages": [{"role": "user", "content": "hi"}])";
  EXPECT_EQ(Send("POST", "/v1/messages", ask + "}").status, 200);
  EXPECT_EQ(decode.last_request().sampling().max_tokens(), 32000);
  // The context is 64: one token of it is left for the answer.
  const std::string text(100, 'x');
  const std::string cut = absl::StrCat(
      R"({"model": "chat", "max_tokens": 32000, "messages": [{"role": "user", "content": ")", text, "\"}]");
  EXPECT_EQ(Send("POST", "/v1/messages", cut + "}").status, 400);
  EXPECT_EQ(Send("POST", "/v1/messages", cut + R"(, "truncate_prompt_tokens": -1})").status, 200);
  EXPECT_EQ(decode.last_request().prompt_size(), 63);
}

TEST_F(GatewayMessagesTest, AnswersErrorsInAnthropicsShape) {
  FakeDecode decode([](grpc::ServerContext*, const v1::GenerateRequest&, FakeDecode::Writer* writer) {
    writer->Write(FakeDecode::Started());
    writer->Write(FakeDecode::Token("a"));
    return grpc::Status(grpc::StatusCode::INTERNAL, "broken");
  });
  StartGateway({&decode});
  const auto check = [](const Answer& answer, int status, const std::string& type) {
    EXPECT_EQ(answer.status, status);
    const json body = answer.Json();
    EXPECT_EQ(body["type"], "error");
    EXPECT_EQ(body["error"]["type"], type) << body;
    EXPECT_THAT(answer.head,
                HasSubstr(absl::StrCat("\r\nrequest-id: ", body["request_id"].get<std::string>(), "\r\n")));
  };
  check(Messages(R"(, "temperature": 9)"), 400, "invalid_request_error");
  check(Messages(R"(, "model": "chat")"), 400, "invalid_request_error");
  check(Messages("", "Content-Encoding: gzip\r\n"), 415, "invalid_request_error");
  check(Send("GET", "/v1/messages", ""), 405, "invalid_request_error");
  check(Send("POST", "/v1/messages",
             R"({"model": "no", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]})"),
        404, "not_found_error");
  check(Messages(""), 500, "api_error");
  const std::vector<json> events = Events(Messages(R"(, "stream": true)"));
  EXPECT_EQ(events.back()["type"], "error");
  EXPECT_EQ(events.back()["error"]["type"], "api_error");
  EXPECT_EQ(events.back()["error"]["message"], "broken");
}

TEST_F(GatewayMessagesTest, TakesAKeyInEitherHeader) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  access_.SetKeys({{.name = "ann", .sha256 = HashApiKey("sk-a"), .limits = {}}});
  EXPECT_EQ(
      Messages("", "x-api-key: sk-a\r\nanthropic-version: 2023-06-01\r\nanthropic-beta: a,b\r\n").status,
      200);
  EXPECT_EQ(Messages("", "Authorization: Bearer sk-a\r\n").status, 200);
  for (const char* wrong : {"", "x-api-key: sk-b\r\n", "Authorization: Bearer sk-b\r\nx-api-key: sk-a\r\n"}) {
    const Answer refused = Messages("", wrong);
    EXPECT_EQ(refused.status, 401);
    EXPECT_EQ(refused.Json()["error"]["type"], "authentication_error");
  }
}

TEST_F(GatewayMessagesTest, CountsTokens) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  const std::string path = "/v1/messages/count_tokens";
  EXPECT_EQ(Messages("", "", path).Json(), json::parse(R"({"input_tokens": 3})"));
  EXPECT_EQ(Messages(kTools, "", path + "?beta=true").Json()["input_tokens"], 11);
  EXPECT_EQ(Messages(R"(, "tools": 3)", "", path).Json()["error"]["type"], "invalid_request_error");
  EXPECT_EQ(decode.calls(), 0);
}

}  // namespace
}  // namespace aludel::gateway_testing
