// Which of several decode servers gets a request, over HTTP.
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/gateway/routing/policy/prefix_keys.h"
#include "tests/server/gateway/gateway_fixture.h"

namespace aludel::gateway_testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class GatewayRoutingTest : public GatewayTest {
 protected:
  // The status of a completion of this prompt.
  int Ask(const std::string& prompt, const json& more = json::object()) {
    json body = {{"model", "chat"}, {"prompt", prompt}};
    body.update(more);
    return Send("POST", "/v1/completions", body.dump()).status;
  }
  std::vector<int> Calls() { return {a_.calls(), b_.calls(), c_.calls()}; }
  json Routing(const std::string& query) { return Get(absl::StrCat("/admin/routing?", query)).Json(); }

  FakeDecode a_{FakeDecode::Hello}, b_{FakeDecode::Hello}, c_{FakeDecode::Hello};
};

TEST_F(GatewayRoutingTest, APromptGoesWhereItsBeginningLives) {
  StartGateway({&a_, &b_, &c_});
  WaitForAll();
  const json told = Routing("prompt=hello");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Ask("hello"), 200);
  std::vector<int> calls = Calls();
  const std::vector<std::string> names = {a_.target(), b_.target(), c_.target()};
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(calls[i], told["chosen"] == names[i] ? 5 : 0) << told;
  EXPECT_EQ(told["reason"], "first");
  EXPECT_EQ(told["model"], "chat");
  EXPECT_EQ(told["targets"].size(), 3u);
  EXPECT_EQ(told["first"], told["chosen"]);
  EXPECT_NE(told["second"], told["chosen"]);
}

TEST_F(GatewayRoutingTest, PromptsSpreadOverServers) {
  StartGateway({&a_, &b_, &c_});
  WaitForAll();
  for (int i = 0; i < 40; ++i) EXPECT_EQ(Ask(absl::StrCat(i, " begins so")), 200);
  for (const int calls : Calls()) EXPECT_GT(calls, 3);
}

TEST_F(GatewayRoutingTest, TheSaltOfARequestIsPartOfItsKey) {
  StartGateway({&a_, &b_, &c_});
  WaitForAll();
  std::set<std::string> chosen;
  for (int i = 0; i < 30; ++i) {
    chosen.insert(Routing(absl::StrCat("prompt=hello&cache_salt=", i))["chosen"].get<std::string>());
  }
  EXPECT_EQ(chosen.size(), 3u);
}

TEST_F(GatewayRoutingTest, RequestsOfOnePromptCacheKeyGoToOneServer) {
  StartGateway({&a_, &b_, &c_});
  WaitForAll();
  const std::vector<FakeDecode*> decodes = {&a_, &b_, &c_};
  std::set<std::string> homes;
  for (int key = 0; key < 40; ++key) {  // of so many, ports as they may be, each server has some
    const std::string name = absl::StrCat("session ", key);
    const json told = Routing(absl::StrCat("prompt=any&prompt_cache_key=session%20", key));
    const std::vector<int> before = Calls();
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(Ask(absl::StrCat(i, " begins in its own way ", key), {{"prompt_cache_key", name}}), 200);
    }
    EXPECT_EQ(Chat(absl::StrCat(", \"prompt_cache_key\": \"", name, "\"")).status, 200);
    const json response = {{"model", "chat"}, {"input", "hello"}, {"prompt_cache_key", name}};
    const Answer answer = Send("POST", "/v1/responses", response.dump());
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.Json()["prompt_cache_key"], name);
    const std::vector<int> after = Calls();
    for (size_t at = 0; at < 3; ++at) {
      EXPECT_EQ(after[at] - before[at], told["chosen"] == decodes[at]->target() ? 6 : 0) << name;
    }
    homes.insert(told["chosen"].get<std::string>());
  }
  EXPECT_EQ(homes.size(), 3u);
}

