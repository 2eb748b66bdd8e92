#include "runtime/tool/flag_set.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class Flags : public ::testing::Test {
 protected:
  Flags() : flags_("does things") {
    flags_.Add("out-dir", "DIR", &out_, "where");
    flags_.Add("count", "N", &count_, "how many");
    flags_.Add("rate", "X", &rate_, "how fast");
    flags_.Add("verbose", &verbose_, "say more");
    flags_.AddList("model", "DIR", &models_, "may be repeated");
  }

  absl::Status Parse(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "tool");
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    return flags_.Parse(static_cast<int>(arguments.size()), pointers.data());
  }
  std::string Complaint(std::vector<std::string> arguments) {
    return std::string(Parse(std::move(arguments)).message());
  }

  std::string out_ = "here";
  int64_t count_ = 3;
  double rate_ = 0.5;
  bool verbose_ = false;
  std::vector<std::string> models_;
  FlagSet flags_;
};

TEST_F(Flags, TakesBothSpellingsAndRepetition) {
  ASSERT_TRUE(
      Parse({"--out-dir", "there", "--count=7", "--rate", "1e-3", "--verbose", "--model", "a", "--model=b"})
          .ok());
  EXPECT_EQ(out_, "there");
  EXPECT_EQ(count_, 7);
  EXPECT_EQ(rate_, 1e-3);
  EXPECT_TRUE(verbose_);
  EXPECT_THAT(models_, ElementsAre("a", "b"));
}

TEST_F(Flags, TakesArgumentsOnlyWhereTheToolWantsThem) {
  EXPECT_THAT(Complaint({"here"}), HasSubstr("found argument \"here\", want only flags"));
  std::vector<std::string> directories;
  flags_.AddArguments("DIR [DIR]", 2, &directories, "one or two models");
  ASSERT_TRUE(Parse({"one", "--count", "4", "two"}).ok());
  EXPECT_THAT(directories, ElementsAre("one", "two"));
  EXPECT_EQ(count_, 4);
  EXPECT_THAT(Complaint({"three"}), HasSubstr("found argument \"three\", want only DIR [DIR]"));
  EXPECT_THAT(flags_.Help(), HasSubstr("one or two models"));
}

TEST_F(Flags, KeepsDefaults) {
  ASSERT_TRUE(Parse({}).ok());
  EXPECT_EQ(out_, "here");
  EXPECT_FALSE(flags_.help_asked());
}

TEST_F(Flags, NamesWhatIsWrong) {
  EXPECT_THAT(Complaint({"--count", "many"}), HasSubstr("--count is \"many\", want an integer"));
  EXPECT_THAT(Complaint({"--rate", "fast"}), HasSubstr("--rate is \"fast\", want a number"));
  EXPECT_THAT(Complaint({"--color", "red"}), HasSubstr("unknown flag --color"));
  EXPECT_THAT(Complaint({"--out-dir"}), HasSubstr("--out-dir needs a value"));
  EXPECT_THAT(Complaint({"stray"}), HasSubstr("found argument \"stray\""));
}

TEST_F(Flags, NamesTheArgumentThatItRefuses) {
  EXPECT_THAT(Complaint({"-config", "file"}), HasSubstr("unknown flag -config (see"));
  EXPECT_THAT(Complaint({"--out-dir", "-c", "-count", "3"}), HasSubstr("unknown flag -count (see"));
  EXPECT_THAT(Complaint({"stray", "-c"}), HasSubstr("unknown flag -c (see"));
  EXPECT_THAT(Complaint({"stray", "--color=red", "--count", "3"}),
              HasSubstr("unknown flag --color=red (see"));
  EXPECT_THAT(Complaint({"stray", "--count"}), HasSubstr("--count needs a value"));
  ASSERT_TRUE(Parse({"--count", "4"}).ok()) << "what was refused is forgotten";
  EXPECT_EQ(count_, 4);
}

TEST_F(Flags, TakesWhatLooksLikeAFlagAsAnArgumentBehindTwoHyphens) {
  std::vector<std::string> directories;
  flags_.AddArguments("DIR [DIR]", 2, &directories, "one or two models");
  ASSERT_TRUE(Parse({"one", "--count", "4", "--", "--count"}).ok());
  EXPECT_THAT(directories, ElementsAre("one", "--count"));
}

TEST_F(Flags, AnswersForItsVersionWhereItHasOne) {
  EXPECT_THAT(Complaint({"--version"}), HasSubstr("unknown flag --version"));
  EXPECT_THAT(flags_.Help(), Not(HasSubstr("--version")));
  flags_.AddVersion("tool 1.2");
  EXPECT_THAT(flags_.Help(), HasSubstr("--version"));
  ASSERT_TRUE(Parse({}).ok());
  EXPECT_FALSE(flags_.Answer().has_value());
  ASSERT_TRUE(Parse({"--version", "--count", "many"}).ok());
  EXPECT_EQ(flags_.Answer(), "tool 1.2\n");
}

TEST_F(Flags, HelpTellsDefaults) {
  ASSERT_TRUE(Parse({"--help"}).ok());
  EXPECT_TRUE(flags_.help_asked());
  EXPECT_THAT(flags_.Help(), HasSubstr("--count N"));
  EXPECT_THAT(flags_.Help(), HasSubstr("(default 3)"));
}

}  // namespace
}  // namespace aludel
