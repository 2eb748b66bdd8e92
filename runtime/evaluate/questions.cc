#include "runtime/evaluate/questions.h"

#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "runtime/files/json_reader.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int kMaxDepth = 16;
constexpr size_t kMaxLineBytes = size_t{16} << 20;

absl::StatusOr<std::string> Text(const nlohmann::json& object, const char* name, const std::string& origin) {
  if (FindMember(object, name) == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": ", name, " is missing, want context and question, or text"));
  }
  return StringMember(object, name, "", origin);
}

absl::StatusOr<Question> ParseLine(const std::string& line, const std::string& origin) {
  ALUDEL_ASSIGN_OR_RETURN(const nlohmann::json object, ParseJson(line, origin, kMaxDepth));
  if (!object.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(origin, " is ", DescribeJson(object), ", want an object"));
  }
  Question question;
  if (FindMember(object, "text") != nullptr) {
    if (FindMember(object, "context") != nullptr || FindMember(object, "question") != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(origin, ": text stands beside context or question, want one of them"));
    }
    ALUDEL_ASSIGN_OR_RETURN(question.text, Text(object, "text", origin));
    if (question.text.empty()) return absl::InvalidArgumentError(absl::StrCat(origin, ": text is empty"));
    return question;
  }
  ALUDEL_ASSIGN_OR_RETURN(question.context, Text(object, "context", origin));
  ALUDEL_ASSIGN_OR_RETURN(question.question, Text(object, "question", origin));
  const nlohmann::json* answers = FindMember(object, "answers");
  if (answers == nullptr) return question;
  if (!answers->is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": answers is ", DescribeJson(*answers), ", want an array of strings"));
  }
  for (const nlohmann::json& answer : *answers) {
    if (!answer.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(origin, ": answers holds ", DescribeJson(answer), ", want a string"));
    }
    question.answers.push_back(answer.get<std::string>());
  }
  return question;
}

}  // namespace

absl::StatusOr<std::vector<Question>> LoadQuestions(const std::string& path, int64_t limit) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  std::vector<Question> questions;
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (limit > 0 && static_cast<int64_t>(questions.size()) >= limit) break;
    const std::string origin = absl::StrCat(path, ":", number);
    if (line.size() > kMaxLineBytes) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: line of %d bytes, want at most %d", origin, line.size(), kMaxLineBytes));
    }
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    ALUDEL_ASSIGN_OR_RETURN(Question question, ParseLine(line, origin));
    questions.push_back(std::move(question));
  }
  if (file.bad()) return absl::DataLossError(absl::StrCat(path, ": cannot be read"));
  if (questions.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": holds no questions"));
  return questions;
}

absl::StatusOr<PromptWriter> PromptWriter::Load(const std::string& model_directory) {
  PromptWriter writer;
  ALUDEL_ASSIGN_OR_RETURN(writer.tokenizer_, Tokenizer::Load(model_directory));
  auto chat_template = ChatTemplate::Load(model_directory);
  if (chat_template.ok()) {
    writer.template_ = *std::move(chat_template);
  } else if (!absl::IsNotFound(chat_template.status())) {
    return chat_template.status();
  }
  return writer;
}

absl::StatusOr<std::vector<int32_t>> PromptWriter::Write(const Question& question) const {
  const std::string message = question.Message();
  if (template_ == nullptr || !question.text.empty())
    return tokenizer_->Encode(message, /*add_special_tokens=*/true);
  nlohmann::ordered_json context;
  context["messages"] = nlohmann::ordered_json::array();
  context["messages"].push_back({{"role", "user"}, {"content", message}});
  context["add_generation_prompt"] = true;
  ALUDEL_ASSIGN_OR_RETURN(const std::string text, template_->Render(context));
  return tokenizer_->Encode(text, /*add_special_tokens=*/false);
}

}  // namespace aludel
