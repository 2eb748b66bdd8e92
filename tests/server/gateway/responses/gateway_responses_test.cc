// /v1/responses over HTTP, in front of a scripted decode server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
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
    R"(, "tools": [{"type": "function", "name": "weather", "parameters": {"type": "object"}}])";

class GatewayResponsesTest : public GatewayTest {
 protected:
  Answer Respond(const std::string& fields, const std::string& headers = "",
                 const std::string& input = "hi") {
    return Send("POST", "/v1/responses",
                absl::StrCat(R"({"model": "chat", "input": ")", input, "\"", fields, "}"), headers);
  }

  // The data of each event, whose type is the event's name, numbered from 0 on.
  static std::vector<json> Events(const Answer& answer) {
    std::vector<json> events;
    for (const std::string& event :
         std::vector<std::string>(absl::StrSplit(answer.body, "\n\n", absl::SkipEmpty()))) {
      const std::vector<std::string> lines = absl::StrSplit(event, '\n');
      events.push_back(json::parse(lines.back().substr(6)));
      EXPECT_EQ(lines[0], absl::StrCat("event: ", events.back()["type"].get<std::string>()));
      EXPECT_EQ(events.back()["sequence_number"], events.size() - 1);
    }
    return events;
  }

  static std::vector<std::string> Types(const std::vector<json>& events) {
    std::vector<std::string> types;
    for (const json& event : events) types.push_back(event["type"]);
    return types;
  }

  std::string Prompt(FakeDecode* decode) {
    const v1::GenerateRequest request = decode->last_request();
    return {request.prompt().begin(), request.prompt().end()};
  }
};

TEST_F(GatewayResponsesTest, AnswersWithAResponse) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  const json body = Respond(R"(, "max_output_tokens": 9, "metadata": {"a": "b"})").Json();
  EXPECT_THAT(body["id"].get<std::string>(), StartsWith("resp_"));
  EXPECT_EQ(body["object"], "response");
  EXPECT_EQ(body["status"], "completed");
  EXPECT_EQ(body["max_output_tokens"], 9);
  EXPECT_EQ(body["metadata"]["a"], "b");
  EXPECT_TRUE(body["error"].is_null());
  ASSERT_EQ(body["output"].size(), 1);
  EXPECT_EQ(body["output"][0]["type"], "message");
  EXPECT_EQ(body["output"][0]["content"][0]["text"], "Hello wörld!");
  EXPECT_EQ(body["usage"]["input_tokens"], 3);
  EXPECT_EQ(body["usage"]["input_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(body["usage"]["output_tokens"], 3);
  EXPECT_EQ(body["usage"]["total_tokens"], 6);
}

TEST_F(GatewayResponsesTest, StreamsEventsInTheirOrder) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  const std::vector<json> events = Events(Respond(R"(, "stream": true)"));
  EXPECT_THAT(
      Types(events),
      ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                  "response.content_part.added", "response.output_text.delta", "response.output_text.delta",
                  "response.output_text.delta", "response.output_text.done", "response.content_part.done",
                  "response.output_item.done", "response.completed"));
  EXPECT_EQ(events[0]["response"]["status"], "in_progress");
  EXPECT_EQ(events[4]["delta"], "Hello");
  EXPECT_EQ(events[7]["text"], "Hello wörld!");
  EXPECT_EQ(events[4]["item_id"], events[9]["item"]["id"]);
  EXPECT_EQ(events[10]["response"]["output"][0], events[9]["item"]);
  EXPECT_EQ(events[10]["response"]["usage"]["output_tokens"], 3);
}

grpc::Status CallsWeather(grpc::ServerContext*, const v1::GenerateRequest& request,
                          FakeDecode::Writer* writer) {
  writer->Write(FakeDecode::Started());
  for (const char* text :
       {"Well.", "<tool_call>{\"name\": \"weather\", \"arguments\": {\"b\": 1}}</tool_call>"}) {
    writer->Write(FakeDecode::Token(text));
  }
  writer->Write(FakeDecode::Finished(request, 5));
  return grpc::Status::OK;
}

TEST_F(GatewayResponsesTest, AnswersWithACall) {
  FakeDecode decode(CallsWeather);
  StartGateway({&decode});
  const json body = Respond(kTools).Json();
  ASSERT_EQ(body["output"].size(), 2);
  EXPECT_EQ(body["output"][1]["type"], "function_call");
  EXPECT_EQ(body["output"][1]["name"], "weather");
  EXPECT_EQ(body["output"][1]["arguments"], R"({"b":1})");
  EXPECT_THAT(body["output"][1]["call_id"].get<std::string>(), StartsWith("call_"));

  const std::vector<json> events = Events(Respond(absl::StrCat(kTools, R"(, "stream": true)")));
  const std::vector<json> last(events.end() - 5, events.end());
  EXPECT_THAT(Types(last), ElementsAre("response.output_item.added", "response.function_call_arguments.delta",
                                       "response.function_call_arguments.done", "response.output_item.done",
                                       "response.completed"));
  EXPECT_EQ(last[0]["output_index"], 1);
  EXPECT_EQ(last[0]["item"]["arguments"], "");
  EXPECT_EQ(last[1]["delta"], R"({"b":1})");
  EXPECT_EQ(last[4]["response"]["output"].size(), 2);
}