TEST_F(GatewayRoutingTest, APromptCacheKeyNamesAnotherServerToAnotherTenant) {
  StartGateway({&a_, &b_, &c_});
  WaitForAll();
  std::set<std::string> of_keys, of_salts;
  for (int i = 0; i < 30; ++i) {
    const std::string query = "prompt=hello&prompt_cache_key=session";
    of_keys.insert(Routing(absl::StrCat(query, "&key=", i))["chosen"].get<std::string>());
    of_salts.insert(Routing(absl::StrCat(query, "&cache_salt=", i))["chosen"].get<std::string>());
  }
  EXPECT_EQ(of_keys.size(), 3u);
  EXPECT_EQ(of_salts.size(), 3u);
  // Nor does a server hear of it, so that what is cached there is as without one.
  EXPECT_EQ(Ask("hello", {{"prompt_cache_key", "session"}}), 200);
  for (FakeDecode* decode : {&a_, &b_, &c_}) {
    if (decode->calls() == 0) continue;
    EXPECT_EQ(decode->last_request().cache_salt(), "");
    EXPECT_THAT(decode->last_request().SerializeAsString(), Not(HasSubstr("session")));
  }
}

TEST_F(GatewayRoutingTest, APromptCacheKeyIsAStringOfBoundedLength) {
  StartGateway({&a_});
  const auto refusal = [&](const json& key) {
    const json body = {{"model", "chat"}, {"prompt", "hello"}, {"prompt_cache_key", key}};
    const Answer answer = Send("POST", "/v1/completions", body.dump());
    EXPECT_EQ(answer.status, 400) << body;
    EXPECT_EQ(answer.Json()["error"]["param"], "prompt_cache_key");
    return answer.Json()["error"]["message"].get<std::string>();
  };
  EXPECT_THAT(refusal(""), HasSubstr("'prompt_cache_key' must have 1 to 256 bytes, found 0"));
  EXPECT_THAT(refusal(std::string(257, 'x')), HasSubstr("must have 1 to 256 bytes, found 257"));
  EXPECT_THAT(refusal(7), HasSubstr("'prompt_cache_key': expected a string"));
  EXPECT_EQ(Ask("hello", {{"prompt_cache_key", std::string(256, 'x')}}), 200);
  EXPECT_EQ(Ask("hello", {{"prompt_cache_key", nullptr}}), 200);
}

TEST_F(GatewayRoutingTest, WhatItsHomeLosesAnotherTakes) {
  StartGateway({&a_, &b_, &c_});
  WaitForAll();
  const json told = Routing("prompt=hello");
  for (FakeDecode* decode : {&a_, &b_, &c_}) {
    if (told["chosen"] == decode->target()) decode->Stop();
  }
  EXPECT_EQ(Ask("hello"), 200);
  const json after = Routing("prompt=hello");
  EXPECT_EQ(after["chosen"], told["second"]);
}

TEST_F(GatewayRoutingTest, PrefillServersAreSuggestedInAnOrderOfThePrompts) {
  StartGateway({&a_}, {.prefill_targets = {"p1:1", "p2:1", "p3:1"}});
  std::set<std::string> firsts;
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(Ask(absl::StrCat(i, " begins so")), 200);
    const v1::GenerateRequest once = a_.last_request();
    ASSERT_EQ(once.prefill_targets_size(), 3);
    EXPECT_EQ(Ask(absl::StrCat(i, " begins so")), 200);
    EXPECT_EQ(a_.last_request().prefill_targets(0), once.prefill_targets(0));
    firsts.insert(once.prefill_targets(0));
  }
  EXPECT_EQ(firsts.size(), 3u);
}

TEST_F(GatewayRoutingTest, PrefillServersAreOrderedByWhoseCodesAreTaken) {
  StartGateway({&a_}, {.prefill_targets = {"p1:1", "p2:1", "p3:1"}});
  const auto orders_with = [&](const std::string& producer, const std::string& encoder) {
    a_.TakeCodesOf(producer, encoder);
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    while (router_->targets().PrefillSourceOf("chat") != PrefillSource(producer, encoder) &&
           absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(5));
    }
    std::vector<std::string> orders;
    for (int i = 0; i < 12; ++i) {
      EXPECT_EQ(Ask(absl::StrCat(i, " begins so")), 200);
      const auto order = a_.last_request().prefill_targets();
      orders.emplace_back(absl::StrJoin(order, " "));
    }
    return orders;
  };
  const std::vector<std::string> one = orders_with("base", "e1");
  EXPECT_NE(orders_with("base", "e2"), one);
  EXPECT_NE(orders_with("other", "e1"), one);
  EXPECT_EQ(orders_with("base", "e1"), one);
}

