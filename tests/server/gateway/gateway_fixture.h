#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "server/gateway/gateway.h"
#include "tests/server/gateway/fake_decode.h"
#include "tests/server/gateway/plain_models.h"
#include "tests/server/http/raw_client.h"

namespace aludel::gateway_testing {

using nlohmann::json;

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
      EXPECT_THAT(event, ::testing::StartsWith("data: "));
      event = event.substr(6);
    }
    return events;
  }
};

inline std::string Unchunk(absl::string_view text) {
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
                    bool wait_until_ready = true, const HttpServerOptions& http = {}) {
    models_ = std::make_unique<ServedModels>(PlainModels());
    Router::Model routed{.expectation = {.model = "chat", .tokenizer_fingerprint = ""}, .decode_targets = {}};
    routed.max_ttft = max_ttft_;
    for (FakeDecode* decode : decodes) routed.decode_targets.push_back(decode->target());
    metrics_ = std::make_unique<Metrics>();
    router_ = std::make_unique<Router>(
        std::vector<Router::Model>{routed},
        Router::Timing{.probe_interval = absl::Milliseconds(20), .probe_timeout = absl::Seconds(5)},
        metrics_.get(), grpc::InsecureChannelCredentials(), WaitingQueue::Options(), routing_);
    gateway_ = std::make_unique<Gateway>(Gateway::Options{.completions = std::move(options)}, &access_,
                                         models_.get(), router_.get(), metrics_.get());
    auto server = gateway_->Listen(http);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    if (wait_until_ready) WaitForReady(200);
  }
  ~GatewayTest() override {
    server_.reset();
    gateway_.reset();
    router_.reset();
  }

  // Until every server is.
  void WaitForAll() {
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    while (!router_->State("chat").reason.empty() && absl::Now() < deadline)
      absl::SleepFor(absl::Milliseconds(5));
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
  Fleet::Options routing_;  // of gateways that are started from now on
  absl::Duration max_ttft_ = absl::InfiniteDuration();
  std::unique_ptr<Router> router_;
  std::unique_ptr<Gateway> gateway_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace aludel::gateway_testing
