// What stands between a client and the models: keys, limits, origins, ids.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "server/gateway/gateway.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "tests/server/gateway/fake_decode.h"
#include "tests/server/gateway/plain_models.h"
#include "tests/server/http/raw_client.h"

namespace aludel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr char kBody[] = R"({"model": "chat", "messages": [{"role": "user", "content": "hi"}]})";
constexpr char kKey[] = "Authorization: Bearer sk-good\r\n";

class GatewayAccess : public ::testing::Test {
 protected:
  GatewayAccess()
      : decode_([this](grpc::ServerContext* context, const v1::GenerateRequest& request,
                       FakeDecode::Writer* writer) {
          const auto& metadata = context->client_metadata();
          if (const auto it = metadata.find("traceparent"); it != metadata.end()) {
            absl::MutexLock lock(&mutex_);
            traceparent_ = std::string(it->second.data(), it->second.size());
          }
          return FakeDecode::Hello(context, request, writer);
        }),
        models_(PlainModels()),
        router_({{.expectation = {.model = "chat"}, .decode_targets = {decode_.target()}}},
                {.probe_interval = absl::Milliseconds(20), .probe_timeout = absl::Seconds(5)}, &metrics_),
        gateway_({.cors_allowed_origins = {"https://good.example"}}, &access_, &models_, &router_,
                 &metrics_) {
    server_ = *gateway_.Listen({.limits = {.max_body_bytes = 1000}});
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    while (!router_.State("chat").ready && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(2));
  }
  ~GatewayAccess() override { server_.reset(); }

