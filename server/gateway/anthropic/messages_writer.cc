#include "server/gateway/anthropic/messages_writer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/text/constrain/ordered_json.h"
#include "server/gateway/anthropic/anthropic_error.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

// The event's name is its data's type.
std::string Event(const ordered_json& data) {
  return absl::StrCat("event: ", data["type"].get_ref<const std::string&>(), "\ndata: ", Dump(data), "\n\n");
}

// Tokens of the prompt that were cached already are counted apart from the others.
ordered_json Usage(int64_t prompt_tokens, int64_t cached, int64_t output_tokens) {
  return {{"input_tokens", prompt_tokens - cached},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", cached},
          {"output_tokens", output_tokens}};
}

void SetEnd(const ChoiceEnd& end, ordered_json* json) {
  const bool by_string = end.reason == "stop" && end.stop.is_string();
  (*json)["stop_reason"] = end.reason == "tool_calls" ? "tool_use"
                           : end.reason == "length"   ? "max_tokens"
                           : by_string                ? "stop_sequence"
                                                      : "end_turn";
  (*json)["stop_sequence"] = by_string ? end.stop : ordered_json(nullptr);
}

// The arguments of a call that the length limit cut off are no object.
ordered_json Input(const ToolCall& call) {
  auto input = ParseOrdered(call.arguments);
  return input.ok() && input->is_object() ? *std::move(input) : ordered_json::object();
}

}  // namespace

MessagesWriter::MessagesWriter(CompletionIdentity identity, std::string request_id)
    : identity_(std::move(identity)), request_id_(std::move(request_id)) {}

ordered_json MessagesWriter::Message() const {
  return {{"id", identity_.id},
          {"type", "message"},
          {"role", "assistant"},
          {"model", identity_.model},
          {"content", ordered_json::array()},
          {"stop_reason", nullptr},
          {"stop_sequence", nullptr}};
}

std::string MessagesWriter::Start(const v1::Started& started) {
  ordered_json message = Message();
  message["usage"] = Usage(identity_.prompt_tokens, CachedTokens(started), /*output_tokens=*/0);
  return absl::StrCat(Event({{"type", "message_start"}, {"message", std::move(message)}}),
                      Event({{"type", "ping"}}));
}

std::string MessagesWriter::Delta(int, const ChoiceDelta& delta) {
  std::string events;
  if (!delta.reasoning.empty()) events += Piece("thinking", delta.reasoning);
  if (!delta.text.empty()) events += Piece("text", delta.text);
  for (const ToolCall& call : delta.calls) {
    events += CloseBlock();  // counts its block before the call's
    events += ToolUse(call);
  }
  return events;
}

std::string MessagesWriter::Piece(const char* type, const std::string& text) {
  std::string events;
  if (open_ != type) {
    events = CloseBlock();
    open_ = type;
    ordered_json block = {{"type", type}, {type, ""}};
    if (open_ == "thinking") block["signature"] = "";
    events +=
        Event({{"type", "content_block_start"}, {"index", blocks_}, {"content_block", std::move(block)}});
  }
  return events + Event({{"type", "content_block_delta"},
                         {"index", blocks_},
                         {"delta", {{"type", absl::StrCat(type, "_delta")}, {type, text}}}});
}

std::string MessagesWriter::CloseBlock() {
  if (std::exchange(open_, "").empty()) return "";
  return Event({{"type", "content_block_stop"}, {"index", blocks_++}});
}

std::string MessagesWriter::ToolUse(const ToolCall& call) {
  const int index = blocks_++;
  return absl::StrCat(Event({{"type", "content_block_start"},
                             {"index", index},
                             {"content_block",
                              {{"type", "tool_use"},
                               {"id", call.id},
                               {"name", call.name},
                               {"input", ordered_json::object()}}}}),
                      Event({{"type", "content_block_delta"},
                             {"index", index},
                             {"delta", {{"type", "input_json_delta"}, {"partial_json", call.arguments}}}}),
                      Event({{"type", "content_block_stop"}, {"index", index}}));
}

std::string MessagesWriter::End(int, const ChoiceEnd&) { return ""; }

std::string MessagesWriter::Complete(int, const ChoiceEnd& end, const TokenUsage& usage,
                                     const CompletionReport& report) {
  ordered_json delta;
  SetEnd(end, &delta);
  return absl::StrCat(
      CloseBlock(),
      Event({{"type", "message_delta"},
             {"delta", std::move(delta)},
             {"usage", Usage(usage.prompt_tokens, CachedTokens(report.started), usage.completion_tokens)},
             {"aludel", ReportJson(report)}}),
      Event({{"type", "message_stop"}}));
}

std::string MessagesWriter::Fail(const ApiError& error) {
  return Event(AnthropicErrorJson(error.status, error.message, request_id_));
}

std::string MessagesWriter::Whole(const std::vector<WholeChoice>& choices, const TokenUsage& usage,
                                  const CompletionReport& report) {
  const WholeChoice& choice = choices[0];
  ordered_json message = Message();
  ordered_json& content = message["content"];
  if (!choice.reasoning.empty()) {
    content.push_back({{"type", "thinking"}, {"thinking", choice.reasoning}, {"signature", ""}});
  }
  if (!choice.text.empty()) content.push_back({{"type", "text"}, {"text", choice.text}});
  for (const ToolCall& call : choice.calls) {
    content.push_back({{"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", Input(call)}});
  }
  SetEnd(choice.end, &message);
  message["usage"] = Usage(usage.prompt_tokens, CachedTokens(report.started), usage.completion_tokens);
  message["aludel"] = ReportJson(report);
  return Dump(message);
}

}  // namespace aludel
