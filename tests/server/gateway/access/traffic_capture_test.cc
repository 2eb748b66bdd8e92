#include "server/gateway/access/traffic_capture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "tests/server/gateway/gateway_fixture.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string NewFile() {
  std::string file = absl::StrCat(::testing::TempDir(), "/",
                                  ::testing::UnitTest::GetInstance()->current_test_info()->name());
  unlink(file.c_str());
  return file;
}

std::vector<std::string> Lines(const std::string& file) {
  std::ifstream in(file);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  EXPECT_TRUE(text.empty() || text.back() == '\n') << text;
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

// Until so many prompts have come to this end.
void Await(Metrics& metrics, const std::string& outcome, int count) {
  const std::string line =
      absl::StrCat("aludel_captured_prompts_total{outcome=\"", outcome, "\"} ", count, "\n");
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (!absl::StrContains(metrics.Render(), line) && absl::Now() < deadline)
    absl::SleepFor(absl::Milliseconds(2));
  EXPECT_THAT(metrics.Render(), HasSubstr(line));
}

TEST(TrafficCapture, WritesLinesForTheOwnerAlone) {
  const std::string file = NewFile();
  Metrics metrics;
  TrafficCapture capture({.file = file, .max_bytes = 1 << 20}, &metrics);
  capture.Take("chat", {5, 0, 17});
  capture.Take("a \"name\"", {1});
  Await(metrics, "written", 2);
  const std::vector<std::string> lines = Lines(file);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], R"({"model":"chat","ids":[5,0,17]})");
  EXPECT_EQ(nlohmann::json::parse(lines[1])["model"], "a \"name\"");
  struct stat about = {};
  ASSERT_EQ(stat(file.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777u, 0600u);
}

TEST(TrafficCapture, StaysWithinItsBytesAndGoesOnInANewFile) {
  const std::string file = NewFile();
  Metrics metrics;
  TrafficCapture capture({.file = file, .max_bytes = 80}, &metrics);
  for (int i = 0; i < 5; ++i) capture.Take("chat", {5, 0, 17});  // lines of 32 bytes
  Await(metrics, "written", 2);
  Await(metrics, "full", 3);
  EXPECT_EQ(Lines(file).size(), 2u);
  ASSERT_EQ(rename(file.c_str(), absl::StrCat(file, ".1").c_str()), 0);
  capture.Take("chat", {5, 0, 17});
  Await(metrics, "written", 3);
  EXPECT_EQ(Lines(file).size(), 1u);
}

TEST(TrafficCapture, CountsWhatCannotBeWritten) {
  Metrics metrics;
  TrafficCapture nowhere({.file = "/no/such/folder/capture.jsonl", .max_bytes = 1 << 20}, &metrics);
  nowhere.Take("chat", {5});
  Await(metrics, "failed", 1);
  const std::string pipe = NewFile();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  TrafficCapture fifo({.file = pipe, .max_bytes = 1 << 20}, &metrics);
  fifo.Take("chat", {5});
  Await(metrics, "failed", 2);
  TrafficCapture full({.file = "/dev/full", .max_bytes = 1 << 20}, &metrics);
  full.Take("chat", {5});
  Await(metrics, "failed", 3);
}

TEST(TrafficCapture, TakesAShare) {
  const std::string file = NewFile();
  Metrics metrics;
  TrafficCapture none({.file = file, .max_bytes = 1 << 20, .share = 0}, &metrics);
  for (int i = 0; i < 50; ++i) none.Take("chat", {5});
  TrafficCapture all({.file = file, .max_bytes = 1 << 20}, &metrics);
  all.Take("chat", {6});
  Await(metrics, "written", 1);
  EXPECT_EQ(Lines(file).size(), 1u);
}

using GatewayCapture = gateway_testing::GatewayTest;

// What the decode server was sent is what is kept, but for requests that do not want to be kept.
TEST_F(GatewayCapture, KeepsThePromptsOfRequests) {
  FakeDecode decode(FakeDecode::Hello);
  const std::string file = NewFile();
  Metrics metrics;
  TrafficCapture capture({.file = file, .max_bytes = 1 << 20}, &metrics);
  StartGateway({&decode}, {.capture = &capture});
  EXPECT_EQ(Chat(R"(, "max_tokens": 1, "store": false)", "a secret").status, 200);
  EXPECT_THAT(Lines(file), IsEmpty());
  const auto answer = Chat(R"(, "max_tokens": 1, "return_token_ids": true)");
  EXPECT_EQ(answer.status, 200) << answer.body;
  Await(metrics, "written", 1);
  const std::vector<std::string> lines = Lines(file);
  ASSERT_EQ(lines.size(), 1u);
  const auto line = nlohmann::json::parse(lines[0]);
  EXPECT_EQ(line["model"], "chat");
  EXPECT_EQ(line["ids"], answer.Json()["prompt_token_ids"]);
  server_.reset();  // before what its requests use
  gateway_.reset();
}

}  // namespace
}  // namespace aludel
