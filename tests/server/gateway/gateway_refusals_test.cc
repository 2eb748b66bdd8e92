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

TEST_F(GatewayTest, SaysBothNumbersForAPromptThatIsTooLong) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  EXPECT_EQ(Chat("", std::string(62, 'a')).status, 200);
  const Answer answer = Chat("", std::string(63, 'a'));
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.Json()["error"]["code"], "context_length_exceeded");
  EXPECT_THAT(answer.body, HasSubstr("maximum context length is 64 tokens"));
  EXPECT_THAT(answer.body, HasSubstr("resulted in 64 tokens"));
}

TEST_F(GatewayTest, RefusesToPromiseMoreTokensThanTheContextHolds) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  EXPECT_EQ(Chat(R"(, "max_tokens": 61)").status, 200);  // behind "hi|"
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    const Answer answer = Chat(absl::StrCat(", \"", name, "\": 62"));
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(answer.error_param(), name);
    EXPECT_EQ(answer.Json()["error"]["code"], "context_length_exceeded");
    EXPECT_EQ(
        answer.Json()["error"]["message"],
        absl::StrCat("This model's maximum context length is 64 tokens. However, you requested 65 tokens (3 "
                     "in the messages, 62 in the completion). Please reduce ",
                     name, " or the length of the messages."));
  }
  EXPECT_EQ(Chat(R"(, "max_tokens": 62, "max_completion_tokens": 61)").status, 200);
  const Answer plain =
      Send("POST", "/v1/completions", R"({"model": "chat", "prompt": "ab", "max_tokens": 62})");
  EXPECT_EQ(plain.status, 400);
  EXPECT_THAT(plain.body, HasSubstr("(3 in the prompt, 62 in the completion)"));
  // What the client did not say is ours to fit.
  EXPECT_EQ(Send("POST", "/v1/completions",
                 absl::StrCat(R"({"model": "chat", "prompt": ")", std::string(60, 'a'), "\"}"))
                .status,
            200);
  models_->all()[0]->defaults.max_new_tokens = 1000;
  EXPECT_EQ(Chat("").status, 200);
}

// Tells that it is at work, and takes until it is let go.
class SlowTokenizer : public ByteTokenizer {
 public:
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, bool add_special,
                                              absl::string_view joint) const override {
    running.Notify();
    release.Wait();
    return ByteTokenizer::Encode(text, add_special, joint);
  }
  mutable Event running, release;
};

TEST_F(GatewayTest, SaysThatItLivesWhileEveryHandlerTokenizes) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  auto owned = std::make_unique<SlowTokenizer>();
  SlowTokenizer& slow = *owned;
  models_->all()[0]->tokenizer = std::move(owned);
  server_ = *gateway_->Listen({.handler_threads = 1});
  std::thread client(
      [&] { EXPECT_EQ(Send("POST", "/tokenize", R"({"model": "chat", "prompt": "ab"})").status, 200); });
  ASSERT_TRUE(slow.running.Wait());
  for (const char* path : {"/health", "/ready", "/version"}) EXPECT_EQ(Get(path).status, 200) << path;
  slow.release.Notify();
  client.join();
}

TEST_F(GatewayTest, DoesNotTokenizeWhatIsTooLongForAnyPrompt) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  auto owned = std::make_unique<SlowTokenizer>();
  SlowTokenizer& slow = *owned;
  models_->all()[0]->tokenizer = std::move(owned);
  const std::string text(4 * 64, 'a');  // the context holds 64 tokens, the longest of which is "<s>"
  const Answer plain =
      Send("POST", "/v1/completions", absl::StrCat(R"({"model": "chat", "prompt": ")", text, "\"}"));
  EXPECT_EQ(plain.status, 400);
  EXPECT_EQ(plain.error_param(), "prompt");
  const Answer chat = Chat("", text);
  EXPECT_EQ(chat.Json()["error"]["code"], "context_length_exceeded");
  EXPECT_THAT(chat.body, HasSubstr("64 tokens, which never hold the 257 bytes of your messages"));
  EXPECT_FALSE(slow.running.WaitFor(std::chrono::milliseconds(0)));
  // Its length is what /tokenize is asked for.
  slow.release.Notify();
  EXPECT_EQ(Send("POST", "/tokenize", absl::StrCat(R"({"model": "chat", "prompt": ")", text, "\"}"))
                .Json()["count"],
            text.size() + 1);
}