TEST_F(GatewayResponsesTest, SaysThatTheLengthLimitCutTheAnswer) {
  FakeDecode decode([](grpc::ServerContext*, const v1::GenerateRequest& request, FakeDecode::Writer* writer) {
    writer->Write(FakeDecode::Started());
    v1::GenerateEvent event = FakeDecode::Finished(request, 1, "x");
    event.mutable_finished()->set_reason("length");
    writer->Write(event);
    return grpc::Status::OK;
  });
  StartGateway({&decode});
  const json body = Respond("").Json();
  EXPECT_EQ(body["status"], "incomplete");
  EXPECT_EQ(body["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(body["output"][0]["status"], "incomplete");
  const std::vector<json> events = Events(Respond(R"(, "stream": true)"));
  EXPECT_EQ(events.back()["type"], "response.incomplete");
  EXPECT_EQ(events[events.size() - 2]["item"], events.back()["response"]["output"][0]);
}

TEST_F(GatewayResponsesTest, EndsAStreamThatFails) {
  FakeDecode decode([](grpc::ServerContext*, const v1::GenerateRequest&, FakeDecode::Writer* writer) {
    writer->Write(FakeDecode::Started());
    writer->Write(FakeDecode::Token("a"));
    return grpc::Status(grpc::StatusCode::INTERNAL, "broken");
  });
  StartGateway({&decode});
  const json last = Events(Respond(R"(, "stream": true)")).back();
  EXPECT_EQ(last["type"], "response.failed");
  EXPECT_EQ(last["response"]["status"], "failed");
  EXPECT_EQ(last["response"]["error"]["message"], "broken");
}

TEST_F(GatewayResponsesTest, BoundsWhatAStreamRepeatsAtItsEnd) {
  FakeDecode decode([](grpc::ServerContext* context, const v1::GenerateRequest&, FakeDecode::Writer* writer) {
    writer->Write(FakeDecode::Started());
    while (writer->Write(FakeDecode::Token("four"))) {
    }
    return context->IsCancelled() ? grpc::Status::CANCELLED : grpc::Status::OK;
  });
  StartGateway({&decode}, {.max_answer_bytes = 10000});
  EXPECT_THAT(
      Events(Respond(R"(, "stream": true)")).back()["response"]["error"]["message"].get<std::string>(),
      HasSubstr("10000 bytes"));
  router_->AwaitCalls();
}

// More than the connection's queue takes, twice, and four times.
TEST_F(GatewayResponsesTest, StreamsWhatIsLargeToItsEnd) {
  const std::string text(200 << 10, 'a');
  FakeDecode decode(
      [&](grpc::ServerContext*, const v1::GenerateRequest& request, FakeDecode::Writer* writer) {
        writer->Write(FakeDecode::Started());
        for (int i = 0; i < 4; ++i) writer->Write(FakeDecode::Token(text.substr(0, text.size() / 4)));
        writer->Write(FakeDecode::Finished(request, 4));
        return grpc::Status::OK;
      });
  StartGateway({&decode}, {}, /*wait_until_ready=*/true, {.max_queued_bytes = 256 << 10});
  const std::vector<json> events = Events(Respond(
      absl::StrCat(R"(, "stream": true, "tools": [{"type": "function", "name": "weather", "description": ")",
                   text, "\"}]")));
  ASSERT_EQ(Types(events).back(), "response.completed");
  EXPECT_EQ(events[0]["response"]["tools"][0]["description"], text);
  EXPECT_EQ(events[1]["response"], events[0]["response"]);
  EXPECT_EQ(events.back()["response"]["tools"][0]["description"], text);
  EXPECT_EQ(events.back()["response"]["output"][0]["content"][0]["text"], text);
}

TEST_F(GatewayResponsesTest, TellsACallThatWasCutFromOneThatIsWhole) {
  std::string text = R"(<tool_call>{"name": "weather", "arguments": {"b": )";
  FakeDecode decode(
      [&](grpc::ServerContext*, const v1::GenerateRequest& request, FakeDecode::Writer* writer) {
        writer->Write(FakeDecode::Started());
        writer->Write(FakeDecode::Token(text));
        v1::GenerateEvent event = FakeDecode::Finished(request, 1);
        event.mutable_finished()->set_reason("length");
        writer->Write(event);
        return grpc::Status::OK;
      });
  StartGateway({&decode});
  const std::string tools = absl::StrCat(kTools, R"(, "tool_choice": "required")");
  for (const char* status : {"incomplete", "completed"}) {
    const std::vector<json> events = Events(Respond(absl::StrCat(tools, R"(, "stream": true)")));
    const json last = events.back()["response"];
    EXPECT_EQ(last["status"], "incomplete");
    ASSERT_EQ(last["output"].size(), 1) << last;
    EXPECT_EQ(last["output"][0]["type"], "function_call");
    EXPECT_EQ(last["output"][0]["status"], status);
    EXPECT_EQ(last["output"][0], events[events.size() - 2]["item"]);
    const json whole = Respond(tools).Json();
    EXPECT_EQ(whole["status"], "incomplete");
    EXPECT_EQ(whole["output"][0]["status"], status);
    EXPECT_EQ(whole["output"][0]["arguments"], last["output"][0]["arguments"]);
    text += "1}}</tool_call>";
  }
}

TEST_F(GatewayResponsesTest, MetersWhatIsKept) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  access_.SetKeys({{.name = "ann", .sha256 = HashApiKey("sk-a"), .limits = {.requests_per_minute = 2}}});
  const std::string ann = "Authorization: Bearer sk-a\r\n";
  const std::string path = "/v1/responses/" + Respond("", ann).Json()["id"].get<std::string>();
  EXPECT_EQ(Send("GET", path, "", ann).status, 200);
  EXPECT_EQ(Send("GET", path, "", ann).status, 429);
}

