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
#include "tests/server/gateway/plain_models.h"
#include "tests/server/http/raw_client.h"

namespace aludel {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct Answer {
  int status = 0;
  std::string head;
  std::string body;
  json Json() const { return json::parse(body); }
  std::string error_param() const { return Json()["error"]["param"].get<std::string>(); }
  // The data of each event.
  std::vector<std::string> Events() const {
    std::vector<std::string> events = absl::StrSplit(body, "\n\n", absl::SkipEmpty());
    for (std::string& event : events) {
      EXPECT_THAT(event, StartsWith("data: "));
      event = event.substr(6);
    }
    return events;
  }
};

std::string Unchunk(absl::string_view text) {
  std::string body;
  for (;;) {
    const size_t line = text.find("\r\n");
    if (line == absl::string_view::npos) return body;
    const size_t size = std::stoul(std::string(text.substr(0, line)), nullptr, 16);
    absl::StrAppend(&body, text.substr(line + 2, size));
    text.remove_prefix(std::min(text.size(), line + 4 + size));
  }
}

// The whole gateway over HTTP, in front of decode servers whose answers are scripted.
class GatewayTest : public ::testing::Test {
 protected:
  void StartGateway(const std::vector<FakeDecode*>& decodes, Completions::Options options = {},
                    bool wait_until_ready = true) {
    models_ = std::make_unique<ServedModels>(PlainModels());
    Router::Model routed{.expectation = {.model = "chat", .tokenizer_fingerprint = ""}, .decode_targets = {}};
    for (FakeDecode* decode : decodes) routed.decode_targets.push_back(decode->target());
    metrics_ = std::make_unique<Metrics>();
    router_ = std::make_unique<Router>(
        std::vector<Router::Model>{routed},
        Router::Timing{.probe_interval = absl::Milliseconds(20), .probe_timeout = absl::Seconds(5)},
        metrics_.get());
    gateway_ = std::make_unique<Gateway>(Gateway::Options{.completions = std::move(options)}, &access_,
                                         models_.get(), router_.get(), metrics_.get());
    auto server = gateway_->Listen({});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    if (wait_until_ready) WaitForReady(200);
  }
  ~GatewayTest() override {
    server_.reset();
    gateway_.reset();
    router_.reset();
  }

  void WaitForReady(int status) {
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    while (Get("/ready").status != status && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
    EXPECT_EQ(Get("/ready").status, status);
  }

  Answer Send(const std::string& method, const std::string& path, const std::string& body,
              const std::string& headers = "") {
    RawClient client(server_->port());
    client.Send(absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n", headers,
                             "Content-Length: ", body.size(), "\r\n\r\n", body));
    const std::string all = client.ReadAll(absl::Seconds(10));
    Answer answer;
    const size_t end = all.find("\r\n\r\n");
    if (end == std::string::npos) return answer;
    answer.head = all.substr(0, end + 2);
    answer.body = all.substr(end + 4);
    if (answer.head.find("chunked") != std::string::npos) answer.body = Unchunk(answer.body);
    EXPECT_TRUE(absl::SimpleAtoi(all.substr(9, 3), &answer.status));
    return answer;
  }
  Answer Get(const std::string& path) { return Send("GET", path, ""); }
  Answer Chat(const std::string& fields, const std::string& content = "hi") {
    return Send("POST", "/v1/chat/completions",
                absl::StrCat(R"({"model": "chat", "messages": [{"role": "user", "content": ")", content,
                             "\"}]", fields, "}"));
  }

  Access access_{KeyLimits{}};
  std::unique_ptr<ServedModels> models_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<Gateway> gateway_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(GatewayTest, SamplesAsTheModelsPublisherWantsUnlessARequestSaysOtherwise) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  EXPECT_EQ(Chat("").status, 200);
  EXPECT_EQ(decode.last_request().sampling().temperature(), 1.0);
  models_->all()[0]->defaults.temperature = 0.6;
  models_->all()[0]->defaults.top_k = 20;
  EXPECT_EQ(Chat(R"(, "top_k": 5)").status, 200);
  EXPECT_EQ(decode.last_request().sampling().temperature(), 0.6);
  EXPECT_EQ(decode.last_request().sampling().top_k(), 5);
}

