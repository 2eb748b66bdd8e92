#include "runtime/evaluate/questions.h"

#include <cstdio>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/model/temporary_directory.h"

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
      HasSubstr(".jsonl:1: context and question, messages, text and ids stand beside each other"));
}

TEST(LoadQuestions, ReadsConversations) {
  const auto lines = LoadQuestions(
      File(
          R"({"messages": [{"role": "developer", "content": "Be brief."}, )"
          R"({"role": "user", "content": [{"type": "text", "text": "which "}, {"type": "text", "text": "color"}]}, )"
          R"({"role": "assistant", "content": "blue"}], "tools": [{"type": "function"}]})"
          "\n"
          R"({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", )"
          R"("body": {"model": "m", "messages": [{"role": "user", "content": "hi"}]}, "answers": ["a", "b"]})"),
      0);
  ASSERT_TRUE(lines.ok()) << lines.status();
  const Question& first = lines->front();
  EXPECT_EQ(first.messages.dump(),
            R"([{"role":"system","content":"Be brief."},{"role":"user","content":"which color"}])");
  EXPECT_EQ(first.tools.size(), 1u);
  EXPECT_THAT(first.answers, ElementsAre("blue"));
  EXPECT_EQ(first.Message(), "which color");
  EXPECT_TRUE(first.is_chat());
  EXPECT_EQ(lines->back().Message(), "hi");
  EXPECT_THAT(lines->back().answers, ElementsAre("a", "b"));
}

TEST(LoadQuestions, ReadsIds) {
  const auto questions =
      LoadQuestions(File("{\"model\": \"chat\", \"ids\": [5, 0, 17]}\n{\"ids\": [99999]}\n"), 0);
  ASSERT_TRUE(questions.ok()) << questions.status();
  EXPECT_FALSE(questions->front().is_chat());
  const auto writer = PromptWriter::Load("deploy/demo/chat");
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_THAT(writer->Write(questions->front()).value(), ElementsAre(5, 0, 17));
  EXPECT_THAT(std::string(writer->Write(questions->back()).status().message()),
              HasSubstr(".jsonl:2: token 99999 is none of the model's"));
}

TEST(LoadQuestions, StopsAtTheLimit) {
  EXPECT_EQ(LoadQuestions("deploy/demo/questions.jsonl", 5)->size(), 5u);
}

std::string Complaint(const std::string& text) {
  return std::string(LoadQuestions(File(text), 0).status().message());
}

TEST(LoadQuestions, NamesFileAndLine) {
  EXPECT_THAT(Complaint("{\"context\": \"c\", \"question\": \"q\"}\n{\"question\": \"q\"}\n"),
              HasSubstr(".jsonl:2: context is missing, want context and question, messages, text or ids"));
  EXPECT_THAT(Complaint("[]\n"), HasSubstr(".jsonl:1"));
  EXPECT_THAT(Complaint("{\"context\": 3, \"question\": \"q\"}\n"), HasSubstr("context is"));
  EXPECT_THAT(Complaint("{\"context\": \"c\", \"question\": \"q\", \"answers\": \"a\"}\n"),
              HasSubstr("answers is"));
  EXPECT_THAT(Complaint("{\"context\"\n"), HasSubstr(".jsonl:1"));
  EXPECT_THAT(Complaint("{\"messages\": []}\n"), HasSubstr("want an array of messages"));
  EXPECT_THAT(Complaint("{\"messages\": [\"hi\"]}\n"), HasSubstr("messages[0]: is"));
  EXPECT_THAT(Complaint("{\"messages\": [{\"content\": \"hi\"}]}\n"),
              HasSubstr("messages[0]: role is missing"));
  EXPECT_THAT(Complaint("{\"messages\": [{\"role\": \"user\", \"content\": 3}]}\n"), HasSubstr("content is"));
  EXPECT_THAT(Complaint("{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}\n"),
              HasSubstr("want parts of type text"));
  EXPECT_THAT(Complaint("{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}\n"),
              HasSubstr("an answer alone"));
  EXPECT_THAT(Complaint("{\"ids\": [1, -2]}\n"), HasSubstr("ids holds"));
  EXPECT_THAT(Complaint("{\"ids\": [4294967296]}\n"), HasSubstr("ids holds"));
  EXPECT_THAT(Complaint("\n"), HasSubstr("holds no questions"));
  EXPECT_EQ(LoadQuestions("no/such/file", 0).status().code(), absl::StatusCode::kNotFound);
}

TEST(PromptWriter, RendersConversations) {
  const auto writer = PromptWriter::Load("deploy/demo/chat");
  ASSERT_TRUE(writer.ok()) << writer.status();
  const auto questions = LoadQuestions(
      File(R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}, )"
           R"({"role": "user", "content": "The sky."}]})"),
      0);
  ASSERT_TRUE(questions.ok()) << questions.status();
  const auto ids = writer->Write(questions->front());
  ASSERT_TRUE(ids.ok()) << ids.status();
  const std::string text = writer->tokenizer().Decode(*ids, /*skip_special_tokens=*/false);
  EXPECT_THAT(text, HasSubstr("<|user|>hi<|assistant|>hello"));
  EXPECT_THAT(text, ::testing::EndsWith("<|user|>The sky.<|assistant|>"));
}

TEST(PromptWriter, RendersTheChatTemplate) {
  const auto writer = PromptWriter::Load("deploy/demo/chat");
  ASSERT_TRUE(writer.ok()) << writer.status();
  const auto ids = writer->Write({"The sky.", "which color", {}});
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(writer->tokenizer().Decode(*ids, /*skip_special_tokens=*/false),
            "<|begin|><|user|>The sky.\nwhich color<|assistant|>");
}

TEST(PromptWriter, TakesTheTemplateOfAnAdapterThatHasOne) {
  const TemporaryDirectory with, without;
  with.Write(
      "tokenizer_config.json",
      R"({"chat_template": "{% for message in messages %}Q: {{ message['content'] }} A:{% endfor %}"})");
  const auto written = [](const ModelPath& model) {
    const auto writer = PromptWriter::Load(model);
    EXPECT_TRUE(writer.ok()) << writer.status();
    return writer->tokenizer().Decode(writer->Write({"The sky.", "which color", {}}).value(),
                                      /*skip_special_tokens=*/false);
  };
  EXPECT_EQ(written({"deploy/demo/base", with.path()}), "Q: The sky.\nwhich color A:");
  EXPECT_EQ(written({"deploy/demo/chat", with.path()}), "Q: The sky.\nwhich color A:");
  EXPECT_EQ(written({"deploy/demo/chat", without.path()}),
            "<|begin|><|user|>The sky.\nwhich color<|assistant|>");
  EXPECT_EQ(written({"deploy/demo/base", without.path()}), "The sky.\nwhich color");
  with.Write("tokenizer_config.json", R"({"chat_template": 7})");
  EXPECT_EQ(PromptWriter::Load(ModelPath("deploy/demo/chat", with.path())).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace aludel
