#include "runtime/evaluate/questions.h"

#include <cstring>
#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "runtime/files/json_reader.h"
#include "runtime/status_macros.h"
#include "runtime/text/constrain/ordered_json.h"

namespace aludel {
namespace {

constexpr size_t kMaxLineBytes = size_t{16} << 20;

absl::Status Fault(const std::string& origin, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(origin, ": ", what));
}

absl::StatusOr<std::string> Text(const nlohmann::json& object, const char* name, const std::string& origin) {
  if (FindMember(object, name) == nullptr) {
    return Fault(origin, absl::StrCat(name, " is missing, want context and question, messages, text or ids"));
  }
  return StringMember(object, name, "", origin);
}

// A string, or parts of text; null stands beside calls of tools.
absl::StatusOr<std::string> Content(const nlohmann::json& message, const std::string& origin) {
  const nlohmann::json* content = FindMember(message, "content");
  if (content == nullptr) return std::string();
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) {
    return Fault(origin, absl::StrCat("content is ", DescribeJson(*content), ", want a string or parts"));
  }
  std::string text;
  for (const nlohmann::json& part : *content) {
    if (!part.is_object() || !part.contains("text") || !part["text"].is_string()) {
      return Fault(origin, absl::StrCat("content holds ", DescribeJson(part), ", want parts of type text"));
    }
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

// Arguments of calls are text in OpenAI's API, and objects in templates.
void ReadCalls(nlohmann::ordered_json* message) {
  const auto calls = message->find("tool_calls");
  if (calls == message->end() || !calls->is_array()) return;
  for (nlohmann::ordered_json& call : *calls) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
    nlohmann::ordered_json& function = call["function"];
    if (!function.contains("arguments") || !function["arguments"].is_string()) continue;
    const auto text = function["arguments"].get<std::string>();
    auto read = ParseOrdered(text.empty() ? "{}" : text);
    if (read.ok() && read->is_object()) function["arguments"] = *std::move(read);
  }
}

// `ordered` is the same, its members in their order, which templates may show a model.
absl::Status ReadMessages(const nlohmann::json& messages, const nlohmann::ordered_json& ordered,
                          const std::string& origin, Question* question) {
  if (!messages.is_array() || messages.empty()) {
    return Fault(origin, absl::StrCat("messages is ", DescribeJson(messages), ", want an array of messages"));
  }
  question->messages = nlohmann::ordered_json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    const nlohmann::json& message = messages[i];
    const std::string where = absl::StrCat(origin, ": messages[", i, "]");
    if (!message.is_object())
      return Fault(where, absl::StrCat("is ", DescribeJson(message), ", want an object"));
    ALUDEL_ASSIGN_OR_RETURN(const std::string role, StringMember(message, "role", "", where));
    if (role.empty()) return Fault(where, "role is missing");
    ALUDEL_ASSIGN_OR_RETURN(std::string content, Content(message, where));
    nlohmann::ordered_json read = ordered[i];
    read["role"] = role == "developer" ? "system" : role;
    read["content"] = std::move(content);
    ReadCalls(&read);
    question->messages.push_back(std::move(read));
  }
  const nlohmann::ordered_json& last = question->messages.back();
  if (last["role"] != "assistant") return absl::OkStatus();
  question->answers = {last["content"].get<std::string>()};
  question->messages.erase(question->messages.size() - 1);
  if (question->messages.empty()) return Fault(origin, "messages is an answer alone");
  return absl::OkStatus();
}

absl::Status ReadIds(const nlohmann::json& ids, const std::string& origin, Question* question) {
  if (!ids.is_array() || ids.empty()) {
    return Fault(origin, absl::StrCat("ids is ", DescribeJson(ids), ", want an array of token ids"));
  }
  for (const nlohmann::json& id : ids) {
    if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<int32_t>::max()) {
      return Fault(origin, absl::StrCat("ids holds ", DescribeJson(id), ", want token ids"));
    }
    question->ids.push_back(id.get<int32_t>());
  }
  return absl::OkStatus();
}