TEST_F(GatewayTest, AnswersAChatInOneBody) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode}, {.prefill_targets = {"p1:1", "p2:2"}});
  const Answer answer = Chat(R"(, "temperature": 0, "aludel": {"fidelity": "fast", "format": "scd"})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json body = answer.Json();
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_THAT(body["id"].get<std::string>(), StartsWith("chatcmpl-"));
  EXPECT_EQ(body["choices"][0]["message"]["content"], "Hello w\xc3\xb6rld!");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(body["usage"]["total_tokens"], 6);
  EXPECT_EQ(body["aludel"]["plan"], "remote");
  EXPECT_EQ(body["aludel"]["payload_bytes"], 100);
  EXPECT_EQ(body["aludel"]["raw_bytes"], 400);
  EXPECT_TRUE(body["aludel"]["fallback_reason"].is_null());
  EXPECT_THAT(answer.head, HasSubstr("x-aludel-plan: remote\r\n"));
  EXPECT_THAT(answer.head, HasSubstr("x-aludel-format: scd\r\n"));
  EXPECT_THAT(answer.head, HasSubstr("x-aludel-payload-bytes: 100\r\n"));
  const v1::GenerateRequest request = decode.last_request();
  EXPECT_THAT(request.prompt(), ElementsAre('h', 'i', '|'));
  EXPECT_THAT(request.prefill_targets(), ElementsAre("p1:1", "p2:2"));
  EXPECT_EQ(request.fidelity(), v1::FIDELITY_FAST);
  EXPECT_EQ(request.format(), "scd");
}

TEST_F(GatewayTest, StagesSumToTheTimeThatTheGatewayMeasured) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  const json report = Chat("").Json()["aludel"];
  double sum = 0;
  for (const auto& stage : report["stages"]) sum += stage.get<double>();
  EXPECT_NEAR(sum, report["ttft"].get<double>(), 1e-9);
}