  void NeedKeys(const KeyLimits& limits) {
    access_.SetKeys({{.name = "good", .sha256 = HashApiKey("sk-good"), .limits = limits}});
  }
  std::string Send(const std::string& method, const std::string& path, const std::string& headers,
                   const std::string& body = "") {
    RawClient client(server_->port());
    client.Send(absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n", headers,
                             "Content-Length: ", body.size(), "\r\n\r\n", body));
    return client.ReadAll(absl::Seconds(10));
  }
  std::string Chat(const std::string& headers) {
    return Send("POST", "/v1/chat/completions", headers, kBody);
  }

  absl::Mutex mutex_;
  std::string traceparent_ ABSL_GUARDED_BY(mutex_);  // what the decode server saw
  FakeDecode decode_;
  Access access_{KeyLimits{}};
  const ServedModels models_;
  Metrics metrics_;
  Router router_;
  Gateway gateway_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(GatewayAccess, AsksForAKeyWhereOneIsNeeded) {
  NeedKeys({});
  EXPECT_THAT(Chat(kKey), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Send("GET", "/v1/models", kKey), StartsWith("HTTP/1.1 200"));
  for (const char* header : {"", "Authorization: Bearer sk-bad\r\n"}) {
    const std::string answer = Chat(header);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 401 Unauthorized\r\n"));
    EXPECT_THAT(answer, HasSubstr("WWW-Authenticate: Bearer\r\n"));
    const auto error = nlohmann::json::parse(answer.substr(answer.find("\r\n\r\n")))["error"];
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_EQ(error["code"], "invalid_api_key");
    EXPECT_THAT(answer, Not(HasSubstr("sk-bad")));
  }
  EXPECT_THAT(Send("GET", "/v1/models", ""), StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(Send("GET", "/no/such/path", ""), StartsWith("HTTP/1.1 401"));
  for (const char* open : {"/health", "/ready", "/version", "/metrics"}) {
    EXPECT_THAT(Send("GET", open, ""), StartsWith("HTTP/1.1 200")) << open;
  }
  EXPECT_EQ(decode_.calls(), 1);
  EXPECT_THAT(metrics_.Render(), HasSubstr("aludel_http_refusals_total{reason=\"invalid_api_key\"} 4"));
}

TEST_F(GatewayAccess, SaltsTheCachesByKeyAndByWhatTheRequestAdds) {
  const auto salt = [this](const std::string& key, const std::string& more = "") {
    const std::string body = absl::StrReplaceAll(kBody, {{"]}", absl::StrCat("]", more, "}")}});
    EXPECT_THAT(
        Send("POST", "/v1/chat/completions", absl::StrCat("Authorization: Bearer ", key, "\r\n"), body),
        StartsWith("HTTP/1.1 200"));
    return decode_.last_request().cache_salt();
  };
  EXPECT_EQ(salt("none"), "");  // no keys: one cache for all
  const std::string finer = salt("none", R"(, "cache_salt": "a")");
  EXPECT_EQ(finer.size(), 32u);
  const auto set_keys = [this](const std::string& secret) {
    access_.SetKeys(
        {{.name = "good", .sha256 = HashApiKey(secret)}, {.name = "goo", .sha256 = HashApiKey("sk-goo")}});
  };
  set_keys("sk-good");
  const std::string good = salt("sk-good");
  const std::string goo = salt("sk-goo");
  EXPECT_EQ(good.size(), 32u);
  EXPECT_NE(good, goo);
  EXPECT_EQ(salt("sk-good"), good);
  // No two pairs of key and salt are the same.
  EXPECT_THAT((std::set<std::string>{good, goo, finer, salt("sk-goo", R"(, "cache_salt": "d")"),
                                     salt("sk-good", R"(, "cache_salt": "a")"),
                                     salt("sk-goo", R"(, "cache_salt": "a")")}),
              SizeIs(6));
  // The key's name counts, not its secret.
  set_keys("sk-another");
  EXPECT_EQ(salt("sk-another"), good);
  for (const std::string& wrong : {std::string(), std::string(257, 'x')}) {
    const std::string body =
        absl::StrReplaceAll(kBody, {{"]}", absl::StrCat("], \"cache_salt\": \"", wrong, "\"}")}});
    EXPECT_THAT(Send("POST", "/v1/chat/completions", "Authorization: Bearer sk-goo\r\n", body),
                AllOf(StartsWith("HTTP/1.1 400"), HasSubstr("'cache_salt' must have 1 to 256 bytes")));
  }
}

TEST_F(GatewayAccess, ReadsNoBodyOfAStranger) {
  NeedKeys({});
  RawClient stranger(server_->port());
  stranger.Send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: https://good.example\r\n"
      "x-request-id: mine\r\nExpect: 100-continue\r\nContent-Length: 900\r\n\r\n");
  const std::string answer = stranger.ReadAll();
  EXPECT_TRUE(stranger.closed());
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 401 Unauthorized\r\n"));
  for (const char* header :
       {"WWW-Authenticate: Bearer\r\n", "Connection: close\r\n", "x-request-id: mine\r\n",
        "Access-Control-Allow-Origin: https://good.example\r\n"}) {
    EXPECT_THAT(answer, HasSubstr(header));
  }
  EXPECT_THAT(metrics_.Render(),
              HasSubstr("aludel_http_requests_total{path=\"/v1/chat/completions\",status=\"401\"} 1"));
  RawClient known(server_->port());
  known.Send(absl::StrCat("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n", kKey,
                          "Expect: 100-continue\r\nContent-Length: ", strlen(kBody), "\r\n\r\n"));
  EXPECT_EQ(known.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  known.Send(kBody);
  EXPECT_THAT(known.ReadUntil("\r\n"), StartsWith("HTTP/1.1 200"));
}

TEST_F(GatewayAccess, ReadsNoBodyThatNoRouteTakes) {
  const std::pair<std::string, int> cases[] = {
      {"GET /health", 413},         {"HEAD /health", 413},        {"GET /ready", 413},
      {"GET /metrics", 413},        {"GET /version", 413},        {"GET /", 413},
      {"GET /v1/models", 413},      {"GET /v1/models/chat", 413}, {"POST /health", 405},
      {"POST /v1/models", 405},     {"PUT /tokenize", 405},       {"POST /no/such/path", 404},
      {"GET /v1/completions", 405},
  };
  for (const auto& [line, status] : cases) {
    for (const char* framing : {"Content-Length: 900\r\n", "Transfer-Encoding: chunked\r\n"}) {
      RawClient client(server_->port());
      client.Send(absl::StrCat(line, " HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n", framing, "\r\n"));
      const std::string answer = client.ReadAll();  // nothing more is asked for
      EXPECT_TRUE(client.closed()) << line;
      EXPECT_THAT(answer, AllOf(StartsWith(absl::StrCat("HTTP/1.1 ", status, " ")),
                                HasSubstr("Connection: close\r\n"), HasSubstr("x-request-id: ")))
          << line;
    }
  }
  EXPECT_THAT(Send("OPTIONS", "/tokenize",
                   "Origin: https://good.example\r\nAccess-Control-Request-Method: POST\r\n", "body"),
              StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(Send("GET", "/health", ""), StartsWith("HTTP/1.1 200"));  // "Content-Length: 0" is no body
  EXPECT_THAT(metrics_.Render(), HasSubstr("aludel_http_requests_total{path=\"/health\",status=\"413\"} 4"));
}

TEST_F(GatewayAccess, SaysWhenToComeBack) {
  NeedKeys({.requests_per_minute = 1});
  EXPECT_THAT(Chat(kKey), StartsWith("HTTP/1.1 200"));
  const std::string answer = Chat(kKey);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 429 Too Many Requests\r\n"));
  EXPECT_THAT(answer, HasSubstr("Retry-After: 60\r\n"));
  EXPECT_THAT(answer, HasSubstr("\"type\":\"rate_limit_error\""));
}

TEST_F(GatewayAccess, TokenizingCountsAsARequest) {
  const char* const paths[] = {"/tokenize", "/detokenize"};
  const char* const bodies[] = {R"({"model": "chat", "prompt": "hi"})",
                                R"({"model": "chat", "tokens": [97]})"};
  for (int i = 0; i < 2; ++i) {
    NeedKeys({.requests_per_minute = 1});
    EXPECT_THAT(Send("POST", paths[i], kKey, bodies[i]), StartsWith("HTTP/1.1 200"));
    EXPECT_THAT(Send("POST", paths[i], kKey, bodies[i]), HasSubstr("requests per minute"));
    EXPECT_THAT(Send("GET", "/v1/models", kKey), StartsWith("HTTP/1.1 200"));
    access_.SetKeys({});  // forgets what the key has used
  }
  NeedKeys({.max_concurrent = 1});
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(Send("POST", paths[0], kKey, bodies[0]), StartsWith("HTTP/1.1 200"));
  }
}

TEST_F(GatewayAccess, CountsEveryChoiceAsAnAnswerAtOnce) {
  const auto ask = [this](absl::string_view fields) {
    return Send("POST", "/v1/completions", kKey, absl::StrCat(R"({"model": "chat", )", fields, "}"));
  };
  NeedKeys({.max_concurrent = 2});
  EXPECT_THAT(ask(R"("prompt": ["a", "b", "c", "d"])"), StartsWith("HTTP/1.1 200"));
  const std::string many = ask(R"("prompt": "hi", "n": 3)");
  EXPECT_THAT(many, StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(many, HasSubstr("'n' is 3; this API key may have at most 2 answers made at once"));
}

TEST_F(GatewayAccess, ResetsCachesForKeysThatMay) {
  NeedKeys({});
  const std::string refused = Send("POST", "/reset_prefix_cache", kKey, "");
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(refused, HasSubstr("admin=1"));
  EXPECT_THAT(Send("POST", "/reset_prefix_cache", "", ""), StartsWith("HTTP/1.1 401"));
  EXPECT_EQ(decode_.resets(), 0);
  NeedKeys({.admin = true});
  EXPECT_THAT(Send("POST", "/reset_prefix_cache", kKey, ""), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(decode_.resets(), 1);
  EXPECT_THAT(Send("GET", "/reset_prefix_cache", kKey, ""), StartsWith("HTTP/1.1 405"));
}

TEST_F(GatewayAccess, TellsAdministratorsAloneWhereAPromptIsCached) {
  NeedKeys({});
  EXPECT_THAT(Send("GET", "/admin/routing?key=other&prompt=hi", kKey, ""), StartsWith("HTTP/1.1 403"));
  NeedKeys({.admin = true});
  const std::string told = Send("GET", "/admin/routing?key=other&prompt=hi", kKey, "");
  EXPECT_THAT(told, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(told, HasSubstr(decode_.target()));
}

TEST_F(GatewayAccess, NamesServersThatDidNotReset) {
  NeedKeys({.admin = true});
  decode_.Stop();
  const std::string answer = Send("POST", "/reset_prefix_cache", kKey, "");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(answer, HasSubstr(decode_.target()));
}

TEST_F(GatewayAccess, LimitsChoicesAndPriorityByKey) {
  const auto ask = [this](absl::string_view more) {
    return Send("POST", "/v1/completions", kKey,
                absl::StrCat(R"({"model": "chat", "prompt": "hi")", more, "}"));
  };
  NeedKeys({.max_n = 2, .may_set_priority = false});
  EXPECT_THAT(ask(R"(, "priority": 0)"), StartsWith("HTTP/1.1 200"));
  const std::string choices = ask(R"(, "n": 3)");
  EXPECT_THAT(choices, StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(choices, HasSubstr("'n' is 3; this API key may ask for at most 2"));
  for (const int priority : {-1, 1}) {
    const std::string refused = ask(absl::StrCat(", \"priority\": ", priority));
    EXPECT_THAT(refused, StartsWith("HTTP/1.1 400"));
    EXPECT_THAT(refused, HasSubstr("this API key may not set it"));
  }
  NeedKeys({});
  EXPECT_THAT(ask(R"(, "priority": -16)"), StartsWith("HTTP/1.1 200"));
}

TEST_F(GatewayAccess, ChargesPromptAndAnswer) {
  NeedKeys({.tokens_per_minute = 4});
  const std::string too_long = absl::StrCat(R"({"model": "chat", "prompt": ")", std::string(100, 'a'), "\"}");
  EXPECT_THAT(Send("POST", "/v1/completions", kKey, too_long), StartsWith("HTTP/1.1 400"));  // costs nothing
  EXPECT_THAT(Chat(kKey), StartsWith("HTTP/1.1 200"));  // "hi|" and three tokens
  EXPECT_THAT(Chat(kKey), HasSubstr("tokens per minute"));
}

TEST_F(GatewayAccess, LinesOfRefusalsTellWhatWasRefusedAndWhy) {
  std::ostringstream log;
  // What StartLogging registers for lines in JSON.
  auto events = std::make_shared<spdlog::logger>("aludel-events",
                                                 std::make_shared<spdlog::sinks::ostream_sink_mt>(log));
  events->set_pattern("%v");
  spdlog::register_logger(std::move(events));
  Send("POST", "/v1/chat/completions", "",
       absl::StrCat(R"({"model": "chat", "stream": true, "messages": [{"role": "user", "content": ")",
                    std::string(100, 'a'), "\"}]}"));
  Send("GET", absl::StrCat("/\"no/such\\path", std::string(200, 'x'), "?secret=1"), "");
  Send("DELETE", "/tokenize", "");
  Send("POST", "/tokenize", "", R"({"model": "none"})");
  NeedKeys({.requests_per_minute = 1});
  Chat(kKey);
  Chat(kKey);
  server_.reset();
  router_.AwaitCalls();
  spdlog::drop("aludel-events");
  std::map<std::string, nlohmann::json> lines;  // by what they say of the path and the status
  for (const absl::string_view text : absl::StrSplit(log.str(), '\n', absl::SkipEmpty())) {
    const auto line = nlohmann::json::parse(text);
    lines[absl::StrCat(line["path"].get<std::string>().substr(0, 9), " ", line["status"].get<int>())] = line;
  }
  ASSERT_EQ(lines.size(), 6) << log.str();
  const nlohmann::json& stream = lines["/v1/chat/ 400"];
  EXPECT_EQ(stream["method"], "POST");
  EXPECT_EQ(stream["outcome"], "invalid_argument");
  EXPECT_EQ(stream["stream"], true);
  EXPECT_EQ(stream["prompt_tokens"], 101);
  EXPECT_GT(stream["total_ms"], 0);
  const nlohmann::json& limited = lines["/v1/chat/ 429"];
  EXPECT_EQ(limited["outcome"], "resource_exhausted");
  EXPECT_THAT(limited["error"].get<std::string>(), HasSubstr("requests per minute"));
  const nlohmann::json& unknown = lines["/\"no/such 404"];
  EXPECT_EQ(unknown["outcome"], "not_found");
  EXPECT_EQ(unknown["path"].get<std::string>().size(), 128);
  EXPECT_EQ(lines["/tokenize 405"]["method"], "DELETE");
  EXPECT_THAT(lines["/tokenize 404"]["error"].get<std::string>(), HasSubstr("'none' does not exist"));
  EXPECT_EQ(lines["/v1/chat/ 200"]["outcome"], "ok");
  EXPECT_THAT(log.str(), Not(HasSubstr("secret")));
}

TEST_F(GatewayAccess, AnswersAllowedOriginsOnly) {
  const std::string good = "Origin: https://good.example\r\n";
  const std::string ask = "Access-Control-Request-Method: POST\r\n";
  EXPECT_THAT(Chat(good), HasSubstr("Access-Control-Allow-Origin: https://good.example\r\n"));
  const std::string evil = Chat("Origin: https://evil.example\r\n");
  EXPECT_THAT(evil, Not(HasSubstr("Access-Control-Allow-Origin")));
  EXPECT_THAT(evil, HasSubstr("Vary: Origin\r\n"));
  NeedKeys({});
  const std::string preflight = Send("OPTIONS", "/v1/chat/completions", good + ask);
  EXPECT_THAT(preflight, StartsWith("HTTP/1.1 204 No Content\r\n"));
  EXPECT_THAT(Send("OPTIONS", "/v1/chat/completions",
                   good + ask + "Access-Control-Request-Headers: x-stainless-os,authorization\r\n"),
              HasSubstr("Access-Control-Allow-Headers: x-stainless-os, authorization\r\n"));
  EXPECT_THAT(preflight, Not(HasSubstr("Content-Length")));
  EXPECT_THAT(Chat(good), HasSubstr("Access-Control-Allow-Origin"));           // a page may read its 401
  EXPECT_THAT(Send("POST", "/tokenize", kKey + good, std::string(2000, 'x')),  // and what HTTP itself refuses
              AllOf(StartsWith("HTTP/1.1 413"), HasSubstr("Access-Control-Allow-Origin")));
}

TEST_F(GatewayAccess, GoesOnWithTheClientsTrace) {
  const std::string answer =
      Chat("traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\nx-request-id: mine\r\n");
  EXPECT_THAT(answer, HasSubstr("x-request-id: mine\r\n"));
  EXPECT_THAT(answer, HasSubstr("traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-"));
  EXPECT_THAT(answer, Not(HasSubstr("00f067aa0ba902b7")));  // the gateway's operation has its own id
  {
    absl::MutexLock lock(&mutex_);
    EXPECT_THAT(answer, HasSubstr(traceparent_));
  }
  EXPECT_THAT(Chat("traceparent: nonsense\r\n"), HasSubstr("traceparent: 00-"));
}

}  // namespace
}  // namespace aludel
