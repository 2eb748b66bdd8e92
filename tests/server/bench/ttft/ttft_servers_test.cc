#include "server/bench/ttft/ttft_servers.h"

#include <signal.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "absl/time/clock.h"
#include "aludel/v1/config.pb.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "server/bench/ttft/child_server.h"

namespace aludel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TtftServerOptions Options() {
  return {.producer = "base",
          .consumer = "chat",
          .artifact = "codec",
          .formats = {"raw", "scd"},
          .link = 8e6,
          .longest = 1000,
          .raw_bytes_per_token = 1'000'000,
          .threads = 2};
}

template <typename Message>
Message Parse(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

TEST(TtftConfigs, TheLinkIsThePrefillServersAndItsCacheHoldsTheLongestPrompt) {
  const auto configs = MakeTtftConfigs(Options(), {.prefill = 1, .decode = 3, .gateway = 5});
  ASSERT_TRUE(configs.ok()) << configs.status();
  const auto prefill = Parse<v1::PrefillConfig>(configs->prefill);
  EXPECT_EQ(prefill.transport().testing().bytes_per_second(), 1e6);
  EXPECT_EQ(prefill.store().memory_bytes(), 2'000'000'000u);
  EXPECT_EQ(prefill.engine().directory(), "base");
  const auto decode = Parse<v1::DecodeConfig>(configs->decode);
  EXPECT_FALSE(decode.engine().prefix_cache());
  EXPECT_EQ(decode.engine().max_context(), 1001u);
  EXPECT_EQ(decode.codec().formats(1), "scd");
  EXPECT_FALSE(decode.transport().has_testing());
  EXPECT_EQ(decode.prefill_targets(0), "127.0.0.1:1");
  EXPECT_EQ(Parse<v1::GatewayConfig>(configs->gateway).models(0).decode_targets(0), "127.0.0.1:3");
}

TEST(TtftConfigs, SettingsOfTheUserGoOverOurs) {
  TtftServerOptions options = Options();
  options.link = 0;
  options.prefill_settings = "engine { threads: 1 cores: \"0\" }";
  options.decode_settings = "engine { kv_blocks: 64 } handoff_timeout_ms: 5";
  const auto configs = MakeTtftConfigs(options, {});
  ASSERT_TRUE(configs.ok()) << configs.status();
  const auto prefill = Parse<v1::PrefillConfig>(configs->prefill);
  EXPECT_EQ(prefill.engine().threads(), 1u);
  EXPECT_EQ(prefill.engine().cores(), "0");
  EXPECT_EQ(prefill.engine().directory(), "base");
  EXPECT_FALSE(prefill.has_transport());
  const auto decode = Parse<v1::DecodeConfig>(configs->decode);
  EXPECT_EQ(decode.engine().kv_blocks(), 64u);
  EXPECT_EQ(decode.engine().threads(), 2u);
  EXPECT_EQ(decode.handoff_timeout_ms(), 5u);
}

TEST(TtftConfigs, SettingsThatAreNoneAreNamed) {
  TtftServerOptions options = Options();
  options.prefill_settings = "engine {\n speed: 9 }";
  EXPECT_THAT(MakeTtftConfigs(options, {}).status().message(),
              AllOf(HasSubstr("--prefill: line 2"), HasSubstr("speed"), HasSubstr("PrefillConfig")));
  options.prefill_settings = "";
  options.decode_settings = "threads";
  EXPECT_THAT(MakeTtftConfigs(options, {}).status().message(), HasSubstr("--decode: line 1"));
}

class ChildServerTest : public ::testing::Test {
 protected:
  // A program of ours: a shell script that gets --config FILE.
  std::string Script(const std::string& text) {
    const std::string path = folder_ + "/script";
    std::ofstream(path) << "#!/bin/sh\n" << text;
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }
  void SetUp() override {
    folder_ = ::testing::TempDir() + "child_server_XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // The child's end, which a test waits for and does not time.
  absl::Status AwaitEnd(ChildServer* child) {
    absl::Status status;
    while ((status = child->Check()).ok()) absl::SleepFor(absl::Milliseconds(5));
    return status;
  }

  std::string folder_;
};

TEST_F(ChildServerTest, AServerThatEndsIsReportedWithTheEndOfItsLog) {
  const auto child =
      ChildServer::Start(Script("cat \"$2\"; echo no such model >&2; exit 3"), folder_, "decode", "a: 1\n");
  ASSERT_TRUE(child.ok()) << child.status();
  const absl::Status status = AwaitEnd(child->get());
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("aludel-decode ended with code 3"), HasSubstr("a: 1\nno such model\n"),
                    HasSubstr(folder_ + "/decode.log")));
}

TEST_F(ChildServerTest, EndsWithItsObject) {
  pid_t pid = 0;
  {
    const auto child = ChildServer::Start(Script("exec sleep 1000"), folder_, "decode", "");
    ASSERT_TRUE(child.ok()) << child.status();
    pid = (*child)->pid();
    EXPECT_EQ(kill(pid, 0), 0);
    EXPECT_TRUE((*child)->Check().ok());
  }
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST_F(ChildServerTest, AProgramThatIsNotThereIsNamed) {
  const auto child = ChildServer::Start(folder_ + "/none", folder_, "decode", "");
  EXPECT_TRUE(absl::IsNotFound(child.status()));
  EXPECT_THAT(child.status().message(), AllOf(HasSubstr("/none"), HasSubstr("--bin")));
}

TEST(FreePort, GivesEachPortOnce) {
  const int port = FreePort();
  EXPECT_GT(port, 1024);
  EXPECT_NE(FreePort(), port);
}

}  // namespace
}  // namespace aludel