TEST_F(GatewayTest, StreamsAChatAsServerSentEvents) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  const Answer answer = Chat(R"(, "stream": true, "stream_options": {"include_usage": true})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_THAT(answer.head, HasSubstr("Content-Type: text/event-stream"));
  EXPECT_THAT(answer.head, HasSubstr("x-aludel-plan: remote\r\n"));
  const std::vector<std::string> events = answer.Events();
  ASSERT_EQ(events.size(), 7);
  EXPECT_EQ(json::parse(events[0])["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(json::parse(events[1])["choices"][0]["delta"]["content"], "Hello");
  EXPECT_EQ(json::parse(events[2])["choices"][0]["delta"]["content"], " w\xc3\xb6rld");
  EXPECT_EQ(json::parse(events[3])["choices"][0]["delta"]["content"], "!");
  const json last = json::parse(events[4]);
  EXPECT_EQ(last["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(last["aludel"]["format"], "scd");
  EXPECT_GT(last["aludel"]["ttft"].get<double>(), 0);
  EXPECT_EQ(json::parse(events[5])["usage"]["completion_tokens"], 3);
  EXPECT_EQ(events[6], "[DONE]");
}

TEST_F(GatewayTest, AnswersPlainCompletions) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  const Answer whole = Send("POST", "/v1/completions", R"({"model": "chat", "prompt": "ab"})");
  EXPECT_EQ(whole.Json()["object"], "text_completion");
  EXPECT_EQ(whole.Json()["choices"][0]["text"], "Hello w\xc3\xb6rld!");
  EXPECT_THAT(decode.last_request().prompt(), ElementsAre(256, 'a', 'b'));
  const Answer streamed =
      Send("POST", "/v1/completions", R"({"model": "chat", "prompt": [97, 98], "stream": true})");
  EXPECT_EQ(json::parse(streamed.Events()[0])["choices"][0]["text"], "Hello");
  EXPECT_THAT(decode.last_request().prompt(), ElementsAre('a', 'b'));
  const Answer unknown = Send("POST", "/v1/completions", R"({"model": "chat", "prompt": [97, 300]})");
  EXPECT_EQ(unknown.status, 400);
  EXPECT_THAT(unknown.body, HasSubstr("300"));
}

// Two choices whose tokens alternate, with log-probabilities where they are asked for.
grpc::Status TwoChoices(grpc::ServerContext*, const v1::GenerateRequest& request,
                        FakeDecode::Writer* writer) {
  writer->Write(FakeDecode::Started());
  for (const char letter : {'a', 'b'}) {
    for (uint32_t choice = 0; choice < 2; ++choice) {
      v1::GenerateEvent event = FakeDecode::Token(std::string(choice + 1, letter));
      event.mutable_token()->set_id(letter);
      event.mutable_token()->set_choice(choice);
      for (int i = 0; request.sampling().has_top_logprobs() && i < 2; ++i) {
        v1::TokenLogprob* logprob = event.mutable_token()->add_logprobs();
        logprob->set_token(letter + i);
        logprob->set_logprob(-0.5f - static_cast<float>(i));
      }
      writer->Write(event);
    }
  }
  for (const uint32_t choice : {1, 0}) {
    v1::GenerateEvent event = FakeDecode::Finished(request, 2, choice == 0 ? "!" : "");
    event.mutable_finished()->set_choice(choice);
    event.mutable_finished()->set_reason(choice == 0 ? "stop" : "length");
    writer->Write(event);
  }
  return grpc::Status::OK;
}

TEST_F(GatewayTest, AnswersWithEveryChoice) {
  FakeDecode decode(TwoChoices);
  StartGateway({&decode});
  const json whole = Chat(R"(, "n": 2)").Json();
  EXPECT_EQ(decode.last_request().sampling().choices(), 2);
  ASSERT_EQ(whole["choices"].size(), 2);
  EXPECT_EQ(whole["choices"][0]["message"]["content"], "ab!");
  EXPECT_EQ(whole["choices"][1]["message"]["content"], "aabb");
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(whole["choices"][1]["finish_reason"], "length");
  EXPECT_EQ(whole["choices"][1]["index"], 1);
  EXPECT_EQ(whole["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(whole["usage"]["completion_tokens"], 4);

  const std::vector<std::string> events =
      Chat(R"(, "n": 2, "stream": true, "stream_options": {"include_usage": true})").Events();
  std::string texts[2];
  std::vector<std::string> reasons;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const json chunk = json::parse(events[i]);
    ASSERT_TRUE(chunk.contains("usage"));
    if (chunk["choices"].empty()) continue;
    const json& choice = chunk["choices"][0];
    texts[choice["index"].get<int>()] += choice["delta"].value("content", "");
    if (!choice["finish_reason"].is_null()) reasons.push_back(choice["finish_reason"]);
    EXPECT_EQ(chunk.contains("aludel"), reasons.size() == 2);
  }
  EXPECT_EQ(texts[0], "ab!");
  EXPECT_EQ(texts[1], "aabb");
  EXPECT_THAT(reasons, ElementsAre("length", "stop"));
}

TEST_F(GatewayTest, SendsLogprobsInTheShapeOfEachEndpoint) {
  FakeDecode decode(TwoChoices);
  StartGateway({&decode});
  const json chat = Chat(R"(, "n": 2, "logprobs": true, "top_logprobs": 1)").Json();
  EXPECT_EQ(decode.last_request().sampling().top_logprobs(), 1);
  const json& entries = chat["choices"][1]["logprobs"]["content"];
  ASSERT_EQ(entries.size(), 2);
  EXPECT_EQ(entries[1]["token"], "b");
  EXPECT_EQ(entries[1]["bytes"], json::array({98}));
  EXPECT_EQ(entries[1]["logprob"], -0.5);
  EXPECT_EQ(entries[1]["top_logprobs"][0]["token"], "c");
  const std::vector<std::string> events =
      Chat(R"(, "n": 2, "logprobs": true, "top_logprobs": 1, "stream": true)").Events();
  EXPECT_EQ(json::parse(events[2])["choices"][0]["logprobs"]["content"][0]["token"], "a");

  const json plain =
      Send("POST", "/v1/completions", R"({"model": "chat", "prompt": "ab", "n": 2, "logprobs": 1})").Json();
  const json& lists = plain["choices"][0]["logprobs"];
  EXPECT_EQ(lists["tokens"], json::array({"a", "b"}));
  EXPECT_EQ(lists["token_logprobs"], json::array({-0.5, -0.5}));
  EXPECT_EQ(lists["top_logprobs"][1]["c"], -1.5);
  EXPECT_EQ(lists["text_offset"], json::array({0, 1}));
  // "a" was drawn, the likeliest is itself; what was drawn is never missing.
  EXPECT_EQ(lists["top_logprobs"][0], json({{"a", -0.5}, {"b", -1.5}}));
}

// Goes on until nobody listens any more.
grpc::Status Endless(grpc::ServerContext* context, const v1::GenerateRequest& request,
                     FakeDecode::Writer* writer) {
  writer->Write(FakeDecode::Started());
  v1::GenerateEvent token = FakeDecode::Token("four");
  if (request.sampling().has_top_logprobs()) {
    v1::TokenLogprob* logprob = token.mutable_token()->add_logprobs();
    logprob->set_token(97);
    logprob->set_logprob(-0.5);
  }
  while (writer->Write(token)) {
  }
  return context->IsCancelled() ? grpc::Status::CANCELLED : grpc::Status::OK;
}

TEST_F(GatewayTest, EndsAnAnswerThatIsTooLongToBeKept) {
  FakeDecode decode(Endless);
  StartGateway({&decode}, {.max_answer_bytes = 10000});
  const Answer text = Chat("");
  EXPECT_EQ(text.status, 422);
  EXPECT_THAT(text.body,
              HasSubstr("the answer is longer than the 10000 bytes that this gateway keeps of one that "
                        "is not streamed, after 2501 tokens of 1 choice: stream it"));
  // Log-probabilities count as they are written.
  const Answer logprobs = Chat(R"(, "logprobs": true, "top_logprobs": 0)");
  EXPECT_EQ(logprobs.status, 422);
  EXPECT_THAT(logprobs.body, HasSubstr("after 156 tokens of 1 choice"));
  router_->AwaitCalls();
  EXPECT_THAT(metrics_->Render(),
              HasSubstr("aludel_requests_total{model=\"chat\",outcome=\"failed_precondition\"} 2"));
}

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
  // An answer is counted after it was sent.
  const absl::Time deadline = absl::Now() + absl::Seconds(5);
  while (value_of("aludel_request_decode_time_seconds_count") < 2 && absl::Now() < deadline)
    absl::SleepFor(absl::Milliseconds(5));
  ASSERT_EQ(value_of("aludel_request_decode_time_seconds_count"), 2);
  // What the model made is the decode phase, shown or not.
  EXPECT_GE(value_of("aludel_request_decode_time_seconds_sum"), absl::ToDoubleSeconds(kPause));
  EXPECT_LT(value_of("aludel_request_prefill_time_seconds_sum"), absl::ToDoubleSeconds(kPause));
}

TEST_F(GatewayTest, PassesConstraintsOn) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  Chat(
      R"(, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "null"}}})");
  EXPECT_EQ(decode.last_request().constraint().json_schema(), R"({"type":"null"})");
}

TEST_F(GatewayTest, PassesOnHowOldCodesMayBe) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  Chat("");
  EXPECT_FALSE(decode.last_request().has_max_staleness_ms());
  Chat(R"(, "aludel": {"max_staleness_ms": 0})");
  EXPECT_TRUE(decode.last_request().has_max_staleness_ms());
  Chat(R"(, "aludel": {"max_staleness_ms": 60000})");
  EXPECT_EQ(decode.last_request().max_staleness_ms(), 60000);
}

TEST_F(GatewayTest, PassesPriorityOn) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  Chat("");
  EXPECT_EQ(decode.last_request().priority(), 0);
  Chat(R"(, "priority": -2)");
  EXPECT_EQ(decode.last_request().priority(), -2);
}

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

