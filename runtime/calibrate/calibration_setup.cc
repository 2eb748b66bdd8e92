#include "runtime/calibrate/calibration_setup.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/codec/artifact/weight_file.h"
#include "runtime/evaluate/check_pair.h"
#include "runtime/evaluate/questions.h"
#include "runtime/files/json_reader.h"
#include "runtime/model/transformer_options.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr size_t kMaxDataBytes = size_t{4} << 30;

}  // namespace

std::string ModelName(const std::string& model) { return ModelPath::Parse(model).Name(); }

void PrintLine(const std::string& line) { std::printf("%s\n", line.c_str()); }

std::string MiB(size_t bytes) { return absl::StrFormat("%.0f MiB", static_cast<double>(bytes) / (1 << 20)); }

int64_t TokenCount(const std::vector<std::vector<int32_t>>& prompts) {
  int64_t tokens = 0;
  for (const auto& prompt : prompts) tokens += static_cast<int64_t>(prompt.size());
  return tokens;
}

absl::StatusOr<ModelConfig> CheckPairs(const CalibrateJob& job) {
  const ModelPath producer = ModelPath::Parse(job.producer);
  ALUDEL_ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::Load(producer.base));
  for (const std::string& consumer : job.consumers) {
    ALUDEL_ASSIGN_OR_RETURN(const ModelConfig both, CheckPair(producer, ModelPath::Parse(consumer)));
    config.max_positions = std::min(config.max_positions, both.max_positions);
    ALUDEL_ASSIGN_OR_RETURN(const ModelConfig own, ModelConfig::Load(ModelPath::Parse(consumer).base));
    if (own.hidden != config.hidden) {
      return absl::FailedPreconditionError(
          absl::StrFormat("hidden_size of %s is %d, of %s %d: calibration wants one size", consumer,
                          own.hidden, job.producer, config.hidden));
    }
  }
  return config;
}

absl::StatusOr<std::vector<std::vector<int32_t>>> LoadPrompts(const CalibrateJob& job,
                                                              const std::string& data, int64_t most,
                                                              const ModelConfig& config) {
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<Question> questions, LoadQuestions(data, most));
  ALUDEL_ASSIGN_OR_RETURN(const PromptWriter writer,
                          PromptWriter::Load(ModelPath::Parse(job.consumers.front())));
  if (std::all_of(questions.begin(), questions.end(), [](const Question& q) { return q.is_chat(); })) {
    PrintLine(absl::StrCat("warning: ", data,
                           " holds no {\"text\": ...} lines; codes fitted to chats alone may "
                           "ruin plain text, program code and other languages"));
  }
  if (writer.has_template_of_adapter()) {
    PrintLine(
        "note: prompts are written with the chat template in the adapter's directory; one of several "
        "`adapters` of a "
        "decode server is served with its base's");
  }
  std::vector<std::vector<int32_t>> prompts;
  int64_t left_out = 0;
  for (const Question& question : questions) {
    ALUDEL_ASSIGN_OR_RETURN(std::vector<int32_t> ids, writer.Write(question));
    const bool fits = static_cast<int64_t>(ids.size()) + job.scd.max_answer_tokens <= config.max_positions;
    // Of traffic that was captured, some is at the end of what the model holds.
    if (!question.ids.empty() && (!fits || ids.size() < 2)) {
      ++left_out;
      continue;
    }
    if (!fits) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: a prompt of %d tokens, the models hold %d with an answer of %d",
                          question.origin, ids.size(), config.max_positions, job.scd.max_answer_tokens));
    }
    prompts.push_back(std::move(ids));
  }
  if (left_out > 0) {
    PrintLine(
        absl::StrFormat("%s: %d prompts of ids are left out, too short or too long for the models with an "
                        "answer of %d tokens",
                        data, left_out, job.scd.max_answer_tokens));
  }
  return prompts;
}

absl::StatusOr<CalibrationPrompts> LoadCalibrationPrompts(const CalibrateJob& job,
                                                          const ModelConfig& config) {
  CalibrationPrompts prompts;
  ALUDEL_ASSIGN_OR_RETURN(prompts.train, LoadPrompts(job, job.data, job.prompts, config));
  const size_t count = prompts.train.size();
  const auto held_out = std::max<size_t>(1, static_cast<size_t>(job.held_out * static_cast<double>(count)));
  if (count < 2 * held_out) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s holds %d prompts, want at least %d with %g held out", job.data, count,
                        2 * held_out, job.held_out));
  }
  const auto split = prompts.train.end() - static_cast<int64_t>(held_out);
  prompts.held_out.assign(std::make_move_iterator(split), std::make_move_iterator(prompts.train.end()));
  prompts.train.erase(split, prompts.train.end());
  return prompts;
}

absl::StatusOr<std::string> DescribeData(const std::string& path) {
  ALUDEL_ASSIGN_OR_RETURN(const std::string data, ReadFile(path, kMaxDataBytes));
  const std::string hash = Sha256Hex({reinterpret_cast<const uint8_t*>(data.data()), data.size()});
  return absl::StrCat(std::filesystem::path(path).filename().string(), " sha256 ", hash);
}

absl::StatusOr<std::unique_ptr<Transformer>> LoadForCalibration(const CalibrateJob& job, Device* device,
                                                                const std::string& model) {
  TransformerOptions options;
  options.compute = job.compute;
  return Transformer::Load(device, ModelPath::Parse(model), options);
}

}  // namespace aludel
