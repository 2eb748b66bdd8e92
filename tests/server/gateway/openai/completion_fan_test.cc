#include "server/gateway/openai/completion_fan.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>

#include "absl/strings/str_join.h"
#include "tests/server/gateway/gateway_fixture.h"

namespace aludel::gateway_testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string PromptText(const v1::GenerateRequest& request) {
  std::string text;
  for (const int32_t id : request.prompt()) {
    if (id < 256) text += static_cast<char>(id);
  }
  return text;
}

// Repeats the prompt's first letter in every choice, with the choice's number behind it; scores the prompt where that is
// asked for.
grpc::Status Repeat(grpc::ServerContext*, const v1::GenerateRequest& request, FakeDecode::Writer* writer) {
  const v1::SamplingParams& sampling = request.sampling();
  if (sampling.has_prompt_logprobs()) {
    v1::GenerateEvent event;
    v1::PromptLogprobs& piece = *event.mutable_prompt_logprobs();
    piece.set_begin(1);
    for (int i = 1; i < request.prompt_size(); ++i) {
      piece.add_ranks(1);
      piece.add_tokens(request.prompt(i));
      piece.add_logprobs(-static_cast<float>(i));
    }
    writer->Write(event);
  }
  writer->Write(FakeDecode::Started());
  for (uint32_t choice = 0; choice < sampling.choices(); ++choice) {
    v1::GenerateEvent token = FakeDecode::Token(absl::StrCat(PromptText(request).substr(0, 1), choice), 'x');
    token.mutable_token()->set_choice(choice);
    if (sampling.has_top_logprobs()) {
      v1::TokenLogprob* entry = token.mutable_token()->add_logprobs();
      entry->set_token('x');
      entry->set_logprob(-0.25f);
    }
    if (!sampling.no_answer()) writer->Write(token);
    v1::GenerateEvent finished = FakeDecode::Finished(request, sampling.no_answer() ? 0 : 1);
    finished.mutable_finished()->set_choice(choice);
    finished.mutable_finished()->set_reason("length");
    writer->Write(finished);
  }
  return grpc::Status::OK;
}

class CompletionFanTest : public GatewayTest {
 protected:
  Answer Complete(const std::string& fields) {
    return Send("POST", "/v1/completions", absl::StrCat(R"({"model": "chat", )", fields, "}"));
  }
};

TEST_F(CompletionFanTest, ChoicesOfSeveralPromptsStandInTheirOrder) {
  FakeDecode decode(Repeat);
  StartGateway({&decode});
  const Answer answer = Complete(R"("prompt": ["ab", "cde", "f"], "n": 2)");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json body = answer.Json();
  std::vector<std::string> texts;
  for (size_t i = 0; i < body["choices"].size(); ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    texts.push_back(body["choices"][i]["text"]);
  }
  EXPECT_THAT(texts, ElementsAre("a0", "a1", "c0", "c1", "f0", "f1"));
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3 + 4 + 2);
  EXPECT_EQ(body["usage"]["completion_tokens"], 6);
  EXPECT_EQ(body["aludel"]["payload_bytes"], 300);
  EXPECT_EQ(body["aludel"]["plan"], "remote");
  EXPECT_EQ(decode.calls(), 3);
}

TEST_F(CompletionFanTest, TokenIdsAreNotGivenASpecialTokenInFront) {
  FakeDecode decode(Repeat);
  StartGateway({&decode});
  const json body = Complete(R"("prompt": [[97], [98, 99]], "return_token_ids": true)").Json();
  EXPECT_EQ(body["choices"][0]["prompt_token_ids"], json({97}));
  EXPECT_EQ(body["choices"][1]["prompt_token_ids"], json({98, 99}));
  EXPECT_EQ(body["choices"][1]["text"], "b0");
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
}