TEST_F(GatewayTest, EndsARequestAtItsDeadline) {
  FakeDecode decode([](grpc::ServerContext* context, const v1::GenerateRequest&, FakeDecode::Writer*) {
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
    return grpc::Status::CANCELLED;
  });
  StartGateway({&decode}, {.request_timeout = absl::Milliseconds(100)});
  const absl::Time start = absl::Now();
  EXPECT_EQ(Chat("").status, 504);
  EXPECT_LT(absl::Now() - start, absl::Seconds(3));
}

TEST_F(GatewayTest, CancelsOnceTheClientLeft) {
  for (const char* fields : {"", R"(, "stream": true)"}) {
    Event running, cancelled;
    {
      FakeDecode decode(
          [&](grpc::ServerContext* context, const v1::GenerateRequest&, FakeDecode::Writer* writer) {
            writer->Write(FakeDecode::Started());
            writer->Write(FakeDecode::Token("a"));
            running.Notify();
            while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
            cancelled.Notify();
            return grpc::Status::CANCELLED;
          });
      StartGateway({&decode});
      const std::string body =
          absl::StrCat(R"({"model": "chat", "messages": [{"role": "user", "content": "hi"}])", fields, "}");
      RawClient client(server_->port());
      client.Send(absl::StrCat("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: ",
                               body.size(), "\r\n\r\n", body));
      ASSERT_TRUE(running.Wait());
      const absl::Time left = absl::Now();
      client.Close();
      ASSERT_TRUE(cancelled.Wait());
      EXPECT_LT(absl::Now() - left, absl::Seconds(2));  // milliseconds on a machine that is not busy
      server_.reset();
      gateway_.reset();
      router_.reset();
    }
  }
}

TEST_F(GatewayTest, AsksAnotherDecodeServerWhileNoTokenHasLeft) {
  auto fail = [](grpc::StatusCode code) {
    return [code](grpc::ServerContext*, const v1::GenerateRequest&, FakeDecode::Writer* writer) {
      writer->Write(FakeDecode::Started());
      return grpc::Status(code, "not me");
    };
  };
  FakeDecode full(fail(grpc::StatusCode::RESOURCE_EXHAUSTED)), good(FakeDecode::Hello);
  StartGateway({&full, &good});
  // Both must be known before the first request, or there is nothing to choose.
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (!router_->State("chat").reason.empty() && absl::Now() < deadline)
    absl::SleepFor(absl::Milliseconds(5));
  const Answer answer = Chat(R"(, "stream": true)");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.Events().back(), "[DONE]");
  EXPECT_EQ(full.calls() + good.calls(), full.calls() == 0 ? 1 : 2);
}

TEST_F(GatewayTest, ACallThatTheDecodeServerCancelsIsNotTheClientsDoing) {
  FakeDecode leaving([](grpc::ServerContext*, const v1::GenerateRequest&, FakeDecode::Writer*) {
    return grpc::Status(grpc::StatusCode::CANCELLED, "CANCELLED");
  });
  StartGateway({&leaving});
  const Answer answer = Chat("");
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.Json()["error"]["message"], "the decode server has given the call up");
}

// A decode server that is lost behind the first tokens: texts and ids of those that it sends.
FakeDecode::Script Lost(std::vector<std::pair<std::string, int32_t>> tokens) {
  return [tokens](grpc::ServerContext*, const v1::GenerateRequest&, FakeDecode::Writer* writer) {
    writer->Write(FakeDecode::Started());
    for (const auto& [text, id] : tokens) writer->Write(FakeDecode::Token(text, id));
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "going down");
  };
}

