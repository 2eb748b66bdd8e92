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
  EXPECT_THAT(request.prefill_targets(), ::testing::UnorderedElementsAre("p1:1", "p2:2"));
  EXPECT_EQ(request.fidelity(), v1::FIDELITY_FAST);
  EXPECT_EQ(request.format(), "scd");
}

TEST_F(GatewayTest, TellsOfPlansAndFramesWhereThatIsAskedFor) {
  FakeDecode decode([](grpc::ServerContext*, const v1::GenerateRequest& request, FakeDecode::Writer* writer) {
    v1::GenerateEvent event;
    event.mutable_started()->set_plan("remote");
    writer->Write(event);
    event.mutable_token()->set_text("Hello");
    writer->Write(event);
    if (request.trace()) {
      v1::RequestTrace* trace = event.mutable_trace();
      trace->set_reason("fastest");
      trace->add_options()->set_predicted_ttft(0.5);
      trace->add_options()->set_format("scd");
      v1::FrameTrace* frame = trace->add_frames();
      frame->set_first_layer(4);
      frame->set_layers(2);
      frame->set_received(0.25);
      trace->set_first_token(0.375);
      writer->Write(event);
    }
    event.mutable_finished()->set_reason("stop");
    writer->Write(event);
    return grpc::Status::OK;
  });
  StartGateway({&decode});
  EXPECT_FALSE(Chat("").Json()["aludel"].contains("trace"));
  const json trace = Chat(R"(, "aludel": {"trace": true})").Json()["aludel"]["trace"];
  EXPECT_EQ(trace["reason"], "fastest");
  EXPECT_EQ(trace["options"],
            json::parse(R"([{"plan": "local", "format": "", "predicted_ttft": 0.5, "bytes_per_token": null},
                            {"plan": "remote", "format": "scd", "predicted_ttft": null, "bytes_per_token": null}])"));
  EXPECT_EQ(trace["frames"][0]["first_layer"], 4);
  EXPECT_EQ(trace["frames"][0]["received"], 0.25);
  EXPECT_TRUE(trace["frames"][0]["applied"].is_null());
  EXPECT_EQ(trace["first_token"], 0.375);
  // The last chunk of a stream has it, too.
  EXPECT_THAT(Chat(R"(, "stream": true, "aludel": {"trace": true})").body,
              HasSubstr(R"("reason":"fastest")"));
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
  const uint32_t choices = std::max(1u, request.sampling().choices());
  for (uint32_t i = 0; writer->Write(token); ++i) token.mutable_token()->set_choice((i + 1) % choices);
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
  // So do all choices together.
  const Answer choices = Chat(R"(, "n": 3, "logprobs": true, "top_logprobs": 0)");
  EXPECT_EQ(choices.status, 422);
  EXPECT_THAT(choices.body, HasSubstr("after 155 tokens of 3 choices"));
  router_->AwaitCalls();
  EXPECT_THAT(metrics_->Render(),
              HasSubstr("aludel_requests_total{model=\"chat\",outcome=\"failed_precondition\"} 3"));
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
  // As clients join a base URL and a path.
  for (const char* path : {"/v1/models/", "//v1/models", "/v1//models/chat/"}) {
    EXPECT_EQ(Get(path).status, 200) << path;
  }
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

// A client with one request at a time is never over a limit of one, however long its decode server takes to end a call
// whose answer is whole.
TEST_F(GatewayTest, GivesAPlaceBackBeforeTheAnswerEnds) {
  FakeDecode decode(
      [](grpc::ServerContext* context, const v1::GenerateRequest& request, FakeDecode::Writer* writer) {
        const grpc::Status status = FakeDecode::Hello(context, request, writer);
        absl::SleepFor(absl::Milliseconds(200));
        return status;
      });
  StartGateway({&decode}, {.max_requests = 1});
  access_.SetKeys({{.name = "a", .sha256 = HashApiKey("key"), .limits = {.max_concurrent = 1}}});
  constexpr char kMessages[] = R"("messages": [{"role": "user", "content": "hi"}])";
  const std::pair<const char*, std::string> asked[] = {
      {"/v1/chat/completions", kMessages},
      {"/v1/completions", R"("prompt": "hi")"},
      {"/v1/completions", R"("prompt": ["hi", "ho"], "n": 1)"},
      {"/v1/messages", absl::StrCat(R"("max_tokens": 5, )", kMessages)},
      {"/v1/responses", R"("input": "hi")"},
      {"/v1/completions", R"("prompt": "hi", "n": 2)"}};  // refused
  for (const char* stream : {"false", "true"}) {
    for (const auto& [path, fields] : asked) {
      const Answer answer =
          Send("POST", path, absl::StrCat(R"({"model": "chat", "stream": )", stream, ", ", fields, "}"),
               "Authorization: Bearer key\r\n");
      EXPECT_EQ(answer.status, absl::StrContains(fields, "\"n\": 2") ? 400 : 200) << path << answer.body;
    }
  }
}

TEST_F(GatewayTest, CountsWhatItServed) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  Chat("");
  Chat(R"(, "stream": true)");
  Chat(R"(, "n": 0)");
  const std::string metrics = Get("/metrics").body;
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

}  // namespace
}  // namespace aludel::gateway_testing
