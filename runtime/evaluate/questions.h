#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/model/model_path.h"
#include "runtime/text/chat_template/chat_template.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace aludel {

// One line of a question file, in one of these forms; other members are ignored:
//
//   {"context": ..., "question": ..., "answers": [...]}   what a user sends is context, newline, question
//   {"messages": [{"role": ..., "content": ...}, ...]}    a conversation, "tools" beside it; or a line of OpenAI's batch
//                                                         files, which has these in its "body". A last message of
//                                                         the assistant is taken for the answer that was wanted
//   {"text": ...}                                         a text that is continued, not answered
//   {"ids": [...]}                                        a prompt's tokens as they are, of the models' own tokenizer: what
//                                                         the gateway's `capture` writes
struct Question {
  std::string context;
  std::string question;
  std::vector<std::string> answers;
  std::string text;
  nlohmann::ordered_json messages;  // an array with strings as contents; null: none
  nlohmann::ordered_json tools;     // an array; null: none
  std::vector<int32_t> ids;
  std::string origin;  // "FILE:LINE"

  // Whether a model answers it rather than continues it.
  bool is_chat() const { return text.empty() && ids.empty(); }
  // What people read of it: the text, or "context, newline, question", or the last message; "" of ids.
  std::string Message() const;
};

// Errors name the file and the line. `limit` 0 reads all.
absl::StatusOr<std::vector<Question>> LoadQuestions(const std::string& path, int64_t limit);

// How a model is spoken to: its tokenizer and, where it has one, its chat template. With an adapter the tokenizer is the
// base's, and the template is the adapter's where its directory has one.
class PromptWriter {
 public:
  static absl::StatusOr<PromptWriter> Load(const ModelPath& model);

  // Ids of a question or conversation with the generation prompt. A model without template gets the plain text of a
  // question and its tokenizer's special tokens, as every model does where the line is a text; conversations
  // are refused then. Errors name the line.
  absl::StatusOr<std::vector<int32_t>> Write(const Question& question) const;
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  // Whether the adapter brought the template: a gateway whose `models` names the base's directory has another one.
  bool has_template_of_adapter() const { return template_of_adapter_; }

 private:
  absl::StatusOr<std::vector<int32_t>> Render(const Question& question) const;

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> template_;  // null: none
  bool template_of_adapter_ = false;
};

}  // namespace aludel
