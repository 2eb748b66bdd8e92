#include "server/gateway/responses/responses_writer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "runtime/text/constrain/ordered_json.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

ordered_json TextPart(const std::string& text) {
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", ordered_json::array()},
          {"logprobs", ordered_json::array()}};
}

ordered_json Message(const std::string& id, const char* status, ordered_json content) {
  return {{"id", id},
          {"type", "message"},
          {"status", status},
          {"role", "assistant"},
          {"content", std::move(content)}};
}

ordered_json CallItem(const std::string& id, const char* status, const ToolCall& call,
                      const std::string& arguments) {
  return {{"id", id},           {"type", "function_call"}, {"status", status},
          {"call_id", call.id}, {"name", call.name},       {"arguments", arguments}};
}

// One that the length limit cut off has arguments that are no object.
const char* StatusOf(const ToolCall& call) {
  const auto arguments = ParseOrdered(call.arguments);
  return arguments.ok() && arguments->is_object() ? "completed" : "incomplete";
}

bool IsCut(const ChoiceEnd& end) { return end.reason == "length"; }

// Of the answer, and of what the limit cut.
const char* StatusOf(const ChoiceEnd& end) { return IsCut(end) ? "incomplete" : "completed"; }

}  // namespace

ResponsesWriter::ResponsesWriter(CompletionIdentity identity, std::string repeats, OnResponse on_response)
    : identity_(std::move(identity)), repeats_(std::move(repeats)), on_response_(std::move(on_response)) {}

std::string ResponsesWriter::Event(const char* type, ordered_json members) {
  ordered_json data = {{"type", type}, {"sequence_number", events_++}};
  for (auto& [name, value] : members.items()) data[name] = std::move(value);
  return absl::StrCat("event: ", type, "\ndata: ", Dump(data), "\n\n");
}

std::string ResponsesWriter::ResponseEvent(const char* type, absl::string_view response) {
  return absl::StrCat("event: ", type, "\ndata: {\"type\":\"", type, "\",\"sequence_number\":", events_++,
                      ",\"response\":", response, "}\n\n");
}

std::string ResponsesWriter::Response(const char* status, const ordered_json& members) const {
  ordered_json head = {{"id", identity_.id},
                       {"object", "response"},
                       {"created_at", identity_.created},
                       {"status", status},
                       {"background", false},
                       {"error", nullptr},
                       {"incomplete_details", nullptr},
                       {"model", identity_.model},
                       {"output", output_}};
  ordered_json tail = {{"usage", nullptr}};
  for (const auto& [name, value] : members.items()) (head.contains(name) ? head : tail)[name] = value;
  // Three objects become one.
  std::string response = Dump(head);
  response.back() = ',';
  absl::StrAppend(&response, absl::string_view(repeats_).substr(1, repeats_.size() - 2), ",",
                  absl::string_view(Dump(tail)).substr(1));
  return response;
}

std::string ResponsesWriter::NextItemId(const char* prefix) const {
  return absl::StrCat(prefix, absl::StripPrefix(identity_.id, "resp_"),
                      absl::Dec(output_.size(), absl::kZeroPad2));
}

std::string ResponsesWriter::Start(const v1::Started&) {
  const std::string response = Response("in_progress", ordered_json::object());
  std::string events = ResponseEvent("response.created", response);
  return events + ResponseEvent("response.in_progress", response);
}

std::string ResponsesWriter::OpenMessage() {
  message_open_ = true;
  message_id_ = NextItemId("msg_");
  std::string events = Event("response.output_item.added",
                             {{"output_index", output_.size()},
                              {"item", Message(message_id_, "in_progress", ordered_json::array())}});
  return events + Event("response.content_part.added", {{"item_id", message_id_},
                                                        {"output_index", output_.size()},
                                                        {"content_index", 0},
                                                        {"part", TextPart("")}});
}

