#include "runtime/calibrate/sample_prompts.h"

#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/evaluate/questions.h"

namespace aludel {
namespace {

namespace fs = std::filesystem;

std::string Lines(const std::string& word, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) absl::StrAppend(&text, word, " é line ", i, "\n");
  return text;
}

class SamplePromptsTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(root_);
    fs::create_directories(root_ / "package");
    Write("package/README", Lines("plain", 4000));
    Write("package/image.txt", std::string(5000, '\0'));
    Write("package/latin.txt", std::string(5000, '\xe9'));
    Write("package/short.md", "too short\n");
    Write("package/module.py", Lines("code", 2000));
    gzFile packed = gzopen((root_ / "package/guide.txt.gz").c_str(), "wb");
    const std::string text = Lines("packed", 4000);
    ASSERT_EQ(gzwrite(packed, text.data(), static_cast<unsigned>(text.size())),
              static_cast<int>(text.size()));
    gzclose(packed);
    fs::create_symlink(root_ / "package/README", root_ / "package/README.link");
    options_.roots = {root_.string(), "no/such/folder"};
    options_.count = 40;
  }
  void Write(const char* name, const std::string& text) { std::ofstream(root_ / name) << text; }

  fs::path root_ = fs::path(testing::TempDir()) / "sample_prompts";
  SamplePromptsOptions options_;
};

TEST_F(SamplePromptsTest, AreReadAsQuestions) {
  const std::string file = (root_ / "prompts.jsonl").string();
  ASSERT_TRUE(WriteSamplePrompts(options_, file).ok());
  const auto questions = LoadQuestions(file, 0);
  ASSERT_TRUE(questions.ok()) << questions.status();
  ASSERT_EQ(questions->size(), 40u);
  int asked = 0, code = 0;
  std::set<std::string> kinds, pieces;
  for (const Question& question : *questions) {
    const std::string& piece = question.is_chat() ? question.context : question.text;
    EXPECT_GE(piece.size(), 299u);  // an "é" may have been cut
    EXPECT_LE(piece.size(), 1600u);
    const std::string kind = piece.substr(0, piece.find(' '));
    kinds.insert(kind);
    pieces.insert(piece);
    asked += question.is_chat() ? 1 : 0;
    code += kind == "code" ? 1 : 0;
  }
  EXPECT_EQ(kinds, (std::set<std::string>{"plain", "packed",
                                          "code"}));  // from lines' beginnings on, and nothing else
  EXPECT_EQ(pieces.size(), 40u);
  std::set<std::string> whole_lines;
  size_t seen = 0;
  for (const std::string& piece : pieces) {
    size_t begin = 0;
    for (size_t end = 0; (end = piece.find('\n', begin)) != std::string::npos; begin = end + 1, ++seen) {
      whole_lines.insert(piece.substr(begin, end - begin));
    }
  }
  EXPECT_EQ(whole_lines.size(), seen) << "pieces overlap";
  EXPECT_EQ(asked, 20);
  EXPECT_EQ(code, 10);
  EXPECT_EQ(WriteSamplePrompts(options_, file).code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(SamplePromptsTest, FollowTheSeed) {
  const std::string first = SamplePrompts(options_).value();
  EXPECT_EQ(SamplePrompts(options_).value(), first);
  options_.seed = 2;
  EXPECT_NE(SamplePrompts(options_).value(), first);
}

TEST_F(SamplePromptsTest, SayWhereTextIsMissing) {
  fs::remove(root_ / "package/module.py");
  const absl::Status status = SamplePrompts(options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find("and 0 of code"), std::string::npos) << status;
  Write("package/module.py", Lines("code", 100));
  EXPECT_EQ(SamplePrompts(options_).status().code(), absl::StatusCode::kNotFound) << "ten pieces of 2 KB";
  options_.count = 0;
  EXPECT_EQ(SamplePrompts(options_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SamplePromptsTest, TakeTheFirstMiBOfAFileEvenWhereItEndsInACharacter) {
  std::string text;
  while (text.size() < (size_t{2} << 20)) text += "é\n";  // the MiB ends within one
  Write("package/README", text);
  options_.count = 100;
  Write("package/module.py", Lines("code", 9000));
  const auto lines = SamplePrompts(options_);
  ASSERT_TRUE(lines.ok()) << lines.status();
  EXPECT_NE(lines->find("é\\né\\n"), std::string::npos) << "none is of this file";
}

TEST_F(SamplePromptsTest, SayWhyTheFileCannotBeWritten) {
  const absl::Status status = WriteSamplePrompts(options_, (root_ / "no/such/folder/file").string());
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_NE(status.message().find("cannot write "), std::string::npos) << status;
}

}  // namespace
}  // namespace aludel
