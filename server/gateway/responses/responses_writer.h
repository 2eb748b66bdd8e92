#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "server/gateway/openai/dialect.h"

namespace aludel {

// Writes a response object of OpenAI's newer API. Streamed: response.created and response.in_progress; for each item of
// the output, thoughts, a message or a call, response.output_item.added, the events of its parts, and
// response.output_item.done; then response.completed, .incomplete or .failed with the whole object. Events are numbered. One choice.
class ResponsesWriter final : public AnswerWriter {
 public:
  // Told once of an answer that has ended, with its id, the response object and its output items.
  using OnResponse =
      std::function<void(const std::string& id, std::string response, const nlohmann::ordered_json& output)>;

  // `repeats`: what the object says of its request (ResponsesRequest).
  ResponsesWriter(CompletionIdentity identity, std::string repeats, OnResponse on_response);

  std::string Start(const v1::Started& started) override;
  std::string StartPrompt(size_t /*prompt*/) override { return ""; }
  std::string Delta(int choice, const ChoiceDelta& delta) override;
  std::string End(int choice, const ChoiceEnd& end) override;
  std::string Complete(int last_choice, const ChoiceEnd& end, const TokenUsage& usage,
                       const CompletionReport& report) override;
  std::string Fail(const ApiError& error) override;
  std::string Whole(const std::vector<WholeChoice>& choices, const TokenUsage& usage,
                    const CompletionReport& report) override;
  size_t kept_bytes() const override { return kept_bytes_; }

 private:
  std::string Event(const char* type, nlohmann::ordered_json members);
  // Of one that carries the response object.
  std::string ResponseEvent(const char* type, absl::string_view response);
  // The response object with the output so far; `members` take the place of those that it has, or stand at its end.
  std::string Response(const char* status, const nlohmann::ordered_json& members) const;
  // With the output, and told to on_response_.
  std::string Ended(const ChoiceEnd& end, const TokenUsage& usage, const CompletionReport& report);
  std::string NextItemId(const char* prefix) const;
  // Items whose text comes in pieces, one at a time; the next one closes it.
  enum class Open { kNothing, kReasoning, kMessage };
  static const char* PrefixOf(Open kind);
  static nlohmann::ordered_json PartOf(Open kind, const std::string& text);
  static nlohmann::ordered_json ItemOf(Open kind, const std::string& id, const char* status,
                                       nlohmann::ordered_json content);
  nlohmann::ordered_json Place() const;
  std::string OpenItem(Open kind);
  std::string AddText(Open kind, const std::string& text);
  std::string CloseItem(const char* status);
  std::string Call(const ToolCall& call);

  const CompletionIdentity identity_;
  const std::string repeats_;
  const OnResponse on_response_;
  int64_t events_ = 0;
  nlohmann::ordered_json output_ = nlohmann::ordered_json::array();  // items that are whole
  Open open_ = Open::kNothing;
  std::string item_id_;  // of the open item
  std::string text_;     // of it
  size_t kept_bytes_ = 0;
};

}  // namespace aludel