TEST_F(GatewayResponsesTest, SaysWhatIsNotServedOfAnAnswer) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  const std::string path = "/v1/responses/" + Respond("").Json()["id"].get<std::string>();
  const Answer items = Get(path + "/input_items");
  EXPECT_EQ(items.status, 404);
  EXPECT_THAT(items.body, HasSubstr("is not served"));
  EXPECT_EQ(Get(path + "?stream=true").error_param(), "stream");
  EXPECT_EQ(Get(path + "?stream=false").status, 200);
}

TEST_F(GatewayResponsesTest, GoesOnFromAnAnswerThatIsKept) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  const std::string first = Respond("").Json()["id"];
  const std::string previous = absl::StrCat(R"(, "previous_response_id": ")", first, "\"");
  const json second = Respond(previous, "", "on").Json();
  EXPECT_EQ(second["previous_response_id"], first);
  EXPECT_EQ(Prompt(&decode), "hi|Hello w\xc3\xb6rld!|on|");
  EXPECT_EQ(Respond(R"(, "previous_response_id": "resp_none")").Json()["error"]["code"],
            "previous_response_not_found");

  const std::string path = "/v1/responses/" + first;
  EXPECT_EQ(Get(path).Json()["output"][0]["content"][0]["text"], "Hello wörld!");
  EXPECT_EQ(Send("DELETE", path, "").Json()["deleted"], true);
  EXPECT_EQ(Get(path).status, 404);
  EXPECT_EQ(Send("DELETE", path, "").status, 404);
  EXPECT_EQ(Respond(previous).status, 400);
  EXPECT_THAT(Send("PUT", path, "").head, HasSubstr("Allow: GET, HEAD, DELETE"));
  const std::string unkept = Respond(R"(, "store": false)").Json()["id"];
  EXPECT_EQ(Get("/v1/responses/" + unkept).status, 404);
}

TEST_F(GatewayResponsesTest, ShowsAKeyItsOwnAnswersOnly) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  access_.SetKeys({{.name = "ann", .sha256 = HashApiKey("sk-a"), .limits = {}},
                   {.name = "bob", .sha256 = HashApiKey("sk-b"), .limits = {}}});
  const std::string ann = "Authorization: Bearer sk-a\r\n";
  const std::string bob = "Authorization: Bearer sk-b\r\n";
  const std::string id = Respond("", ann).Json()["id"];
  EXPECT_EQ(Send("GET", "/v1/responses/" + id, "", ann).status, 200);
  EXPECT_EQ(Send("GET", "/v1/responses/" + id, "", bob).status, 404);
  EXPECT_EQ(Send("DELETE", "/v1/responses/" + id, "", bob).status, 404);
  EXPECT_EQ(Respond(absl::StrCat(R"(, "previous_response_id": ")", id, "\""), bob).status, 400);
}

TEST_F(GatewayResponsesTest, NamesTheFormatThatItCannotEnforce) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  const json error =
      Respond(R"(, "text": {"format": {"type": "json_schema", "name": "n", "schema": {"not": {}}}})")
          .Json()["error"];
  EXPECT_EQ(error["param"], "text.format");
  EXPECT_EQ(Respond("", "", std::string(100, 'x')).Json()["error"]["param"], "input");
}

}  // namespace
}  // namespace aludel::gateway_testing
