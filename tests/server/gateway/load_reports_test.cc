// What decode servers say of their load, and what a gateway makes of it, over gRPC and HTTP.
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "aludel/v1/load.grpc.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rpc/load_metadata.h"
#include "tests/server/gateway/gateway_fixture.h"
#include "transport/monotonic_clock.h"

namespace aludel::gateway_testing {
namespace {

using ::testing::HasSubstr;

// The Load service of a FakeDecode.
class FakeLoad : public v1::Load::Service {
 public:
  FakeLoad() {
    report_.set_epoch(FakeDecode::kEpoch);
    report_.set_age_seconds(1000);
    report_.set_places(8);
    report_.set_cache_tokens(100'000);
  }
  void Set(const std::function<void(v1::LoadReport*)>& change) {
    std::lock_guard<std::mutex> lock(mutex_);
    change(&report_);
    asked_since_ = 0;
  }
  v1::LoadReport report() {
    std::lock_guard<std::mutex> lock(mutex_);
    return report_;
  }
  grpc::Status Report(grpc::ServerContext*, const v1::LoadRequest* request, v1::LoadReport* reply) override {
    std::lock_guard<std::mutex> lock(mutex_);
    *reply = report_;
    if (request->epoch() == report_.epoch() && request->prefixes_end() == report_.prefixes_end()) {
      reply->clear_prefixes();
    }
    ++asked_since_;
    return grpc::Status::OK;
  }
  // Until the gateway has heard of the last Set: it asks again when it has what it asked for.
  void AwaitAsked() {
    const absl::Time limit = MonotonicNow() + absl::Seconds(30);
    for (;;) {
      {
        std::lock_guard<std::mutex> lock(mutex_);
        if (asked_since_ >= 2) return;
      }
      ASSERT_LT(MonotonicNow(), limit) << "the gateway does not ask";
      absl::SleepFor(absl::Milliseconds(5));
    }
  }

 private:
  std::mutex mutex_;
  v1::LoadReport report_;
  int asked_since_ = 0;  // the last Set
};

class LoadReportsTest : public GatewayTest {
 protected:
  struct Server {
    explicit Server(FakeDecode::Script script) : decode(std::move(script), "chat", "", "fake", &load) {}
    FakeLoad load;
    FakeDecode decode;
  };
  void Start() {
    StartGateway({&a_.decode, &b_.decode});
    WaitForAll();
    a_.load.AwaitAsked();
    b_.load.AwaitAsked();
  }
  int Ask(const std::string& prompt) {
    return Send("POST", "/v1/completions", json({{"model", "chat"}, {"prompt", prompt}}).dump()).status;
  }
  json Routing(const std::string& prompt) {
    return Get(absl::StrCat("/admin/routing?prompt=", prompt)).Json();
  }
  Server& Home(const std::string& prompt) { return Routing(prompt)["first"] == a_.decode.target() ? a_ : b_; }
  Server& Other(const Server& one) { return &one == &a_ ? b_ : a_; }