TEST_F(GatewayTest, RefusesInTheShapeOfOpenAi) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  EXPECT_EQ(Get("/nowhere").status, 404);
  const Answer method = Get("/v1/chat/completions");
  EXPECT_EQ(method.status, 405);
  EXPECT_THAT(method.head, HasSubstr("Allow: POST\r\n"));
  EXPECT_THAT(Send("POST", "/v1/models", "").head, HasSubstr("Allow: GET, HEAD\r\n"));
  const Answer model = Send("POST", "/v1/chat/completions",
                            R"({"model": "gpt", "messages": [{"role": "user", "content": "hi"}]})");
  EXPECT_EQ(model.status, 404);
  EXPECT_EQ(model.Json()["error"]["code"], "model_not_found");
  const Answer no_template =
      Send("POST", "/v1/chat/completions",
           R"({"model": "org/plain", "messages": [{"role": "user", "content": "hi"}]})");
  EXPECT_EQ(no_template.status, 400);
  EXPECT_THAT(no_template.body, HasSubstr("/v1/completions"));
  const Answer refused = Send("POST", "/v1/chat/completions",
                              R"({"model": "chat", "messages": [{"role": "system", "content": "hi"}]})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("System role not supported"));
  EXPECT_EQ(Chat(R"(, "n": 200)").error_param(), "n");
  EXPECT_EQ(decode.calls(), 0);
}

TEST_F(GatewayTest, NamesTheParameterThatItsDecodeServersWouldRefuse) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  const std::tuple<const char*, int, const char*, const char*> cases[] = {
      {R"("aludel": {"format": "zip"})", 400, "aludel.format", "'zip', want one of scd, raw"},
      {R"("logit_bias": {"257": 1})", 400, "logit_bias", "token id 257; model 'chat' knows 0 to 256"},
      {R"("n": 9)", 422, "n", "'n' is 9; no server of model 'chat' runs more than 8 choices at once"},
  };
  for (const auto& [field, status, param, message] : cases) {
    for (const char* stream : {"", R"(, "stream": true)"}) {
      const Answer answer = Chat(absl::StrCat(", ", field, stream));
      EXPECT_EQ(answer.status, status);
      EXPECT_EQ(answer.error_param(), param);
      EXPECT_THAT(answer.Json()["error"]["message"].get<std::string>(), HasSubstr(message));
    }
  }
  EXPECT_EQ(decode.calls(), 0);
  EXPECT_EQ(Chat(R"(, "n": 1, "logit_bias": {"256": 1}, "aludel": {"format": "raw"})").status, 200);
}

TEST_F(GatewayTest, RefusesWhatIsNoRequestInTheSameShape) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  const Answer answer = Send("POST", "/v1/completions", std::string(20 << 20, 'x'), "X-Request-Id: mine\r\n");
  EXPECT_EQ(answer.status, 413);
  EXPECT_EQ(answer.Json()["error"]["type"], "invalid_request_error");
  EXPECT_THAT(answer.head, HasSubstr("x-request-id: mine\r\n"));
  EXPECT_THAT(answer.head, HasSubstr("\r\nDate: "));
  RawClient malformed(server_->port());
  malformed.Send("garbage\r\n\r\n");
  EXPECT_THAT(malformed.ReadAll(), HasSubstr("x-request-id: req-"));
  EXPECT_THAT(metrics_->Render(),
              AllOf(HasSubstr("aludel_http_requests_total{path=\"/v1/completions\",status=\"413\"} 1"),
                    HasSubstr("aludel_http_requests_total{path=\"other\",status=\"400\"} 1")));
}

TEST_F(GatewayTest, RefusesConnectionsBeyondTheCapInTheSameShape) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  server_ = *gateway_->Listen({.max_connections = 1});
  RawClient first(server_->port());
  first.Send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(first.ReadUntil("\r\n"), StartsWith("HTTP/1.1 200"));
  RawClient second(server_->port());
  const std::string answer = second.ReadAll();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 503 Service Unavailable\r\n"));
  EXPECT_THAT(answer, AllOf(HasSubstr("Retry-After: 1\r\n"), HasSubstr("x-request-id: req-"),
                            HasSubstr(R"("code":"overloaded")")));
  EXPECT_THAT(metrics_->Render(), HasSubstr("aludel_http_requests_total{path=\"other\",status=\"503\"} 1"));
}

