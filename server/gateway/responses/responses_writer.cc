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

ordered_json ThoughtPart(const std::string& text) { return {{"type", "reasoning_text"}, {"text", text}}; }

ordered_json Reasoning(const std::string& id, const char* status, ordered_json content) {
  return {{"id", id},
          {"type", "reasoning"},
          {"status", status},
          {"summary", ordered_json::array()},
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

const char* ResponsesWriter::PrefixOf(Open kind) { return kind == Open::kMessage ? "msg_" : "rs_"; }

ordered_json ResponsesWriter::PartOf(Open kind, const std::string& text) {
  return kind == Open::kMessage ? TextPart(text) : ThoughtPart(text);
}

ordered_json ResponsesWriter::ItemOf(Open kind, const std::string& id, const char* status,
                                     ordered_json content) {
  return kind == Open::kMessage ? Message(id, status, std::move(content))
                                : Reasoning(id, status, std::move(content));
}

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

ordered_json ResponsesWriter::Place() const {
  return {{"item_id", item_id_}, {"output_index", output_.size()}, {"content_index", 0}};
}

std::string ResponsesWriter::OpenItem(Open kind) {
  std::string events = CloseItem("completed");
  open_ = kind;
  item_id_ = NextItemId(PrefixOf(kind));
  const ordered_json empty = ordered_json::array();
  events += Event("response.output_item.added",
                  {{"output_index", output_.size()}, {"item", ItemOf(kind, item_id_, "in_progress", empty)}});
  ordered_json added = Place();
  added["part"] = PartOf(kind, "");
  return events + Event("response.content_part.added", std::move(added));
}

std::string ResponsesWriter::AddText(Open kind, const std::string& text) {
  std::string events;
  if (open_ != kind) events = OpenItem(kind);
  text_ += text;
  kept_bytes_ += text.size();
  ordered_json delta = Place();
  delta["delta"] = text;
  if (kind == Open::kMessage) delta["logprobs"] = ordered_json::array();
  return events +
         Event(kind == Open::kMessage ? "response.output_text.delta" : "response.reasoning_text.delta",
               std::move(delta));
}

std::string ResponsesWriter::CloseItem(const char* status) {
  const Open kind = std::exchange(open_, Open::kNothing);
  if (kind == Open::kNothing) return "";
  const std::string text = std::exchange(text_, "");
  ordered_json done = Place();
  done["text"] = text;
  if (kind == Open::kMessage) done["logprobs"] = ordered_json::array();
  std::string events = Event(
      kind == Open::kMessage ? "response.output_text.done" : "response.reasoning_text.done", std::move(done));
  ordered_json part = Place();
  part["part"] = PartOf(kind, text);
  events += Event("response.content_part.done", std::move(part));
  const size_t index = output_.size();
  output_.push_back(ItemOf(kind, item_id_, status, ordered_json::array({PartOf(kind, text)})));
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
  if (!delta.reasoning.empty()) events += AddText(Open::kReasoning, delta.reasoning);
  if (!delta.text.empty()) events += AddText(Open::kMessage, delta.text);
  for (const ToolCall& call : delta.calls) {
    kept_bytes_ += call.name.size() + call.arguments.size();
    events += CloseItem("completed");
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
                            {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
                            {"total_tokens", usage.prompt_tokens + usage.completion_tokens}}},
                          {"aludel", ReportJson(report)}};
  if (IsCut(end)) members["incomplete_details"] = {{"reason", "max_output_tokens"}};
  std::string response = Response(StatusOf(end), members);
  on_response_(identity_.id, response, output_);
  return response;
}

std::string ResponsesWriter::Complete(int, const ChoiceEnd& end, const TokenUsage& usage,
                                      const CompletionReport& report) {
  std::string events = CloseItem(StatusOf(end));
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
  if (!choice.reasoning.empty()) {
    const bool last = choice.text.empty() && choice.calls.empty();
    const char* const status = last ? StatusOf(choice.end) : "completed";
    output_.push_back(
        Reasoning(NextItemId("rs_"), status, ordered_json::array({ThoughtPart(choice.reasoning)})));
  }
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