// One that is not.
FakeDecode::Script Whole(std::vector<std::pair<std::string, int32_t>> tokens,
                         const std::string& plan = "remote") {
  return
      [tokens, plan](grpc::ServerContext*, const v1::GenerateRequest& request, FakeDecode::Writer* writer) {
        v1::GenerateEvent started = FakeDecode::Started();
        started.mutable_started()->set_plan(plan);
        writer->Write(started);
        for (const auto& [text, id] : tokens) writer->Write(FakeDecode::Token(text, id));
        writer->Write(FakeDecode::Finished(request, static_cast<uint32_t>(tokens.size())));
        return grpc::Status::OK;
      };
}

class LostServerTest : public GatewayTest {
 protected:
  // In front of both, in this order.
  void Start(FakeDecode& first, FakeDecode& second) {
    StartGateway({&first, &second});
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    while (!router_->State("chat").reason.empty() && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(5));
    }
  }
  // Of a stream: its text, and the message of the error that ended it, or "[DONE]".
  std::pair<std::string, std::string> Stream(const std::string& fields = "") {
    std::string text;
    for (const std::string& event : Chat(absl::StrCat(R"(, "stream": true)", fields)).Events()) {
      if (event == "[DONE]") return {text, event};
      const json chunk = json::parse(event);
      if (chunk.contains("error")) return {text, chunk["error"]["message"].get<std::string>()};
      if (!chunk["choices"].empty()) text += chunk["choices"][0]["delta"].value("content", "");
    }
    return {text, "nothing"};
  }
};

TEST_F(LostServerTest, GoesOnWithAStreamOnAnotherOne) {
  FakeDecode first(Lost({{"Hel", 1}, {"", 2}}));
  FakeDecode second(Whole({{"Hel", 1}, {"", 2}, {"lo", 3}, {"!", 4}}));
  Start(first, second);
  EXPECT_EQ(Stream(), std::make_pair(std::string("Hello!"), std::string("[DONE]")));
  EXPECT_EQ(first.calls(), 1);
  EXPECT_EQ(second.calls(), 1);
  // The same answer over the same kind of cache.
  EXPECT_TRUE(first.last_request().sampling().has_seed());
  EXPECT_EQ(second.last_request().sampling().seed(), first.last_request().sampling().seed());
  EXPECT_EQ(second.last_request().format(), "scd");
  EXPECT_TRUE(second.last_request().has_max_staleness_ms());
  router_->AwaitCalls();
  EXPECT_THAT(metrics_->Render(),
              HasSubstr("aludel_cut_answers_total{model=\"chat\",outcome=\"continued\"} 1"));
}

TEST_F(LostServerTest, KeepsTheSeedOfTheRequest) {
  FakeDecode first(Lost({{"a", 1}})), second(Whole({{"a", 1}, {"b", 2}}));
  Start(first, second);
  EXPECT_EQ(Stream(R"(, "seed": 7)").first, "ab");
  EXPECT_EQ(second.last_request().sampling().seed(), 7);
}

TEST_F(LostServerTest, NeverGoesOnWithAnotherAnswer) {
  for (const FakeDecode::Script& other : {Whole({{"Hel", 1}, {"p", 9}, {"!", 3}}), Whole({{"Hel", 1}}),
                                          Whole({{"Hel", 1}, {"lo", 2}, {"!", 3}}, "cached")}) {
    FakeDecode first(Lost({{"Hel", 1}, {"lo", 2}})), second(other);
    Start(first, second);
    const auto [text, end] = Stream();
    EXPECT_EQ(text, "Hello");
    EXPECT_EQ(end, "the decode server was lost, and another one gives another answer");
    server_.reset();
    gateway_.reset();
    router_.reset();
  }
}

TEST_F(LostServerTest, AServerWhoseAnswerDivergesStaysInUse) {
  FakeDecode first(Lost({{"Hel", 1}, {"lo", 2}}));
  FakeDecode second([](grpc::ServerContext* context, const v1::GenerateRequest&, FakeDecode::Writer* writer) {
    writer->Write(FakeDecode::Started());
    writer->Write(FakeDecode::Token("Bye", 9));
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
    return grpc::Status::CANCELLED;
  });
  Start(first, second);
  EXPECT_EQ(Stream().second, "the decode server was lost, and another one gives another answer");
  router_->AwaitCalls();
  EXPECT_THAT(router_->State("chat").reason, Not(HasSubstr(second.target())));
}

TEST_F(LostServerTest, GoesOnOnlyWhereTokensAreTheSame) {
  FakeDecode first(Lost({{"Hel", 1}})), second(Whole({{"Hel", 1}, {"lo", 2}}), "chat", "", "another GPU");
  Start(first, second);
  EXPECT_EQ(Stream(), std::make_pair(std::string("Hel"), std::string("going down")));
  EXPECT_EQ(second.calls(), 0);
}

