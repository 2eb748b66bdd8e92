#include "runtime/evaluate/questions.h"

#include <cstdio>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string File(const std::string& text) {
  const std::string path =
      ::testing::TempDir() + "/" + ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".jsonl";
  std::ofstream(path) << text;
  return path;
}

TEST(LoadQuestions, ReadsLinesAndSkipsEmptyOnes) {
  const auto questions = LoadQuestions(
      File("{\"context\": \"c\", \"question\": \"q\", \"answers\": [\"a\", \"b\"], \"kind\": 1}\n\n"
           "{\"context\": \"d\", \"question\": \"r\"}\n"),
      0);
  ASSERT_TRUE(questions.ok()) << questions.status();
  ASSERT_EQ(questions->size(), 2u);
  EXPECT_EQ((*questions)[0].context, "c");
  EXPECT_THAT((*questions)[0].answers, ElementsAre("a", "b"));
  EXPECT_TRUE((*questions)[1].answers.empty());
}

TEST(LoadQuestions, ReadsTexts) {
  const auto questions = LoadQuestions(File("{\"text\": \"int main() {\"}\n"), 0);
  ASSERT_TRUE(questions.ok()) << questions.status();
  EXPECT_EQ(questions->front().text, "int main() {");
  EXPECT_EQ(questions->front().Message(), "int main() {");
  const auto writer = PromptWriter::Load("deploy/demo/chat");
  ASSERT_TRUE(writer.ok()) << writer.status();
  // No template; the tokenizer's own special tokens.
  EXPECT_EQ(writer->Write(questions->front()).value(),
            writer->tokenizer().Encode("int main() {", true).value());
}

TEST(LoadQuestions, RefusesATextWithAQuestion) {
  EXPECT_THAT(
      std::string(LoadQuestions(File("{\"text\": \"a\", \"context\": \"b\"}\n"), 0).status().message()),
      HasSubstr(".jsonl:1: text stands beside context or question"));
}

TEST(LoadQuestions, StopsAtTheLimit) {
  EXPECT_EQ(LoadQuestions("deploy/demo/questions.jsonl", 5)->size(), 5u);
}

std::string Complaint(const std::string& text) {
  return std::string(LoadQuestions(File(text), 0).status().message());
}

TEST(LoadQuestions, NamesFileAndLine) {
  EXPECT_THAT(Complaint("{\"context\": \"c\", \"question\": \"q\"}\n{\"question\": \"q\"}\n"),
              HasSubstr(".jsonl:2: context is missing, want context and question, or text"));
  EXPECT_THAT(Complaint("[]\n"), HasSubstr(".jsonl:1"));
  EXPECT_THAT(Complaint("{\"context\": 3, \"question\": \"q\"}\n"), HasSubstr("context is"));
  EXPECT_THAT(Complaint("{\"context\": \"c\", \"question\": \"q\", \"answers\": \"a\"}\n"),
              HasSubstr("answers is"));
  EXPECT_THAT(Complaint("{\"context\"\n"), HasSubstr(".jsonl:1"));
  EXPECT_THAT(Complaint("\n"), HasSubstr("holds no questions"));
  EXPECT_EQ(LoadQuestions("no/such/file", 0).status().code(), absl::StatusCode::kNotFound);
}

TEST(PromptWriter, RendersTheChatTemplate) {
  const auto writer = PromptWriter::Load("deploy/demo/chat");
  ASSERT_TRUE(writer.ok()) << writer.status();
  const auto ids = writer->Write({"The sky.", "which color", {}});
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(writer->tokenizer().Decode(*ids, /*skip_special_tokens=*/false),
            "<|begin|><|user|>The sky.\nwhich color<|assistant|>");
}

}  // namespace
}  // namespace aludel