TEST_F(GatewayRoutingTest, AnAdaptersPromptsGoWhereItsCacheOfThemIs) {
  for (FakeDecode* decode : {&a_, &b_, &c_}) {
    decode->Have("begins-as-base", "h1", /*begins_as_base=*/true);
    decode->Have("own", "h2");
  }
  StartGateway({&a_, &b_, &c_});
  WaitForAll();
  models_->FindAdaptersWith([this](const std::string& name) { return router_->targets().BaseOf(name); });
  int elsewhere = 0;
  for (int i = 0; i < 20; ++i) {
    const std::string prompt = absl::StrCat("&prompt=", i, "begins");
    const json base = Routing(absl::StrCat("model=chat", prompt));
    const json begins = Routing(absl::StrCat("model=begins-as-base", prompt));
    EXPECT_EQ(begins["chosen"], base["chosen"]);
    EXPECT_EQ(begins["second"], base["second"]);
    elsewhere += Routing(absl::StrCat("model=own", prompt))["chosen"] != base["chosen"] ? 1 : 0;
  }
  EXPECT_GT(elsewhere, 4);
}

TEST_F(GatewayRoutingTest, ExplanationsNameWhatIsWrong) {
  StartGateway({&a_});
  EXPECT_EQ(Get("/admin/routing?model=none").status, 404);
  EXPECT_EQ(Get("/admin/routing").Json()["prompt_tokens"], 1);  // the one that begins every prompt
}

TEST_F(GatewayRoutingTest, AChatIsExplainedAsItIsSent) {
  StartGateway({&a_, &b_, &c_});
  WaitForAll();
  const auto query = [](const std::string& content) {
    return absl::StrCat("messages=%5B%7B%22role%22:%22user%22,%22content%22:%22", content, "%22%7D%5D");
  };
  std::set<std::string> chosen;
  for (int i = 0; i < 10; ++i) {
    const std::string content = absl::StrCat(i, "hello");
    const json told = Routing(query(content));
    const std::vector<int> before = Calls();
    EXPECT_EQ(Chat("", content).status, 200);
    const std::vector<int> after = Calls();
    const std::vector<FakeDecode*> decodes = {&a_, &b_, &c_};
    for (size_t at = 0; at < 3; ++at) {
      const bool here = told["chosen"] == decodes[at]->target();
      EXPECT_EQ(after[at] - before[at], here ? 1 : 0) << told;
      if (!here) continue;
      EXPECT_EQ(decodes[at]->last_request().prompt_size(), told["prompt_tokens"].get<int>());
    }
    chosen.insert(told["chosen"].get<std::string>());
  }
  EXPECT_GT(chosen.size(), 1u);
  const std::string tools =
      "&tools=%5B%7B%22type%22:%22function%22,%22function%22:%7B%22name%22:%22tool%22%7D%7D%5D";
  EXPECT_EQ(Routing(query("hi") + tools)["prompt_tokens"],
            Routing(query("hi"))["prompt_tokens"].get<int>() + static_cast<int>(std::string("tool!").size()));
  EXPECT_EQ(Get("/admin/routing?messages=%5B").status, 400);
  EXPECT_EQ(Get("/admin/routing?messages=7").status, 400);
  EXPECT_EQ(Get("/admin/routing?model=org/plain&" + query("hi")).status, 400);  // has no chat template
}

TEST_F(GatewayRoutingTest, DecisionsAreCounted) {
  StartGateway({&a_, &b_});
  WaitForAll();
  EXPECT_EQ(Ask("hello"), 200);
  const std::string metrics = Get("/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("aludel_routing_decisions_total{model=\"chat\",reason=\"first\"} 1"));
  EXPECT_THAT(metrics, HasSubstr("aludel_routing_decision_seconds_count{model=\"chat\"} 1"));
}

}  // namespace
}  // namespace aludel::gateway_testing