std::string ResponsesWriter::CloseMessage(const char* status) {
  if (!std::exchange(message_open_, false)) return "";
  const std::string text = std::exchange(text_, "");
  const size_t index = output_.size();
  std::string events = Event("response.output_text.done", {{"item_id", message_id_},
                                                           {"output_index", index},
                                                           {"content_index", 0},
                                                           {"text", text},
                                                           {"logprobs", ordered_json::array()}});
  events += Event(
      "response.content_part.done",
      {{"item_id", message_id_}, {"output_index", index}, {"content_index", 0}, {"part", TextPart(text)}});
  output_.push_back(Message(message_id_, status, ordered_json::array({TextPart(text)})));
  return events + Event("response.output_item.done", {{"output_index", index}, {"item", output_.back()}});
}

std::string ResponsesWriter::Call(const ToolCall& call) {
  const std::string id = NextItemId("fc_");
  const size_t index = output_.size();
  std::string events =
      Event("response.output_item.added",
            {{"output_index", index}, {"item", CallItem(id, "in_progress", call, /*arguments=*/"")}});
  events += Event("response.function_call_arguments.delta",
                  {{"item_id", id}, {"output_index", index}, {"delta", call.arguments}});
  events +=
      Event("response.function_call_arguments.done",
            {{"item_id", id}, {"output_index", index}, {"name", call.name}, {"arguments", call.arguments}});
  output_.push_back(CallItem(id, StatusOf(call), call, call.arguments));
  return events + Event("response.output_item.done", {{"output_index", index}, {"item", output_.back()}});
}

std::string ResponsesWriter::Delta(int, const ChoiceDelta& delta) {
  std::string events;
  if (!delta.text.empty()) {
    if (!message_open_) events = OpenMessage();
    text_ += delta.text;
    kept_bytes_ += delta.text.size();
    events += Event("response.output_text.delta", {{"item_id", message_id_},
                                                   {"output_index", output_.size()},
                                                   {"content_index", 0},
                                                   {"delta", delta.text},
                                                   {"logprobs", ordered_json::array()}});
  }
  for (const ToolCall& call : delta.calls) {
    kept_bytes_ += call.name.size() + call.arguments.size();
    events += CloseMessage("completed");
    events += Call(call);
  }
  return events;
}

std::string ResponsesWriter::End(int, const ChoiceEnd&) { return ""; }

std::string ResponsesWriter::Ended(const ChoiceEnd& end, const TokenUsage& usage,
                                   const CompletionReport& report) {
  ordered_json members = {{"usage",
                           {{"input_tokens", usage.prompt_tokens},
                            {"input_tokens_details", {{"cached_tokens", CachedTokens(report.started)}}},
                            {"output_tokens", usage.completion_tokens},
                            {"output_tokens_details", {{"reasoning_tokens", 0}}},
                            {"total_tokens", usage.prompt_tokens + usage.completion_tokens}}},
                          {"aludel", ReportJson(report)}};
  if (IsCut(end)) members["incomplete_details"] = {{"reason", "max_output_tokens"}};
  std::string response = Response(StatusOf(end), members);
  on_response_(identity_.id, response, output_);
  return response;
}

std::string ResponsesWriter::Complete(int, const ChoiceEnd& end, const TokenUsage& usage,
                                      const CompletionReport& report) {
  std::string events = CloseMessage(StatusOf(end));
  const std::string response = Ended(end, usage, report);
  return events + ResponseEvent(IsCut(end) ? "response.incomplete" : "response.completed", response);
}

std::string ResponsesWriter::Fail(const ApiError& error) {
  return ResponseEvent(
      "response.failed",
      Response(
          "failed",
          {{"error", {{"code", error.code.empty() ? error.type : error.code}, {"message", error.message}}}}));
}

std::string ResponsesWriter::Whole(const std::vector<WholeChoice>& choices, const TokenUsage& usage,
                                   const CompletionReport& report) {
  const WholeChoice& choice = choices[0];
  if (!choice.text.empty()) {
    const char* const status = choice.calls.empty() ? StatusOf(choice.end) : "completed";
    output_.push_back(Message(NextItemId("msg_"), status, ordered_json::array({TextPart(choice.text)})));
  }
  for (const ToolCall& call : choice.calls) {
    output_.push_back(CallItem(NextItemId("fc_"), StatusOf(call), call, call.arguments));
  }
  return Ended(choice.end, usage, report);
}

}  // namespace aludel