TEST_F(LostServerTest, BeginsAnAnswerAnewOfWhichNothingHasLeft) {
  FakeDecode first(Lost({{"Hel", 1}, {"lo", 2}}));
  FakeDecode second(Whole({{"By", 8}, {"e", 9}}), "chat", "", "another GPU");
  Start(first, second);
  const Answer whole = Chat("");
  EXPECT_EQ(whole.status, 200);
  EXPECT_EQ(whole.Json()["choices"][0]["message"]["content"], "Bye");
  EXPECT_EQ(whole.Json()["usage"]["completion_tokens"], 2);
  router_->AwaitCalls();
  EXPECT_THAT(metrics_->Render(),
              HasSubstr("aludel_cut_answers_total{model=\"chat\",outcome=\"restarted\"} 1"));
}

TEST_F(LostServerTest, BeginsAStreamAnewThatHasOnlyItsHead) {
  FakeDecode first(Lost({{"", 1}}));
  FakeDecode second(Whole({{"By", 8}, {"e", 9}}), "chat", "", "another GPU");
  Start(first, second);
  const std::vector<std::string> events = Chat(R"(, "stream": true)").Events();
  ASSERT_EQ(events.size(), 5);  // role, two texts, the end, [DONE]
  EXPECT_EQ(json::parse(events[1])["choices"][0]["delta"]["content"], "By");
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST_F(LostServerTest, WaitsForRoomOnTheOthers) {
  std::atomic<int> asked = 0;
  FakeDecode first(Lost({{"Hel", 1}}));
  FakeDecode second(
      [&](grpc::ServerContext* context, const v1::GenerateRequest& request, FakeDecode::Writer* writer) {
        if (++asked % 3 != 0) return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "no room");
        return Whole({{"Hel", 1}, {"lo", 2}})(context, request, writer);
      });
  Start(first, second);
  for (int i = 1; i <= 2; ++i) {
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    while (!router_->State("chat").reason.empty() && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(5));
    }
    if (i == 1) {
      EXPECT_EQ(Stream(), std::make_pair(std::string("Hello"), std::string("[DONE]")));
    } else {
      EXPECT_EQ(Chat("").Json()["choices"][0]["message"]["content"], "Hello");
    }
    EXPECT_EQ(asked.load(), 3 * i);
  }
}

TEST_F(LostServerTest, EndsAnAnswerThatNoneCanGoOnWith) {
  FakeDecode first(Lost({{"Hel", 1}})), second(Lost({{"Hel", 1}}));
  Start(first, second);
  EXPECT_EQ(Stream(), std::make_pair(std::string("Hel"), std::string("going down")));
  EXPECT_EQ(first.calls(), 1);
  EXPECT_EQ(second.calls(), 1);
  router_->AwaitCalls();
  EXPECT_THAT(metrics_->Render(), HasSubstr("aludel_cut_answers_total{model=\"chat\",outcome=\"lost\"} 1"));
}

TEST_F(LostServerTest, StopsWaitingWhenTheClientLeaves) {
  Event asked;
  FakeDecode first(Lost({{"Hel", 1}}));
  FakeDecode second([&](grpc::ServerContext*, const v1::GenerateRequest&, FakeDecode::Writer*) {
    asked.Notify();
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "no room");
  });
  Start(first, second);
  const std::string body = R"({"model": "chat", "messages": [{"role": "user", "content": "hi"}]})";
  RawClient client(server_->port());
  client.Send(absl::StrCat("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: ", body.size(),
                           "\r\n\r\n", body));
  ASSERT_TRUE(asked.Wait());
  client.Close();
  const absl::Time left = absl::Now();
  router_->AwaitCalls();
  EXPECT_LT(absl::Now() - left, absl::Seconds(3));
}

TEST_F(GatewayTest, QuotesLittleOfALongPath) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  for (const char* method : {"GET", "OPTIONS"}) {
    for (const char* body : {"", "a body"}) {
      const Answer answer = Send(method, "/" + std::string(10000, 'a'), body);
      EXPECT_EQ(answer.status, 404);
      EXPECT_LT(answer.body.size(), 1000);
      EXPECT_THAT(answer.body, HasSubstr(std::string(500, 'a')));
    }
  }
}

TEST_F(GatewayTest, SaysThatNoDecodeServerIsReady) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  decode.Stop();
  WaitForReady(503);
  const Answer answer = Chat("");
  EXPECT_EQ(answer.status, 503);
  EXPECT_THAT(answer.head, HasSubstr("Retry-After"));
  EXPECT_THAT(Get("/ready").body, HasSubstr(decode.target()));
  EXPECT_EQ(Get("/health").status, 200);
}

