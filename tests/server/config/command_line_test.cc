#include "server/config/command_line.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "aludel/v1/config.pb.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::ExitedWithCode;

CommandLine Read(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "aludel-test");
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  return ParseCommandLine(static_cast<int>(pointers.size()), pointers.data(), "It serves.",
                          "aludel-test 9.8.7 (commit abc)", v1::GatewayConfig::descriptor());
}
// On standard error, where a death test looks.
void ReadWithOutput(const std::vector<std::string>& arguments) {
  dup2(2, 1);
  Read(arguments);
}

TEST(CommandLine, NamesAConfiguration) {
  EXPECT_EQ(Read({"--config", "a.textproto"}).config, "a.textproto");
  EXPECT_FALSE(Read({"--config=a.textproto"}).check_config);
  EXPECT_TRUE(Read({"--check-config", "--config", "a"}).check_config);
}

TEST(CommandLineDeathTest, AnswersAndEnds) {
  EXPECT_EXIT(ReadWithOutput({"--version"}), ExitedWithCode(0), "^aludel-test 9.8.7 .commit abc.\n$");
  EXPECT_EXIT(ReadWithOutput({"--help"}), ExitedWithCode(0),
              "It serves.(.|\n)*--check-config(.|\n)*--version");
  EXPECT_EXIT(ReadWithOutput({"--settings"}), ExitedWithCode(0), "request_timeout_ms");
}

TEST(CommandLineDeathTest, SaysWhatItWanted) {
  EXPECT_EXIT(Read({}), ExitedWithCode(2), "aludel-test: --config FILE is missing");
  EXPECT_EXIT(Read({"--config", "a", "b"}), ExitedWithCode(2), "found argument \"b\", want only flags");
  EXPECT_EXIT(Read({"--confog", "a"}), ExitedWithCode(2), "unknown flag --confog");
}

}  // namespace
}  // namespace aludel