TEST_F(GatewayTest, TranslatesTheDecodeServersRefusals) {
  std::atomic<grpc::StatusCode> refusal = grpc::StatusCode::OK;
  FakeDecode decode([&](grpc::ServerContext*, const v1::GenerateRequest&, FakeDecode::Writer*) {
    const grpc::StatusCode code = refusal;
    return grpc::Status(code, code == grpc::StatusCode::OK ? "" : "no block is free");
  });
  StartGateway({&decode});
  const std::tuple<grpc::StatusCode, int> cases[] = {
      {grpc::StatusCode::RESOURCE_EXHAUSTED, 429}, {grpc::StatusCode::INVALID_ARGUMENT, 400},
      {grpc::StatusCode::DEADLINE_EXCEEDED, 504},  {grpc::StatusCode::FAILED_PRECONDITION, 422},
      {grpc::StatusCode::INTERNAL, 500},           {grpc::StatusCode::OK, 500}};
  for (const auto& [code, http] : cases) {
    refusal = code;
    for (const char* fields : {"", R"(, "stream": true)"}) {
      const Answer answer = Chat(fields);
      EXPECT_EQ(answer.status, http);
      EXPECT_EQ(answer.head.find("Retry-After: 1\r\n") != std::string::npos, http == 429);
      if (code != grpc::StatusCode::OK) {
        EXPECT_EQ(answer.Json()["error"]["message"], "no block is free");
      }
    }
  }
  router_->AwaitCalls();  // counted once their calls have ended
  EXPECT_THAT(metrics_->Render(), HasSubstr("aludel_unanswered_request_seconds_count{model=\"chat\"} 12\n"));
}

TEST_F(GatewayTest, EndsABrokenStreamWithAnErrorAndWithoutDone) {
  FakeDecode decode([](grpc::ServerContext*, const v1::GenerateRequest&, FakeDecode::Writer* writer) {
    writer->Write(FakeDecode::Started());
    writer->Write(FakeDecode::Token("Hel"));
    return grpc::Status(grpc::StatusCode::INTERNAL, "the engine broke");
  });
  StartGateway({&decode});
  const std::vector<std::string> events = Chat(R"(, "stream": true)").Events();
  ASSERT_EQ(events.size(), 3);
  EXPECT_EQ(json::parse(events[2])["error"]["message"], "the engine broke");
  const Answer whole = Chat("");
  EXPECT_EQ(whole.status, 500);
}

TEST_F(GatewayTest, SaysWhatOfASchemaCannotBeEnforced) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  const auto format = [](const std::string& schema) {
    return absl::StrCat(
        R"(, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": )", schema,
        "}}");
  };
  const auto tools = [](const std::string& schema) {
    return absl::StrCat(
        R"(, "tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f",
                        "parameters": )",
        schema, "}}]");
  };
  const std::string pattern = R"({"properties": {"b": {"type": "string", "if": true}}})";
  // Twice: the second time it is known.
  for (int i = 0; i < 2; ++i) {
    const Answer refused = Chat(format(pattern));
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.error_param(), "response_format");
    EXPECT_EQ(refused.Json()["error"]["message"],
              "Invalid schema for response_format 'x': #/properties/b: keyword \"if\" is not supported");
    const Answer tool = Chat(tools(pattern));
    EXPECT_EQ(tool.status, 400);
    EXPECT_EQ(tool.error_param(), "tools");
    EXPECT_THAT(tool.body, HasSubstr("/properties/arguments/properties/b: keyword"));
  }
  const std::string large =
      R"({"type": "object", "properties": {"a": {"type": "string", "maxLength": 900000}}})";
  for (const Answer& answer : {Chat(format(large)), Chat(tools(large))}) {
    EXPECT_EQ(answer.status, 422);
    EXPECT_THAT(answer.body, HasSubstr("more than 524288 states"));
  }
  std::string costly = "{\"oneOf\": [";
  for (int i = 0; i < 5000; ++i) absl::StrAppend(&costly, i == 0 ? "" : ",", "{\"const\": ", i, "}");
  const Answer refused = Chat(format(costly + "]}"));
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("#/oneOf: takes more than 1048576 steps to compile"));
  EXPECT_EQ(Chat(format(R"({"type": "null"})")).status, 200);
}

}  // namespace
}  // namespace aludel::gateway_testing
