#include "server/gateway/front.h"

#include <thread>

#include "absl/strings/str_replace.h"
#include "absl/synchronization/notification.h"
#include "server/gateway/routes.h"
#include "tests/server/gateway/gateway_fixture.h"

namespace aludel::gateway_testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class FrontTest : public GatewayTest {};

TEST_F(FrontTest, AnswersWhileModelsLoadAndThenTheGatewayDoes) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  Front front({"chat", "org/plain"}, metrics_.get());
  auto server = front.Listen({});
  ASSERT_TRUE(server.ok()) << server.status();
  std::swap(server_, *server);

  EXPECT_EQ(Get("/health").status, 200);
  const Answer ready = Get("/ready");
  EXPECT_EQ(ready.status, 503);
  EXPECT_EQ(ready.Json(),
            json::parse(R"({"status": "loading", "models": {"chat": "waiting", "org/plain": "waiting"}})"));
  for (const Answer& answer : {Chat(""), Get("/v1/models"), Get("/nothing")}) {
    EXPECT_EQ(answer.status, 503);
    EXPECT_THAT(answer.head, HasSubstr("Retry-After: 2"));
    EXPECT_EQ(answer.Json()["error"]["code"], "loading");
    EXPECT_THAT(answer.body, HasSubstr("tokenizers of chat, org/plain"));
  }
  const Answer anthropic = Send("POST", "/v1/messages", "{}");
  EXPECT_EQ(anthropic.status, 503);
  EXPECT_EQ(anthropic.Json()["error"]["type"], "overloaded_error");
  EXPECT_EQ(decode.calls(), 0);
  EXPECT_THAT(Get("/metrics").body, HasSubstr("process_cpu_seconds_total"));

  front.Open(gateway_.get());
  EXPECT_EQ(Get("/ready").status, 200);
  EXPECT_EQ(Chat("").status, 200);
  EXPECT_EQ(Get("/nothing").status, 404);
  EXPECT_EQ(decode.calls(), 1);
  server_->Shutdown(absl::ZeroDuration());
  std::swap(server_, *server);
}

// Two models wait in the midst of being loaded, as on a slow disk, while others are loaded.
TEST_F(FrontTest, SaysWhichModelsStillLoad) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  std::vector<ServedModelOptions> options;
  for (const char* name : {"quick", "slow", "slower"}) {
    options.emplace_back().name = name;
    options.back().directory = "deploy/demo/chat";
  }
  Front front({"quick", "slow", "slower"}, metrics_.get());
  auto server = front.Listen({});
  ASSERT_TRUE(server.ok()) << server.status();
  std::swap(server_, *server);
  absl::Notification quick, slow, slower, go_on;
  absl::StatusOr<ServedModels> models = absl::InternalError("not loaded");
  std::thread loading([&] {
    models = ServedModels::Load(options, [&](const std::string& model, bool loaded) {
      front.Loads(model, loaded);
      if (model == "quick" && loaded) quick.Notify();
      if (loaded || model == "quick") return;
      (model == "slow" ? slow : slower).Notify();
      go_on.WaitForNotification();
    });
  });
  ASSERT_TRUE(quick.WaitForNotificationWithTimeout(absl::Seconds(30)));
  // Both at a time: on several threads.
  ASSERT_TRUE(slow.WaitForNotificationWithTimeout(absl::Seconds(30)));
  ASSERT_TRUE(slower.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(Get("/health").status, 200);
  EXPECT_EQ(Get("/metrics").status, 200);
  EXPECT_EQ(Get("/ready").Json()["models"],
            json::parse(R"({"quick": "loaded", "slow": "loading", "slower": "loading"})"));
  EXPECT_THAT(Get("/v1/models").body, HasSubstr("loads the tokenizers of slow, slower; ask again"));
  EXPECT_THAT(front.CheckReady().message(), HasSubstr("loading the tokenizers of slow, slower"));
  HttpRequest load;
  load.method = "GET";
  load.path = "/load";
  EXPECT_EQ(front.AnswerAdmin(load)->status, 503);
  go_on.Notify();
  loading.join();
  ASSERT_TRUE(models.ok()) << models.status();
  EXPECT_EQ(models->all().size(), 3u);
  EXPECT_EQ(Get("/ready").Json()["models"],
            json::parse(R"({"quick": "loaded", "slow": "loaded", "slower": "loaded"})"));
  EXPECT_THAT(Get("/v1/models").body, HasSubstr("loads its routes; ask again"));
  front.Open(gateway_.get());
  EXPECT_TRUE(front.CheckReady().ok());
  EXPECT_EQ(front.AnswerAdmin(load)->status, 200);
  server_->Shutdown(absl::ZeroDuration());
  std::swap(server_, *server);
}

TEST_F(FrontTest, PathsThatNoModelCouldAnswerSayWhy) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  const Answer embeddings = Send("POST", "/v1/embeddings", R"({"model": "chat", "input": "hi"})");
  EXPECT_EQ(embeddings.status, 404);
  EXPECT_EQ(embeddings.Json()["error"]["code"], "unknown_url");
  EXPECT_THAT(embeddings.body, HasSubstr("generate text, and none of them makes embeddings"));
  EXPECT_THAT(Send("POST", "/api/chat", "{}").body, HasSubstr("Ollama's own is not served"));
  EXPECT_THAT(Get("/v1/files/abc").body, HasSubstr("nothing is kept for later"));
  EXPECT_THAT(Get("/v1/embedding").body, Not(HasSubstr("generate text")));
}

TEST_F(FrontTest, EveryRouteIsAnswered) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  for (const Route& route : Routes()) {
    const std::string path = absl::StrReplaceAll(route.path, {{"*", "x"}});
    const Answer answer = Send(std::string(route.method), path, route.TakesBody() ? "{}" : "");
    const int nothing_named_x = path == route.path ? 200 : 404;
    const int empty_body = route.manages ? 403 : 400;  // there are no keys, and so no administrator's
    EXPECT_EQ(answer.status, route.TakesBody() ? empty_body : nothing_named_x) << path << ": " << answer.body;
    EXPECT_EQ(answer.body == R"({"status":"ok"})", path == "/health") << path;
  }
}

TEST_F(FrontTest, LoadAndInfoTellOfEveryModel) {
  FakeDecode decode(FakeDecode::Hello);
  StartGateway({&decode});
  EXPECT_EQ(Get("/load").Json(), json::parse(R"({"server_load": 0, "models": {
      "chat": {"running": 0, "waiting": 0}, "org/plain": {"running": 0, "waiting": 0}}})"));
  const json info = Get("/server_info").Json();
  EXPECT_EQ(info["models"]["chat"]["max_model_len"], 64);
  EXPECT_EQ(info["models"]["chat"]["ready"], true);
  EXPECT_EQ(info["models"]["org/plain"]["chat_template"], false);
}

}  // namespace
}  // namespace aludel::gateway_testing