TEST_F(GatewayTest, RefusesADecodeServerOfAnotherModel) {
  FakeDecode other(FakeDecode::Hello, "json");
  StartGateway({&other}, {}, /*wait_until_ready=*/false);
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (Get("/ready").body.find("serves model") == std::string::npos && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_THAT(Get("/ready").body, HasSubstr(R"(serves model \"json\", want \"chat\")"));
  EXPECT_EQ(Chat("").status, 503);
}

TEST_F(GatewayTest, ShedsWhatIsBeyondItsRequestLimit) {
  Event running, release;
  FakeDecode decode(
      [&](grpc::ServerContext* context, const v1::GenerateRequest& request, FakeDecode::Writer* writer) {
        running.Notify();
        release.Wait();
        return FakeDecode::Hello(context, request, writer);
      });
  StartGateway({&decode}, {.max_requests = 1});
  std::thread first([&] { EXPECT_EQ(Chat("").status, 200); });
  running.Wait();
  EXPECT_EQ(Chat("").status, 503);
  release.Notify();
  first.join();
}

TEST_F(GatewayTest, ListsModelsWithTheirContext) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  const json list = Get("/v1/models").Json();
  ASSERT_EQ(list["data"].size(), 2);
  EXPECT_EQ(list["data"][0]["id"], "chat");
  EXPECT_EQ(list["data"][0]["max_model_len"], 64);
  EXPECT_EQ(list["data"][0]["aludel"]["formats"], json({"scd", "raw"}));
  EXPECT_EQ(Get("/v1/models/chat").Json()["object"], "model");
  EXPECT_EQ(Get("/v1/models/org/plain").status, 200);
  EXPECT_EQ(Get("/v1/models/org%2Fplain").status, 200);
  EXPECT_EQ(Get("/v1/models/none").status, 404);
}

TEST_F(GatewayTest, TokenizesAndBack) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  const json plain = Send("POST", "/tokenize", R"({"model": "chat", "prompt": "ab"})").Json();
  EXPECT_EQ(plain["tokens"], json({256, 97, 98}));
  EXPECT_EQ(plain["count"], 3);
  const json chat =
      Send("POST", "/tokenize", R"({"model": "chat", "messages": [{"role": "user", "content": "a"}]})")
          .Json();
  EXPECT_EQ(chat["tokens"], json({97, 124}));
  EXPECT_EQ(Send("POST", "/detokenize", R"({"model": "chat", "tokens": [97, 98]})").Json()["prompt"], "ab");
  EXPECT_EQ(Send("POST", "/detokenize", R"({"model": "chat", "tokens": []})").Json()["prompt"], "");
  EXPECT_EQ(Send("POST", "/detokenize", R"({"model": "chat", "tokens": [999]})").status, 400);
  EXPECT_EQ(Send("POST", "/detokenize", R"({"model": "chat", "tokens": "ab"})").Json()["error"]["message"],
            "'tokens' must be a list of token ids, found string");
  EXPECT_EQ(Send("POST", "/tokenize", R"({"model": "chat"})").status, 400);
}

TEST_F(GatewayTest, KeepsAClientsRequestIdIfItIsFit) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  EXPECT_THAT(Send("GET", "/health", "", "X-Request-Id: abc-1\r\n").head,
              HasSubstr("x-request-id: abc-1\r\n"));
  EXPECT_THAT(Send("GET", "/health", "", "X-Request-Id: a b\r\n").head, HasSubstr("x-request-id: req-"));
}

TEST_F(GatewayTest, CountsWhatItServed) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  Chat("");
  Chat(R"(, "stream": true)");
  Chat(R"(, "n": 0)");
  // A request is counted when its call has ended, which may be after its answer has come.
  std::string metrics;
  const absl::Time deadline = absl::Now() + absl::Seconds(5);
  do {
    metrics = Get("/metrics").body;
  } while ((metrics.find("outcome=\"ok\"} 2") == std::string::npos ||
            metrics.find("status=\"400\"} 1") == std::string::npos) &&
           absl::Now() < deadline);
  EXPECT_THAT(metrics, HasSubstr("aludel_time_to_first_token_seconds_count{format=\"scd\",model=\"chat\","
                                 "plan=\"remote\"} 2"));
  EXPECT_THAT(metrics, HasSubstr("stage=\"gateway\""));
  EXPECT_THAT(metrics,
              HasSubstr("aludel_http_requests_total{path=\"/v1/chat/completions\",status=\"400\"} 1"));
  EXPECT_THAT(metrics, HasSubstr("aludel_requests_total{model=\"chat\",outcome=\"ok\"} 2"));
}

