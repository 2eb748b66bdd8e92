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

TEST_F(GatewayTest, EndsARequestAtItsDeadline) {
  FakeDecode decode([](grpc::ServerContext* context, const v1::GenerateRequest&, FakeDecode::Writer*) {
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
    return grpc::Status::CANCELLED;
  });
  StartGateway({&decode}, {.request_timeout = absl::Milliseconds(100)});
  const absl::Time start = absl::Now();
  const Answer answer = Chat("");
  EXPECT_EQ(answer.status, 504);
  EXPECT_THAT(answer.body,
              HasSubstr("not answered before its deadline: 'aludel.timeout_ms', or the gateway's"));
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
  // In front of both, which are asked in this order.
  void Start(FakeDecode& first, FakeDecode& second) {
    routing_.policy = RoutingPolicy::kLeastPending;
    StartGateway({&first, &second});
    WaitForAll();
  }
  // Of a stream: its text, and the message of the error that ended it, or "[DONE]".
  std::pair<std::string, std::string> Stream(const std::string& fields = "") {
    return Read(Chat(absl::StrCat(R"(, "stream": true)", fields)));
  }
  static std::pair<std::string, std::string> Read(const Answer& answer) {
    std::string text;
    for (const std::string& event : answer.Events()) {
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

TEST_F(LostServerTest, GoesOnWithAnAdaptersAnswerWhereItsFilesAreTheSame) {
  for (const auto& [hash, end] : {std::pair{"h1", "[DONE]"}, {"h2", "going down"}, {"", "going down"}}) {
    FakeDecode first(Lost({{"Hel", 1}})), second(Whole({{"Hel", 1}, {"lo", 2}}));
    first.Have("tune", "h1");
    second.Have("tune", hash);
    Start(first, second);
    models_->FindAdaptersWith([this](const std::string& name) { return router_->targets().BaseOf(name); });
    const auto ended = Read(Send("POST", "/v1/chat/completions",
                                 R"({"model": "tune", "messages": [{"role": "user", "content": "hi"}], )"
                                 R"("stream": true})"));
    EXPECT_EQ(ended.second, end) << hash;
    EXPECT_EQ(ended.first, ended.second == "[DONE]" ? "Hello" : "Hel");
    EXPECT_EQ(first.calls(), 1);
    EXPECT_EQ(second.calls(), ended.second == "[DONE]" ? 1 : 0);
    server_.reset();
    gateway_.reset();
    router_.reset();
  }
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

}  // namespace
}  // namespace aludel::gateway_testing