  // Sends requests back as a server does whose queue is longer than they may wait, and notes what they come with.
  grpc::Status Answer(Server* server, grpc::ServerContext* context, const v1::GenerateRequest& request,
                      FakeDecode::Writer* writer) {
    v1::LoadReport report = server->load.report();
    if (replies_ == server || all_reply_) report.set_waiting_seconds(60);
    const auto limit = context->client_metadata().find(kWaitLimitKey);
    const auto prefixes = context->client_metadata().find(kPrefixesKey);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (prefixes != context->client_metadata().end()) {
        prefixes_.ParseFromArray(prefixes->second.data(), static_cast<int>(prefixes->second.size()));
      }
      ++asked_[server];
      if (limit == context->client_metadata().end()) {
        ++unlimited_;
        unlimited_again_ = asked_[server] > 1;
      }
    }
    context->AddTrailingMetadata(kLoadReportKey, report.SerializeAsString());
    if (full_ == server) return {grpc::StatusCode::RESOURCE_EXHAUSTED, "full"};
    if (limit != context->client_metadata().end() &&
        std::stod(std::string(limit->second.data(), limit->second.size())) < 1e3 * wait_[server]) {
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, "longer", kTurnedAway};
    }
    return FakeDecode::Hello(context, request, writer);
  }
  std::mutex mutex_;
  v1::PromptPrefixes prefixes_;
  int unlimited_ = 0;
  bool unlimited_again_ = false;  // by a server that was asked before
  std::map<const Server*, int> asked_;
  std::map<const Server*, double> wait_;
  std::atomic<const Server*> replies_ = nullptr;
  std::atomic<bool> all_reply_ = false;
  std::atomic<const Server*> full_ = nullptr;
  Server a_{[this](auto* context, const auto& request, auto* writer) {
    return Answer(&a_, context, request, writer);
  }};
  Server b_{[this](auto* context, const auto& request, auto* writer) {
    return Answer(&b_, context, request, writer);
  }};
};

TEST_F(LoadReportsTest, AQueueThatOthersHaveFilledIsSeen) {
  Start();
  Server& home = Home("hello");
  home.load.Set([](v1::LoadReport* report) { report->set_waiting_seconds(60); });
  home.load.AwaitAsked();
  EXPECT_EQ(Ask("hello"), 200);
  EXPECT_EQ(home.decode.calls(), 0);
  EXPECT_EQ(Routing("hello")["chosen"], Other(home).decode.target());
}

TEST_F(LoadReportsTest, APredictionIsExplainedByItsParts) {
  Start();
  Server& home = Home("hello");
  home.load.Set([](v1::LoadReport* report) {
    report->set_waiting_seconds(60);
    report->set_prefill_seconds_per_token(.5);
  });
  home.load.AwaitAsked();
  const json told = Routing("hello");
  for (const json& target : told["targets"]) {
    const double wait = target["wait_s"], prefill = target["prefill_s"], weight = target["weight"];
    EXPECT_NEAR(target["predicted_ttft_s"], (wait + prefill) / weight, 1e-4) << target;
    EXPECT_GE(target["report_age_s"], 0) << target;
    EXPECT_LT(target["report_age_s"], 30) << target;
    if (target["target"] != home.decode.target()) continue;
    EXPECT_NEAR(wait, 60, 30) << target;
    EXPECT_NEAR(prefill, .5 * told["prompt_tokens"].get<int>(), .5) << target;
  }
}

TEST_F(LoadReportsTest, AReportOfAnotherProcessIsIgnored) {
  Start();
  Server& home = Home("hello");
  home.load.Set([](v1::LoadReport* report) {
    report->set_waiting_seconds(60);
    report->set_epoch(FakeDecode::kEpoch + 1);
  });
  home.load.AwaitAsked();
  EXPECT_EQ(Ask("hello"), 200);
  EXPECT_EQ(home.decode.calls(), 1);
}

TEST_F(LoadReportsTest, AServerThatKeepsNoPrefixesIsNoHome) {
  Start();
  a_.load.Set([](v1::LoadReport* report) { report->set_cache_tokens(0); });
  a_.load.AwaitAsked();
  for (int i = 0; i < 10; ++i) {
    const json told = Routing(absl::StrCat(i));
    EXPECT_EQ(told["chosen"], b_.decode.target()) << told;
    EXPECT_EQ(told["second"], nullptr);
  }
}

TEST_F(LoadReportsTest, WhatOtherGatewaysSentIsKnownToBeCached) {
  Start();
  const std::string prompt(40, 'x');  // the server's context is 64
  Server& other = Other(Home(prompt));
  // As another gateway's request tells it: the same keys.
  EXPECT_EQ(Ask(prompt), 200);
  other.load.Set([&](v1::LoadReport* report) {
    std::lock_guard<std::mutex> lock(mutex_);
    ASSERT_GT(prefixes_.keys_size(), 0);
    *report->add_prefixes() = prefixes_;
    report->set_prefixes_end(1);
  });
  other.load.AwaitAsked();
  const json told = Routing(prompt);
  for (const json& target : told["targets"]) EXPECT_GT(target["cached_tokens"], 0) << told;
  // A reset that this gateway was not asked for.
  other.load.Set([](v1::LoadReport* report) {
    report->clear_prefixes();
    report->set_cache_resets(1);
  });
  other.load.AwaitAsked();
  for (const json& target : Routing(prompt)["targets"]) {
    if (target["target"] == other.decode.target()) {
      EXPECT_EQ(target["cached_tokens"], 0);
    }
  }
}

TEST_F(LoadReportsTest, ARequestThatIsTurnedAwayGoesElsewhere) {
  Start();
  Server& home = Home("hello");
  wait_[&home] = 60;
  replies_ = &home;  // which no probe tells, but the reply does
  EXPECT_EQ(Ask("hello"), 200);
  const int calls = home.decode.calls();  // two where a probe has just told of no queue
  EXPECT_GE(calls, 1);
  EXPECT_EQ(Other(home).decode.calls(), 1);
  EXPECT_THAT(Get("/metrics").body,
              HasSubstr(absl::StrCat("aludel_routing_turned_away_total{model=\"chat\"} ", calls, "\n")));
  for (const json& target : Routing("hello")["targets"]) {
    if (target["target"] == home.decode.target()) {
      EXPECT_EQ(target["cached_tokens"], 0);
    }
  }
}

TEST_F(LoadReportsTest, AServerThatRefusesAPromptIsNotBelievedToHaveIt) {
  Start();
  const std::string prompt(40, 'x');
  Server& home = Home(prompt);
  full_ = &home;
  EXPECT_EQ(Ask(prompt), 200);
  ASSERT_EQ(home.decode.calls(), 1);
  for (const json& target : Routing(prompt)["targets"]) {
    EXPECT_EQ(target["cached_tokens"] == 0, target["target"] == home.decode.target()) << target;
  }
}

TEST_F(LoadReportsTest, NoRequestIsTurnedAwayForEver) {
  Start();
  // Longer than either says: nothing that is reported explains it.
  wait_[&a_] = wait_[&b_] = 60;
  EXPECT_EQ(Ask("hello"), 200);
  EXPECT_EQ(a_.decode.calls() + b_.decode.calls(), 1 + kMaxTurnAways);
  std::lock_guard<std::mutex> lock(mutex_);
  EXPECT_EQ(unlimited_, 1);
}

TEST_F(LoadReportsTest, TheLastChoiceIsAmongServersThatHaveReported) {
  const auto answer = [this](Server** server) {
    return [this, server](auto* context, const auto& request, auto* writer) {
      return Answer(*server, context, request, writer);
    };
  };
  std::vector<std::unique_ptr<Server>> servers;
  std::vector<FakeDecode*> decodes;
  std::array<Server*, kMaxTurnAways + 3> pointers = {};
  for (Server*& pointer : pointers) {
    servers.push_back(std::make_unique<Server>(answer(&pointer)));
    pointer = servers.back().get();
    decodes.push_back(&pointer->decode);
    wait_[pointer] = 60;
  }
  all_reply_ = true;
  StartGateway(decodes);
  WaitForAll();
  for (const auto& server : servers) server->load.AwaitAsked();
  EXPECT_EQ(Ask("hello"), 200);
  std::lock_guard<std::mutex> lock(mutex_);
  EXPECT_EQ(unlimited_, 1);
  EXPECT_TRUE(unlimited_again_);
}

TEST_F(LoadReportsTest, ARequestThatWouldBeLateEverywhereIsRefusedBeforeItIsSent) {
  max_ttft_ = absl::Seconds(20);
  Start();
  const auto report = [this](double waiting) {
    for (Server* server : {&a_, &b_}) {
      server->load.Set([waiting](v1::LoadReport* report) {
        report->set_waiting_seconds(waiting);
        report->set_prefill_seconds_per_token(1e-3);
      });
      server->load.AwaitAsked();
    }
  };
  report(60);
  const auto refused = Send("POST", "/v1/completions", R"({"model": "chat", "prompt": "hello"})");
  EXPECT_EQ(refused.status, 429) << refused.body;
  EXPECT_THAT(refused.body, HasSubstr("max_ttft_ms"));
  const size_t header = refused.head.find("Retry-After: ");
  ASSERT_NE(header, std::string::npos) << refused.head;
  const int retry_after = std::stoi(refused.head.substr(header + 13));
  EXPECT_GT(retry_after, 35);
  EXPECT_LE(retry_after, 41);
  EXPECT_EQ(a_.decode.calls() + b_.decode.calls(), 0);
  EXPECT_THAT(Get("/metrics").body,
              HasSubstr("aludel_wait_refusals_total{model=\"chat\",reason=\"ttft\"} 1\n"));
  report(0);
  EXPECT_EQ(Ask("hello"), 200);
}

TEST_F(LoadReportsTest, ARequestThatWouldMissItsDeadlineEverywhereIsRefusedBeforeItIsSent) {
  Start();
  for (Server* server : {&a_, &b_}) {
    server->load.Set([](v1::LoadReport* report) {
      report->set_waiting_seconds(60);
      report->set_prefill_seconds_per_token(1e-3);
    });
    server->load.AwaitAsked();
  }
  const auto ask = [this](int timeout_ms) {
    return Send(
        "POST", "/v1/completions",
        absl::StrFormat(R"({"model": "chat", "prompt": "hello", "aludel": {"timeout_ms": %d}})", timeout_ms));
  };
  const auto refused = ask(20'000);
  EXPECT_EQ(refused.status, 429) << refused.body;
  EXPECT_THAT(refused.body, HasSubstr("deadline"));
  EXPECT_EQ(a_.decode.calls() + b_.decode.calls(), 0);
  EXPECT_EQ(ask(600'000).status, 200) << "it has time to wait, and the model has no max_ttft_ms";
}

TEST_F(LoadReportsTest, ARequestThatServersHaveSentBackIsInTimeAtAnother) {
  max_ttft_ = absl::Seconds(20);
  const auto answer = [this](Server** server) {
    return [this, server](auto* context, const auto& request, auto* writer) {
      return Answer(*server, context, request, writer);
    };
  };
  std::vector<std::unique_ptr<Server>> servers;
  std::vector<FakeDecode*> decodes;
  std::array<Server*, kMaxTurnAways + 1> pointers = {};
  for (Server*& pointer : pointers) {
    servers.push_back(std::make_unique<Server>(answer(&pointer)));
    pointer = servers.back().get();
    decodes.push_back(&pointer->decode);
    wait_[pointer] = 60;
    pointer->load.Set([](v1::LoadReport* report) { report->set_prefill_seconds_per_token(1e-3); });
  }
  all_reply_ = true;
  StartGateway(decodes);
  WaitForAll();
  for (const auto& server : servers) server->load.AwaitAsked();
  EXPECT_EQ(Ask("hello"), 200);
  EXPECT_THAT(Get("/metrics").body,
              HasSubstr("aludel_wait_refusals_total{model=\"chat\",reason=\"ttft\"} 0\n"));
}

TEST_F(LoadReportsTest, UnderOtherPoliciesServersHearNothing) {
  routing_.policy = RoutingPolicy::kLeastPending;
  Start();
  EXPECT_EQ(Ask("hello"), 200);
  std::lock_guard<std::mutex> lock(mutex_);
  EXPECT_EQ(unlimited_, 1);
  EXPECT_EQ(prefixes_.keys_size(), 0);
}

}  // namespace
}  // namespace aludel::gateway_testing