TEST_F(GatewayTest, IsNotReadyOnceItDrains) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  EXPECT_EQ(Get("/ready?model=chat").status, 200);
  EXPECT_EQ(Get("/ready?probe=1&model=org%2Fplain").status, 503);
  EXPECT_TRUE(gateway_->CheckReady().ok());
  EXPECT_THAT(std::string(gateway_->CheckReady("org/plain").message()), StartsWith("org/plain: "));
  gateway_->Drain();
  EXPECT_EQ(Get("/ready").status, 503);
  EXPECT_EQ(gateway_->CheckReady().message(), "draining");
  EXPECT_EQ(Chat("").status, 200);
  EXPECT_EQ(Get("/version").status, 200);
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
  const std::string pattern = R"({"properties": {"b": {"type": "string", "pattern": "a"}}})";
  // Twice: the second time it is known.
  for (int i = 0; i < 2; ++i) {
    const Answer refused = Chat(format(pattern));
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.error_param(), "response_format");
    EXPECT_EQ(refused.Json()["error"]["message"],
              "Invalid schema for response_format 'x': #/properties/b: keyword \"pattern\" is not supported");
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

TEST_F(GatewayTest, CountsADeadlineFromTheFirstByteOfItsRequest) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  const std::string body =
      R"({"model": "chat", "messages": [{"role": "user", "content": "hi"}], "aludel": {"timeout_ms": 200}})";
  RawClient client(server_->port());
  client.Send(absl::StrCat(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: ", body.size(),
      "\r\n\r\n", body.substr(0, 20)));
  absl::SleepFor(absl::Milliseconds(400));
  client.Send(body.substr(20));
  EXPECT_THAT(client.ReadAll(absl::Seconds(10)), StartsWith("HTTP/1.1 504"));
}

// Works on long texts until it is told to stop.
class EndlessTokenizer : public ByteTokenizer {
 public:
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, bool add_special,
                                              absl::string_view joint) const override {
    if (text.size() < kLong) return ByteTokenizer::Encode(text, add_special, joint);
    ++running;
    while (CheckStop().ok()) absl::SleepFor(absl::Milliseconds(1));
    --running;
    return CheckStop();
  }
  static constexpr size_t kLong = 20000;
  mutable std::atomic<int> running = 0;
};

class LargeRequestTest : public GatewayTest {
 protected:
  LargeRequestTest() : decode_(FakeDecode::Hello) {}

  void Start(absl::Duration request_timeout) {
    StartGateway({&decode_}, {.request_timeout = request_timeout});
    auto tokenizer = std::make_unique<EndlessTokenizer>();
    tokenizer_ = tokenizer.get();
    models_->all()[0]->tokenizer = std::move(tokenizer);
    models_->all()[0]->longest_token_bytes = 1 << 20;  // no text is too long to look at
  }
  std::unique_ptr<RawClient> Ask(const std::string& path) {
    auto client = std::make_unique<RawClient>(server_->port());
    const std::string body = absl::StrCat(R"({"model": "chat", "prompt": ")", text_, "\"}");
    client->Send(absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: ",
                              body.size(), "\r\n\r\n", body));
    return client;
  }
  void AwaitRunning(int count) const {
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    while (tokenizer_->running != count && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(tokenizer_->running, count);
  }

  const std::string text_ = std::string(EndlessTokenizer::kLong, 'a');
  FakeDecode decode_;
  const EndlessTokenizer* tokenizer_ = nullptr;
};

TEST_F(LargeRequestTest, EndsAtItsDeadlineWhereverItIs) {
  Start(absl::Milliseconds(300));
  std::vector<std::unique_ptr<RawClient>> clients;
  const absl::Time start = absl::Now();
  // More than run at once: the others' deadlines pass while they wait.
  for (int i = 0; i < 3; ++i) {
    clients.push_back(Ask("/tokenize"));
    clients.push_back(Ask("/v1/completions"));
  }
  for (const auto& client : clients) {
    EXPECT_THAT(client->ReadAll(absl::Seconds(10)), StartsWith("HTTP/1.1 504"));
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(3));
  EXPECT_EQ(Chat(R"(, "aludel": {"timeout_ms": 50})", text_).status, 504);
  AwaitRunning(0);
}

TEST_F(LargeRequestTest, HoldsNobodyElseUp) {
  Start(absl::Minutes(1));
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 5; ++i) clients.push_back(Ask(i % 2 == 0 ? "/tokenize" : "/v1/completions"));
  AwaitRunning(2);
  EXPECT_EQ(Get("/v1/models").status, 200);
  EXPECT_EQ(Chat("").status, 200);
}

TEST_F(LargeRequestTest, EndsWhenItsClientGoes) {
  Start(absl::Minutes(1));
  auto tokenize = Ask("/tokenize");
  auto complete = Ask("/v1/completions");
  AwaitRunning(2);
  tokenize.reset();
  AwaitRunning(1);
  complete.reset();
  AwaitRunning(0);
}

TEST_F(LargeRequestTest, EndsWithTheServer) {
  Start(absl::Minutes(1));
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 5; ++i) clients.push_back(Ask(i % 2 == 0 ? "/tokenize" : "/v1/completions"));
  AwaitRunning(2);
  const absl::Time start = absl::Now();
  server_->Shutdown(absl::Milliseconds(100));
  server_.reset();
  gateway_.reset();
  EXPECT_LT(absl::Now() - start, absl::Seconds(3));
}

}  // namespace
}  // namespace aludel
