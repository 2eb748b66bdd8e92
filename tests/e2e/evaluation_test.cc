#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "runtime/codec/codec.h"
#include "runtime/codec/open_codec.h"
#include "runtime/evaluate/questions.h"
#include "runtime/model/weights/weights.h"
#include "tests/e2e/fleet.h"

namespace aludel {
namespace {

constexpr int kMaxTokens = 24;
constexpr int32_t kEnd = 2;  // the demo models' end token, which servers do not send
constexpr char kQuestionFile[] = "deploy/demo/questions.jsonl";

// Everything that crosses the wire between the demo pair.
std::vector<std::string> ServedFormats() {
  std::vector<std::string> formats = *ListFormats("deploy/demo/codec", *HashModel("deploy/demo/chat"));
  for (const std::string& baseline : ListBaselines()) formats.push_back(baseline);
  return formats;
}

// One of this build's tools, of the demo pair.
void RunTool(const char* program, const std::string& arguments) {
  const std::string binary = std::filesystem::read_symlink("/proc/self/exe").parent_path() / program;
  const std::string command =
      absl::StrCat(binary, " --producer deploy/demo/base --consumer deploy/demo/chat --threads 1 ", arguments,
                   " > /dev/null");
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

// The records that aludel-eval writes, with the servers' arithmetic. [questions]
std::vector<nlohmann::json> Evaluate(const std::string& artifact, const std::vector<std::string>& formats,
                                     int questions) {
  const std::string out = ::testing::TempDir() + "/evaluation_test";
  RunTool("aludel-eval",
          absl::StrCat("--codec ", artifact, " --qa ", kQuestionFile, " --questions ", questions,
                       " --max-answer-tokens ", kMaxTokens, " --compute bf16 --formats ",
                       absl::StrJoin(formats, ","), " --out ", out));
  std::vector<nlohmann::json> records;
  std::ifstream file(out + "/records.jsonl");
  std::string line;
  std::getline(file, line);  // says what was evaluated
  while (std::getline(file, line)) records.push_back(nlohmann::json::parse(line));
  return records;
}

void Compare(const std::string& artifact, const std::vector<std::string>& formats, int count) {
  const std::vector<nlohmann::json> records = Evaluate(artifact, formats, count);
  ASSERT_EQ(records.size(), count);
  const auto questions = LoadQuestions(kQuestionFile, count);
  const auto writer = PromptWriter::Load("deploy/demo/chat");
  ASSERT_TRUE(questions.ok() && writer.ok());

  FleetOptions options;
  options.decode_model = "deploy/demo/chat";
  options.codec = absl::StrCat("artifact: '", artifact, "'");
  for (const std::string& format : formats) absl::StrAppend(&options.codec, " formats: '", format, "'");
  Fleet fleet(options);
  ASSERT_TRUE(fleet.Start());
  for (int i = 0; i < count; ++i) {
    const std::vector<int32_t> prompt = *writer->Write((*questions)[i]);
    ASSERT_EQ(records[i]["formats"].size(), formats.size());
    for (size_t f = 0; f < formats.size(); ++f) {
      // "recompute" is served under the name of its group.
      const std::string name = formats[f] == "recompute" ? "recompute-0-1" : formats[f];
      v1::GenerateRequest request = Fleet::Request(prompt, kMaxTokens, name);
      request.mutable_sampling()->set_ignore_eos(false);
      const Answer answer = fleet.Ask(request);
      ASSERT_TRUE(answer.status.ok()) << name << ": " << answer.status;
      ASSERT_EQ(answer.started.plan(), "remote") << name << ": " << answer.started.fallback_reason();
      const nlohmann::json& record = records[i]["formats"][f];
      auto tokens = record["answer"].get<std::vector<int32_t>>();
      if (!tokens.empty() && tokens.back() == kEnd) tokens.pop_back();
      EXPECT_EQ(answer.tokens, tokens) << name << ", question " << i;
      EXPECT_EQ(static_cast<double>(answer.started.payload_bytes()), record["bytes"].get<double>())
          << name << ", question " << i;
      EXPECT_EQ(answer.started.handed_over_tokens(), record["handed_over"].get<uint32_t>());
    }
  }
}

TEST(Evaluation, SaysWhatTheServersSendAndAnswer) { Compare("deploy/demo/codec", ServedFormats(), 12); }

TEST(Evaluation, SaysWhatTheServersSendAndAnswerOfCutFrames) {
  const std::string artifact = ::testing::TempDir() + "/embedded_codec";
  std::filesystem::remove_all(artifact);
  std::filesystem::copy("deploy/demo/codec", artifact);
  RunTool("aludel-calibrate",
          absl::StrCat("--data deploy/demo/calibration.jsonl --prompts 20 --repack --packing embedded --out ",
                       artifact));
  Compare(artifact, {"aludel-p0", "aludel-p0@3", "aludel-p0@1", "aludel-p2@2"}, 3);
  std::filesystem::remove_all(artifact);
}

}  // namespace
}  // namespace aludel