TEST_F(CompletionFanTest, AStreamHasTheSameChoices) {
  FakeDecode decode(Repeat);
  StartGateway({&decode});
  const Answer answer =
      Complete(R"("prompt": ["ab", "cd"], "n": 2, "stream": true, "stream_options": {"include_usage": true},
                  "echo": true, "return_token_ids": true)");
  ASSERT_EQ(answer.status, 200);
  std::map<int, std::string> texts;
  std::map<int, std::string> ends;
  std::map<int, json> prompts;
  json usage;
  std::vector<std::string> events = answer.Events();
  EXPECT_EQ(events.back(), "[DONE]");
  events.pop_back();
  for (const std::string& event : events) {
    const json chunk = json::parse(event);
    for (const json& choice : chunk["choices"]) {
      texts[choice["index"]] += choice["text"];
      if (!choice["finish_reason"].is_null()) ends[choice["index"]] = choice["finish_reason"];
      if (choice.contains("prompt_token_ids")) prompts[choice["index"]] = choice["prompt_token_ids"];
    }
    if (!chunk["usage"].is_null()) usage = chunk["usage"];
  }
  EXPECT_THAT(texts, ElementsAre(std::pair(0, "aba0"), std::pair(1, "aba1"), std::pair(2, "cdc0"),
                                 std::pair(3, "cdc1")));
  EXPECT_EQ(ends.size(), 4);
  EXPECT_EQ(prompts, (std::map<int, json>{{0, {256, 97, 98}}, {2, {256, 99, 100}}}));
  EXPECT_EQ(usage["prompt_tokens"], 6);
}

// What lm-eval's "local-completions" asks and reads, with token ids and with texts.
TEST_F(CompletionFanTest, LoglikelihoodRequestsOfLmEvalFindWhatTheyRead) {
  FakeDecode decode(Repeat);
  StartGateway({&decode});
  const struct {
    const char* prompt;
    size_t tokens;
  } kCases[] = {{"[[97, 98, 99], [100, 101]]", 3}, {R"(["bc", "e"])", 3}};
  for (const auto& [prompt, tokens] : kCases) {
    const Answer answer = Complete(
        absl::StrCat(R"("prompt": )", prompt,
                     R"(, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": true)"));
    ASSERT_EQ(answer.status, 200) << answer.body;
    const json logprobs = answer.Json()["choices"][0]["logprobs"];
    EXPECT_EQ(logprobs["token_logprobs"], json({nullptr, -1.0, -2.0, -0.25}));
    EXPECT_EQ(logprobs["tokens"].size(), tokens + 1);
    EXPECT_EQ(logprobs["top_logprobs"][tokens], json({{"x", -0.25}}));
    EXPECT_EQ(logprobs["text_offset"].size(), tokens + 1);
    const std::string text = answer.Json()["choices"][0]["text"];
    EXPECT_EQ(logprobs["text_offset"][tokens], text.size() - 2);
    EXPECT_EQ(answer.Json()["choices"][1]["logprobs"]["token_logprobs"][1], -1.0);
    EXPECT_EQ(decode.last_request().fidelity(), v1::FIDELITY_EXACT);
    EXPECT_EQ(decode.last_request().sampling().prompt_logprobs(), 1);
  }
}

TEST_F(CompletionFanTest, AnEchoMayStandAlone) {
  FakeDecode decode(Repeat);
  StartGateway({&decode});
  const json body = Complete(R"("prompt": "hey", "max_tokens": 0, "echo": true, "logprobs": 0)").Json();
  EXPECT_EQ(body["choices"][0]["text"], "hey");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["choices"][0]["logprobs"]["token_logprobs"], json({nullptr, -1.0, -2.0, -3.0}));
  EXPECT_EQ(body["usage"]["completion_tokens"], 0);
  EXPECT_TRUE(decode.last_request().sampling().no_answer());
  EXPECT_EQ(decode.last_request().sampling().max_tokens(), 0);
}

TEST_F(CompletionFanTest, PromptLogprobsAreThoseOfVllm) {
  FakeDecode decode(Repeat);
  StartGateway({&decode});
  const json plain = Complete(R"("prompt": ["ab", "c"], "prompt_logprobs": 0)").Json();
  EXPECT_EQ(plain["choices"][0]["prompt_logprobs"][2]["98"]["logprob"], -2.0);
  EXPECT_EQ(plain["choices"][1]["prompt_logprobs"].size(), 2);
  EXPECT_TRUE(plain["choices"][0]["logprobs"].is_null());
  const json chat = Chat(R"(, "prompt_logprobs": 0)").Json();
  EXPECT_TRUE(chat["prompt_logprobs"][0].is_null());
  EXPECT_EQ(chat["prompt_logprobs"][1]["105"]["decoded_token"], "i");
}

TEST_F(CompletionFanTest, NoMoreThanSomePromptsRunAtOnce) {
  std::atomic<int> running = 0;
  std::atomic<int> most = 0;
  FakeDecode decode([&](grpc::ServerContext* context, const v1::GenerateRequest& request, auto* writer) {
    const int now = ++running;
    for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
    }
    absl::SleepFor(absl::Milliseconds(20));
    --running;
    return Repeat(context, request, writer);
  });
  StartGateway({&decode});
  std::vector<std::string> prompts(40, "\"p\"");
  const Answer answer = Complete(absl::StrCat("\"prompt\": [", absl::StrJoin(prompts, ","), "]"));
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.Json()["choices"].size(), 40);
  EXPECT_LE(most, 8);
  EXPECT_GE(most, 2);
}