absl::Status ReadAnswers(const nlohmann::json& answers, const std::string& origin, Question* question) {
  if (!answers.is_array()) {
    return Fault(origin, absl::StrCat("answers is ", DescribeJson(answers), ", want an array of strings"));
  }
  question->answers.clear();
  for (const nlohmann::json& answer : answers) {
    if (!answer.is_string()) {
      return Fault(origin, absl::StrCat("answers holds ", DescribeJson(answer), ", want a string"));
    }
    question->answers.push_back(answer.get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status ReadQuestion(const nlohmann::json& object, const nlohmann::ordered_json& ordered,
                          const std::string& origin, Question* question) {
  if (FindMember(object, "text") != nullptr) {
    ALUDEL_ASSIGN_OR_RETURN(question->text, Text(object, "text", origin));
    return question->text.empty() ? Fault(origin, "text is empty") : absl::OkStatus();
  }
  if (const nlohmann::json* ids = FindMember(object, "ids")) return ReadIds(*ids, origin, question);
  if (const nlohmann::json* messages = FindMember(object, "messages")) {
    if (const nlohmann::json* tools = FindMember(object, "tools")) {
      if (!tools->is_array())
        return Fault(origin, absl::StrCat("tools is ", DescribeJson(*tools), ", want an array"));
      question->tools = ordered["tools"];
    }
    return ReadMessages(*messages, ordered["messages"], origin, question);
  }
  ALUDEL_ASSIGN_OR_RETURN(question->context, Text(object, "context", origin));
  ALUDEL_ASSIGN_OR_RETURN(question->question, Text(object, "question", origin));
  return absl::OkStatus();
}

absl::StatusOr<Question> ParseLine(const std::string& line, const std::string& origin) {
  ALUDEL_ASSIGN_OR_RETURN(const nlohmann::json object, ParseJson(line, origin, kMaxDepth));
  if (!object.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(origin, " is ", DescribeJson(object), ", want an object"));
  }
  const nlohmann::json* body = FindMember(object, "body");
  const bool batch = body != nullptr && body->is_object() && FindMember(*body, "messages") != nullptr;
  const nlohmann::json& read = batch ? *body : object;
  int forms = FindMember(read, "context") != nullptr || FindMember(read, "question") != nullptr ? 1 : 0;
  for (const char* form : {"messages", "text", "ids"}) forms += FindMember(read, form) != nullptr ? 1 : 0;
  if (forms > 1)
    return Fault(origin, "context and question, messages, text and ids stand beside each other, want one");
  Question question;
  question.origin = origin;
  ALUDEL_ASSIGN_OR_RETURN(const nlohmann::ordered_json ordered, ParseOrdered(line));
  ALUDEL_RETURN_IF_ERROR(ReadQuestion(read, batch ? ordered["body"] : ordered, origin, &question));
  if (const nlohmann::json* answers = FindMember(object, "answers")) {
    ALUDEL_RETURN_IF_ERROR(ReadAnswers(*answers, origin, &question));
  }
  return question;
}

}  // namespace

std::string Question::Message() const {
  if (!text.empty() || !ids.empty()) return text;
  if (!messages.is_null()) return messages.back()["content"].get<std::string>();
  return context + "\n" + question;
}

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

absl::StatusOr<PromptWriter> PromptWriter::Load(const ModelPath& model) {
  PromptWriter writer;
  ALUDEL_ASSIGN_OR_RETURN(writer.tokenizer_, Tokenizer::Load(model.base));
  for (const std::string& directory : {model.adapter, model.base}) {
    if (directory.empty()) continue;
    auto chat_template = ChatTemplate::Load(directory, model.base);
    if (chat_template.ok()) {
      writer.template_ = *std::move(chat_template);
      writer.template_of_adapter_ = directory == model.adapter;
      break;
    }
    if (!absl::IsNotFound(chat_template.status())) return chat_template.status();
  }
  return writer;
}

absl::StatusOr<std::vector<int32_t>> PromptWriter::Render(const Question& question) const {
  if (!question.ids.empty()) {
    for (const int32_t id : question.ids) {
      if (id < tokenizer_->vocab_size()) continue;
      return absl::InvalidArgumentError(
          absl::StrFormat("token %d is none of the model's %d", id, tokenizer_->vocab_size()));
    }
    return question.ids;
  }
  if (!question.text.empty() || (template_ == nullptr && question.messages.is_null())) {
    return tokenizer_->Encode(question.Message(), /*add_special_tokens=*/true);
  }
  if (template_ == nullptr) return absl::InvalidArgumentError("messages want a model with a chat template");
  nlohmann::ordered_json context;
  context["messages"] = question.messages;
  if (question.messages.is_null()) {
    context["messages"].push_back({{"role", "user"}, {"content", question.Message()}});
  }
  if (!question.tools.is_null()) context["tools"] = question.tools;
  context["add_generation_prompt"] = true;
  ALUDEL_ASSIGN_OR_RETURN(const std::string text, template_->Render(context));
  return tokenizer_->Encode(text, /*add_special_tokens=*/false);
}

absl::StatusOr<std::vector<int32_t>> PromptWriter::Write(const Question& question) const {
  absl::StatusOr<std::vector<int32_t>> ids = Render(question);
  if (ids.ok() || question.origin.empty()) return ids;
  return absl::Status(ids.status().code(), absl::StrCat(question.origin, ": ", ids.status().message()));
}

}  // namespace aludel
