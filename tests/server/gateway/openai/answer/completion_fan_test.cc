#include "server/gateway/openai/answer/completion_fan.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
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

// Of each token of the prompt but the first, its place with a minus and less `fraction`.
void Score(const v1::GenerateRequest& request, float fraction, FakeDecode::Writer* writer) {
  v1::GenerateEvent event;
  v1::PromptLogprobs& piece = *event.mutable_prompt_logprobs();
  piece.set_begin(1);
  for (int i = 1; i < request.prompt_size(); ++i) {
    piece.add_ranks(1);
    piece.add_tokens(request.prompt(i));
    piece.add_logprobs(-static_cast<float>(i) - fraction);
  }
  writer->Write(event);
}

// Repeats the prompt's first letter in every choice, with the choice's number behind it; scores the prompt where that is
// asked for.
grpc::Status Repeat(grpc::ServerContext*, const v1::GenerateRequest& request, FakeDecode::Writer* writer) {
  const v1::SamplingParams& sampling = request.sampling();
  if (sampling.has_prompt_logprobs()) Score(request, /*fraction=*/0, writer);
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

// How many calls run, and did at most.
struct Load {
  int Enter() {
    const int now = ++running;
    for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
    }
    return now;
  }
  std::atomic<int> running = 0;
  std::atomic<int> most = 0;
};

std::string Prompts(int count, const std::string& text = "p") {
  return absl::StrCat("\"prompt\": [",
                      absl::StrJoin(std::vector<std::string>(count, "\"" + text + "\""), ","), "]");
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
  Load load;
  FakeDecode decode([&](grpc::ServerContext* context, const v1::GenerateRequest& request, auto* writer) {
    load.Enter();
    absl::SleepFor(absl::Milliseconds(20));
    --load.running;
    return Repeat(context, request, writer);
  });
  StartGateway({&decode});
  const Answer answer = Complete(Prompts(40));
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.Json()["choices"].size(), 40);
  EXPECT_LE(load.most, 8);
  EXPECT_GE(load.most, 2);
  // A server takes 8 choices.
  load.most = 0;
  EXPECT_EQ(Complete(Prompts(20) + ", \"n\": 4").status, 200);
  EXPECT_LE(load.most, 2);
}

TEST_F(CompletionFanTest, APromptThatFindsNoRoomIsAskedAgain) {
  std::atomic<int> places = 3;
  std::atomic<int> refused = 0;
  FakeDecode decode([&](grpc::ServerContext* context, const v1::GenerateRequest& request, auto* writer) {
    int free = places;
    while (free > 0 && !places.compare_exchange_weak(free, free - 1)) {
    }
    if (free == 0) {
      ++refused;
      return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full");
    }
    absl::SleepFor(absl::Milliseconds(20));
    ++places;
    return Repeat(context, request, writer);
  });
  StartGateway({&decode});
  const Answer answer = Complete(Prompts(30));
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_GT(refused, 0);
  for (const json& choice : answer.Json()["choices"]) EXPECT_EQ(choice["text"], "p0");
  EXPECT_EQ(answer.Json()["choices"].size(), 30);
  EXPECT_EQ(answer.Json()["usage"]["prompt_tokens"], 60);
}

TEST_F(CompletionFanTest, WithoutAnyRoomIsRefused) {
  FakeDecode decode([&](grpc::ServerContext*, const v1::GenerateRequest&, auto*) {
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full");
  });
  StartGateway({&decode});
  const Answer answer = Complete(Prompts(30));
  EXPECT_EQ(answer.status, 429);
  EXPECT_THAT(answer.body, HasSubstr("full"));
  EXPECT_LE(decode.calls(), 8);
}

