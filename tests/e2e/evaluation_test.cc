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

constexpr int kQuestions = 12;
constexpr int kMaxTokens = 24;
constexpr int32_t kEnd = 2;  // the demo models' end token, which servers do not send
constexpr char kQuestionFile[] = "deploy/demo/questions.jsonl";

// Everything that crosses the wire between the demo pair.
std::vector<std::string> ServedFormats() {
  std::vector<std::string> formats = *ListFormats("deploy/demo/codec", *HashModel("deploy/demo/chat"));
  for (const std::string& baseline : ListBaselines()) formats.push_back(baseline);
  return formats;
}

// The records that the aludel-eval of this build writes, with the servers' arithmetic. [questions]
std::vector<nlohmann::json> Evaluate(const std::vector<std::string>& formats) {
  const std::string out = ::testing::TempDir() + "/evaluation_test";
  const std::string binary = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "aludel-eval";
  const std::string command = absl::StrCat(
      binary, " --producer deploy/demo/base --consumer deploy/demo/chat --codec deploy/demo/codec --qa ",
      kQuestionFile, " --questions ", kQuestions, " --max-answer-tokens ", kMaxTokens,
      " --compute bf16 --threads 1 --formats ", absl::StrJoin(formats, ","), " --out ", out, " > /dev/null");
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  std::vector<nlohmann::json> records;
  std::ifstream file(out + "/records.jsonl");
  std::string line;
  std::getline(file, line);  // says what was evaluated
  while (std::getline(file, line)) records.push_back(nlohmann::json::parse(line));
  return records;
}

TEST(Evaluation, SaysWhatTheServersSendAndAnswer) {
  const std::vector<std::string> formats = ServedFormats();
  const std::vector<nlohmann::json> records = Evaluate(formats);
  ASSERT_EQ(records.size(), kQuestions);
  const auto questions = LoadQuestions(kQuestionFile, kQuestions);
  const auto writer = PromptWriter::Load("deploy/demo/chat");
  ASSERT_TRUE(questions.ok() && writer.ok());

  FleetOptions options;
  options.decode_model = "deploy/demo/chat";
  options.codec = "artifact: 'deploy/demo/codec'";
  for (const std::string& format : formats) absl::StrAppend(&options.codec, " formats: '", format, "'");
  Fleet fleet(options);
  ASSERT_TRUE(fleet.Start());
  for (int i = 0; i < kQuestions; ++i) {
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

}  // namespace
}  // namespace aludel
