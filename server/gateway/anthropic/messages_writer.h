#pragma once

#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "server/gateway/openai/dialect.h"

namespace aludel {

// Writes a message of Anthropic's API. Streamed: message_start and ping; then for each block of thinking, text or tool use
// content_block_start, content_block_delta and content_block_stop; then message_delta with the reason of the end and
// the usage, and message_stop. One choice.
class MessagesWriter final : public AnswerWriter {
 public:
  MessagesWriter(CompletionIdentity identity, std::string request_id);

  std::string Start(const v1::Started& started) override;
  std::string StartPrompt(size_t /*prompt*/) override { return ""; }
  std::string Delta(int choice, const ChoiceDelta& delta) override;
  std::string End(int choice, const ChoiceEnd& end) override;
  std::string Complete(int last_choice, const ChoiceEnd& end, const TokenUsage& usage,
                       const CompletionReport& report) override;
  std::string Fail(const ApiError& error) override;
  std::string Whole(const std::vector<WholeChoice>& choices, const TokenUsage& usage,
                    const CompletionReport& report) override;
  size_t kept_bytes() const override { return 0; }

 private:
  nlohmann::ordered_json Message() const;
  // Adds to a block of that type, "text" or "thinking", which begins where another one is open or none.
  std::string Piece(const char* type, const std::string& text);
  // Ends the block that is open, if one is.
  std::string CloseBlock();
  // A whole block of its own.
  std::string ToolUse(const ToolCall& call);

  const CompletionIdentity identity_;
  const std::string request_id_;
  int blocks_ = 0;    // that have ended
  std::string open_;  // the type of the block that is open; "": none is
};

}  // namespace aludel