TEST_F(CompletionFanTest, KeepsToTheLimitsOfAKey) {
  Load load;
  FakeDecode decode([&](grpc::ServerContext* context, const v1::GenerateRequest& request, auto* writer) {
    load.Enter();
    absl::SleepFor(absl::Milliseconds(20));
    --load.running;
    return Repeat(context, request, writer);
  });
  StartGateway({&decode});
  access_.SetKeys({{.name = "a",
                    .sha256 = HashApiKey("key"),
                    .limits = {.requests_per_minute = 10, .max_concurrent = 2}}});
  const auto complete = [&](int prompts) {
    return Send("POST", "/v1/completions", absl::StrCat(R"({"model": "chat", )", Prompts(prompts), "}"),
                "Authorization: Bearer key\r\n");
  };
  EXPECT_EQ(complete(12).status, 200);
  EXPECT_LE(load.most, 2);
  EXPECT_EQ(decode.calls(), 12);
  const Answer next = complete(1);
  EXPECT_EQ(next.status, 429);
  EXPECT_THAT(next.body, HasSubstr("requests per minute"));
}

TEST_F(CompletionFanTest, EndsWhereItsAnswerIsTooLong) {
  FakeDecode decode([&](grpc::ServerContext*, const v1::GenerateRequest& request, auto* writer) {
    Score(request, /*fraction=*/0.1f, writer);  // more digits than most
    writer->Write(FakeDecode::Started());
    v1::GenerateEvent finished = FakeDecode::Finished(request, 0);
    finished.mutable_finished()->set_reason("length");
    writer->Write(finished);
    return grpc::Status::OK;
  });
  StartGateway({&decode}, {.max_answer_bytes = 155000});
  const std::string fields = R"(, "max_tokens": 0, "prompt_logprobs": 0)";
  const Answer answer = Complete(Prompts(50, std::string(50, 'p')) + fields);
  EXPECT_EQ(answer.status, 422);
  EXPECT_THAT(answer.body, HasSubstr("the answer is longer than the 155000 bytes"));
  const int calls = decode.calls();
  EXPECT_GT(calls, 20);
  // A part of them fits.
  EXPECT_EQ(Complete(Prompts(30, std::string(50, 'p')) + fields).status, 200);
  // More of them are refused before a server is asked.
  const int before = decode.calls();
  const Answer refused = Complete(Prompts(60, std::string(50, 'p')) + fields);
  EXPECT_EQ(refused.status, 422);
  EXPECT_EQ(refused.error_param(), "prompt_logprobs");
  EXPECT_THAT(refused.body, HasSubstr("3060 prompt tokens takes about 183600 bytes of an answer"));
  EXPECT_EQ(decode.calls(), before);
}

// With no token, nothing else would end the rest.
TEST_F(CompletionFanTest, AsksNoFurtherPromptsOnceItsAnswerIsTooLong) {
  FakeDecode decode([&](grpc::ServerContext*, const v1::GenerateRequest& request, auto* writer) {
    writer->Write(FakeDecode::Started());
    v1::GenerateEvent finished = FakeDecode::Finished(request, 0);
    finished.mutable_finished()->set_text(std::string(1000, 'x'));
    finished.mutable_finished()->set_reason("length");
    writer->Write(finished);
    return grpc::Status::OK;
  });
  StartGateway({&decode}, {.max_answer_bytes = 5000});
  const Answer answer = Complete(Prompts(200) + R"(, "max_tokens": 0, "echo": true)");
  EXPECT_EQ(answer.status, 422);
  EXPECT_THAT(answer.body, HasSubstr("the answer is longer than the 5000 bytes"));
  EXPECT_LE(decode.calls(), 40);
}

TEST_F(CompletionFanTest, ALongEchoIsNotStreamed) {
  FakeDecode decode(Repeat);
  StartGateway({&decode});
  std::string text;
  for (int i = 0; i < 60; ++i) text += "\\u0001";
  const std::string fields = Prompts(256, text) + R"(, "echo": true, "n": 2)";
  const Answer streamed = Complete(fields + R"(, "stream": true)");
  EXPECT_EQ(streamed.status, 422);
  EXPECT_EQ(streamed.error_param(), "stream");
  EXPECT_THAT(streamed.body, HasSubstr("at most 131072 bytes; yours would have 184320"));
  EXPECT_EQ(Complete(fields).status, 200);
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
