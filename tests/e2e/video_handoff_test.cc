// A handoff whose codes travel as HEVC pictures, between real servers: the same answers as over rANS, the codes being the same.

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/fleet.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

constexpr size_t kPrompts = 20;

std::string Copy(const char* name) {
  const std::string artifact = absl::StrCat(::testing::TempDir(), "/", name);
  std::filesystem::remove_all(artifact);
  std::filesystem::copy("deploy/demo/codec", artifact);
  return artifact;
}

// The demo artifact with packing video.
std::string Repack() {
  const std::string artifact = Copy("video_codec");
  const std::string binary =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "aludel-calibrate";
  const std::string command = absl::StrCat(
      binary, " --producer deploy/demo/base --consumer deploy/demo/chat --threads 1 --data ",
      "deploy/demo/calibration.jsonl --prompts 20 --repack --packing video --out ", artifact, " > /dev/null");
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  return artifact;
}

std::vector<Answer> AskAll(const std::string& codec, const std::string& format) {
  FleetOptions options;
  options.decode_model = "deploy/demo/chat";
  options.codec = codec;
  Fleet fleet(options);
  EXPECT_TRUE(fleet.Start());
  std::vector<Answer> answers;
  for (const auto& prompt : DemoPrompts(kPrompts)) {
    answers.push_back(fleet.Ask(Fleet::Request(prompt, 8, format)));
    EXPECT_TRUE(answers.back().status.ok()) << answers.back().status;
    EXPECT_EQ(answers.back().started.plan(), "remote") << answers.back().started.fallback_reason();
  }
  EXPECT_TRUE(fleet.DecodeIsIdle());
  EXPECT_TRUE(fleet.PrefillIsIdle());
  return answers;
}

TEST(VideoHandoff, AnswersAsOverRans) {
  const std::string artifact = Repack();
  for (const char* format : {"aludel-p0", "aludel-p2"}) {
    const auto video = AskAll(absl::StrCat("artifact: '", artifact, "' formats: '", format, "'"), format);
    const auto rans = AskAll(absl::StrCat("artifact: 'deploy/demo/codec' formats: '", format, "'"), format);
    ASSERT_EQ(video.size(), rans.size());
    int other_bytes = 0;
    for (size_t i = 0; i < video.size(); ++i) {
      EXPECT_EQ(video[i].tokens, rans[i].tokens) << format << " " << i;
      other_bytes += video[i].started.payload_bytes() != rans[i].started.payload_bytes() ? 1 : 0;
    }
    EXPECT_EQ(other_bytes, kPrompts) << "these are no other frames";
  }
  std::filesystem::remove_all(artifact);
}

TEST(VideoHandoff, IsNotOfferedUnlessItIsNamed) {
  const std::string artifact = Repack();
  FleetOptions options;
  options.decode_model = "deploy/demo/chat";
  options.codec = absl::StrCat("artifact: '", artifact, "'");
  Fleet fleet(options);
  ASSERT_TRUE(fleet.Start());
  const Answer answer = fleet.Ask(Fleet::Request(DemoPrompts(1)[0], 4, "aludel-p0"));
  EXPECT_THAT(answer.status.ToString(), HasSubstr("aludel-p0"));
  EXPECT_FALSE(answer.status.ok());
  std::filesystem::remove_all(artifact);
}

}  // namespace
}  // namespace aludel