TEST_F(CompletionFanTest, TheFirstPromptThatFailsEndsTheRequest) {
  std::atomic<int> calls = 0;
  FakeDecode decode([&](grpc::ServerContext* context, const v1::GenerateRequest& request, auto* writer) {
    ++calls;
    if (PromptText(request) == "bad") return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "not this one");
    for (int i = 0; i < 500 && !context->IsCancelled(); ++i) absl::SleepFor(absl::Milliseconds(10));
    return context->IsCancelled() ? grpc::Status::CANCELLED : Repeat(context, request, writer);
  });
  StartGateway({&decode});
  std::vector<std::string> prompts(30, "\"p\"");
  prompts[3] = "\"bad\"";
  const Answer answer = Complete(absl::StrCat("\"prompt\": [", absl::StrJoin(prompts, ","), "]"));
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.body, HasSubstr("not this one"));
  EXPECT_LE(calls, 9);
}

TEST_F(CompletionFanTest, AClientThatGoesEndsAllCalls) {
  std::atomic<int> cancelled = 0;
  std::atomic<int> begun = 0;
  FakeDecode decode([&](grpc::ServerContext* context, const v1::GenerateRequest&, auto*) {
    ++begun;
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    ++cancelled;
    return grpc::Status::CANCELLED;
  });
  StartGateway({&decode});
  {
    RawClient client(server_->port());
    const std::string body = R"({"model": "chat", "prompt": ["a", "b", "c"]})";
    client.Send(absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: ", body.size(),
                             "\r\n\r\n", body));
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    while (begun < 3 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
  }
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (cancelled < 3 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(cancelled, 3);
}

TEST_F(CompletionFanTest, RefusalsSayWhatWasFound) {
  FakeDecode decode(Repeat);
  StartGateway({&decode});
  std::vector<std::string> prompts(257, "\"p\"");
  const std::string many = absl::StrCat("\"prompt\": [", absl::StrJoin(prompts, ","), "]");
  const struct {
    std::string fields;
    const char* param;
    const char* message;
  } kCases[] = {
      {many, "prompt", "holds 257 prompts, of 1 choices each; want at most 256 prompts and 1024 choices"},
      {R"("prompt": ["a", 3])", "prompt[1]", "a string or a list of token ids"},
      {R"("prompt": ["a", [3, 999]])", "prompt[1]", "holds token id 999"},
      {absl::StrCat(R"("prompt": ["a", ")", std::string(70, 'x'), "\"]"), "prompt[1]",
       "maximum context length is 64"},
      {R"("prompt": "a", "max_tokens": 0)", "max_tokens", "or 0 beside 'echo' or 'prompt_logprobs'"},
      {R"("prompt": "a", "max_tokens": 0, "echo": true, "min_tokens": 1)", "min_tokens", "more than the 0"},
      {R"("prompt": "a", "prompt_logprobs": 1, "stream": true)", "prompt_logprobs", "'stream'"},
      {R"("prompt": "a", "prompt_logprobs": 21)", "prompt_logprobs", "between 0 and 20"},
      {R"("prompt": "a", "echo": true, "logprobs": 1, "aludel": {"format": "scd"})", "aludel.format",
       "decode server's own prefill"},
  };
  for (const auto& [fields, param, message] : kCases) {
    const Answer answer = Complete(fields);
    EXPECT_EQ(answer.status, 400) << fields.substr(0, 80);
    EXPECT_EQ(answer.error_param(), param);
    EXPECT_THAT(answer.body, HasSubstr(message));
  }
  EXPECT_EQ(decode.calls(), 0);
}

TEST_F(CompletionFanTest, ALongScoredEchoIsNotStreamed) {
  FakeDecode decode(Repeat);
  StartGateway({&decode});
  std::vector<std::string> prompts(100, absl::StrCat("\"", std::string(40, 'p'), "\""));
  const std::string fields =
      absl::StrCat("\"prompt\": [", absl::StrJoin(prompts, ","), R"(], "echo": true, "logprobs": 1)");
  const Answer streamed = Complete(absl::StrCat(fields, R"(, "stream": true)"));
  EXPECT_EQ(streamed.status, 422);
  EXPECT_EQ(streamed.error_param(), "stream");
  EXPECT_EQ(Complete(fields).status, 200);
}

}  // namespace
}  // namespace aludel::gateway_testing
