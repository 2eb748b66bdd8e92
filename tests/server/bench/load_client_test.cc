#include "server/bench/load_client.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/http/http_server.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kText[] = "data: {\"choices\": [{\"delta\": {\"content\": \"x\"}}]}\n\n";

// A server whose answer is the request's body, sent as a stream of events. A body of digits is a status.
class LoadClient : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server =
        HttpServer::Start({.max_queued_bytes = 16 << 20}, [](HttpRequest request, HttpResponder responder) {
          if (request.body == "429") {
            HttpResponse response;
            response.status = 429;
            response.body = "{\n\"error\": \"slow down\"}";
            return responder.Respond(std::move(response));
          }
          responder.StartStream(200, "text/event-stream", {});
          if (request.body == "never") {
            std::lock_guard<std::mutex> lock(Held().mutex);
            return Held().responders.push_back(std::move(responder));
          }
          if (request.body == "paced") {
            for (const int pieces : {2, 3, 1}) {
              std::string together;
              for (int i = 0; i < pieces; ++i) together += kText;
              responder.Write(together);
              absl::SleepFor(absl::Milliseconds(60));
            }
            request.body = "data: [DONE]\n\n";
          }
          responder.Write(request.body);
          responder.Finish();
        });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    target_.url = absl::StrCat("http://127.0.0.1:", server_->port(), "/v1/chat/completions");
  }
  void TearDown() override {
    server_.reset();
    Held().responders.clear();
  }

  LoadResult Ask(const std::string& answer) {
    return RunLoad(target_, {{0, answer}}, [](int64_t) { return true; }).value()[0];
  }

  // Exchanges that go on until the test ends.
  struct Exchanges {
    std::mutex mutex;
    std::vector<HttpResponder> responders;
  };
  static Exchanges& Held() {
    static auto* const held = new Exchanges;
    return *held;
  }

  std::unique_ptr<HttpServer> server_;
  LoadTarget target_;
};

TEST_F(LoadClient, CountsTextAndTakesTheServersWordForTokens) {
  const LoadResult result = Ask(absl::StrCat(
      "data: {\"choices\": [{\"delta\": {\"role\": \"assistant\", \"content\": \"\"}}]}\n\n", kText, kText,
      kText, "data: {\"choices\": [], \"usage\": {\"completion_tokens\": 17}}\n\ndata: [DONE]\n\n"));
  EXPECT_EQ(result.error, "");
  EXPECT_EQ(result.status, 200);
  EXPECT_GT(result.ttft, 0);
  EXPECT_GE(result.e2e, result.ttft);
  EXPECT_THAT(result.inter_token, IsEmpty());  // all of them came at once
  EXPECT_EQ(result.coalesced, 3);
  EXPECT_EQ(result.completion_tokens, 17);
}

TEST_F(LoadClient, PiecesOfOneReadShareTheTimeSinceTheOneBefore) {
  const LoadResult result = Ask("paced");
  ASSERT_EQ(result.error, "");
  ASSERT_EQ(result.inter_token.size(), 5u);
  double sum = 0;
  for (const double gap : result.inter_token) {
    EXPECT_GT(gap, 0.005);
    sum += gap;
  }
  EXPECT_NEAR(result.inter_token[0], result.inter_token[4] / 4, 0.03);
  EXPECT_GE(sum, 0.09);  // of 0.12, where the first piece was read at once
  EXPECT_LE(sum, result.e2e);
}

TEST_F(LoadClient, AClosedLoopHasSoManyRequestsUnderWay) {
  target_.concurrency = 2;
  const auto results =
      RunLoad(target_, std::vector<LoadRequest>(5, {3600, "paced"}), [](int64_t) { return true; });
  ASSERT_EQ(results->size(), 5u);
  size_t most = 0;
  for (const LoadResult& one : *results) {
    EXPECT_TRUE(one.ok()) << one.error;
    EXPECT_LT(one.e2e, 1.0);
    size_t under_way = 0;
    for (const LoadResult& other : *results) {
      under_way += other.arrival <= one.arrival && one.arrival < other.arrival + other.e2e ? 1 : 0;
    }
    most = std::max(most, under_way);
  }
  EXPECT_EQ(most, 2u);
}

TEST_F(LoadClient, ReadsStreamsOfOtherServers) {
  const LoadResult result =
      Ask(": a comment\r\nevent: message\r\ndata:{\"choices\": [{\"text\": \"x\"}], \"usage\": null}\r\n\r\n"
          "data: {\"choices\": [{\"delta\": null}], \"usage\": {\"completion_tokens\": null}}\r\n\r\n"
          "data: {\"choices\": [{\"delta\": {\"reasoning_content\": \"x\"}}]}\r\n\r\ndata: [DONE]\r\n\r\n");
  EXPECT_EQ(result.error, "");
  EXPECT_EQ(result.completion_tokens, 2);
}

TEST_F(LoadClient, SaysWhatWasWrongWithAnAnswer) {
  EXPECT_EQ(Ask("429").error, "HTTP 429: {\n\"error\": \"slow down\"}");
  EXPECT_EQ(Ask(kText).error, "the stream ended before [DONE]");
  EXPECT_EQ(Ask("data: [DONE]\n\n").error, "an answer without text");
  EXPECT_EQ(Ask("data: [1]\n\ndata: [DONE]\n\n").error, "an event that is no JSON object");
  EXPECT_THAT(Ask("data: {\"error\": {\"message\": \"lost\"}}\n\n").error, HasSubstr("lost"));
  EXPECT_THAT(Ask(std::string(5 << 20, 'x')).error, HasSubstr("a line of more than"));
  target_.url = "http://127.0.0.1:1/";
  EXPECT_THAT(Ask(kText).error, HasSubstr("connect"));
}

TEST_F(LoadClient, SendsAtTheTimeWhateverBecameOfEarlierRequests) {
  target_.timeout_seconds = 0.5;
  const std::string answer = absl::StrCat(kText, "data: [DONE]\n\n");
  const auto results =
      RunLoad(target_, {{0, "never"}, {0.05, answer}, {0.1, answer}}, [](int64_t) { return true; });
  ASSERT_EQ(results->size(), 3u);
  EXPECT_FALSE((*results)[0].ok());
  for (const int i : {1, 2}) {
    EXPECT_TRUE((*results)[i].ok());
    EXPECT_LT((*results)[i].e2e, 0.4);
  }
}

TEST_F(LoadClient, StopsWithWhatWasSent) {
  const std::string answer = absl::StrCat(kText, "data: [DONE]\n\n");
  const auto results =
      RunLoad(target_, {{0, "never"}, {0, answer}, {3600, answer}}, [](int64_t done) { return done == 0; });
  ASSERT_EQ(results->size(), 2u);
  EXPECT_EQ((*results)[0].error, "stopped before its end");
  EXPECT_TRUE((*results)[1].ok());
}

}  // namespace
}  // namespace aludel
