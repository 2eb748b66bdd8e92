#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/text/chat_template/chat_template.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace aludel {

// One line of a question file: {"context": ..., "question": ..., "answers": [...]}, or {"text": ...} for a text
// that is continued, not answered; other members are ignored.
struct Question {
  std::string context;
  std::string question;
  std::vector<std::string> answers;
  std::string text;  // "": a question

  // What a user sends: the text, or "context, newline, question".
  std::string Message() const { return text.empty() ? context + "\n" + question : text; }
};

// Errors name the file and the line. `limit` 0 reads all.
absl::StatusOr<std::vector<Question>> LoadQuestions(const std::string& path, int64_t limit);

// How a model is spoken to: its tokenizer and, where it has one, its chat template.
class PromptWriter {
 public:
  static absl::StatusOr<PromptWriter> Load(const std::string& model_directory);

  // Ids of one user message "context, newline, question" with the generation prompt. A model without template
  // gets the plain text and its tokenizer's special tokens, as every model does where the line is a text.
  absl::StatusOr<std::vector<int32_t>> Write(const Question& question) const;
  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> template_;  // null: none
};

}  // namespace aludel
