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
}  // namespace aludel::gateway_testing
