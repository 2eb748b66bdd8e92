#include "server/gateway/openai/answer/completion_response.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/gateway/openai/api_error.h"

namespace aludel {

uint32_t CachedTokens(const v1::Started& started) {
  return started.cached_tokens() + started.stored_tokens();
}

namespace {

using nlohmann::ordered_json;

constexpr std::pair<const char*, double (v1::Stages::*)() const> kStages[] = {
    {"queue", &v1::Stages::queue},
    {"prefill", &v1::Stages::prefill},
    {"encode", &v1::Stages::encode},
    {"transfer", &v1::Stages::transfer},
    {"reconstruct", &v1::Stages::reconstruct},
    {"recompute", &v1::Stages::recompute},
    {"first_decode", &v1::Stages::first_decode}};

ordered_json Head(const CompletionIdentity& identity, bool chunk) {
  ordered_json json;
  json["id"] = identity.id;
  json["object"] = !identity.chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
  json["created"] = identity.created;
  json["model"] = identity.model;
  json["system_fingerprint"] = identity.system_fingerprint;
  return json;
}

ordered_json Chunk(const CompletionIdentity& identity, int choice, ordered_json delta, ordered_json logprobs,
                   const ChoiceEnd* end) {
  ordered_json entry;
  entry["index"] = choice;
  if (identity.chat) {
    entry["delta"] = std::move(delta);
  } else {
    entry["text"] = delta.value("content", "");
  }
  entry["logprobs"] = std::move(logprobs);
  entry["finish_reason"] = end == nullptr ? ordered_json(nullptr) : ordered_json(end->reason);
  if (end != nullptr) entry["stop_reason"] = end->stop;
  ordered_json json = Head(identity, /*chunk=*/true);
  json["choices"] = ordered_json::array({std::move(entry)});
  if (identity.include_usage) json["usage"] = nullptr;
  return json;
}

// A chat message's content before its first character.
ordered_json NoText(const CompletionIdentity& identity) {
  return identity.may_call ? ordered_json(nullptr) : ordered_json("");
}

ordered_json Usage(const TokenUsage& usage, const v1::Started& started) {
  ordered_json json = {{"prompt_tokens", usage.prompt_tokens},
                       {"completion_tokens", usage.completion_tokens},
                       {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
                       {"prompt_tokens_details", {{"cached_tokens", CachedTokens(started)}}}};
  if (usage.reasoning_tokens > 0) {
    json["completion_tokens_details"] = {{"reasoning_tokens", usage.reasoning_tokens}};
  }
  return json;
}

// `first_index`: streamed, of the first of them among the choice's calls.
ordered_json Calls(const std::vector<ToolCall>& calls, std::optional<size_t> first_index) {
  ordered_json list = ordered_json::array();
  for (const ToolCall& call : calls) {
    ordered_json entry;
    if (first_index) entry["index"] = *first_index + list.size();
    entry["id"] = call.id;
    entry["type"] = "function";
    entry["function"] = {{"name", call.name}, {"arguments", call.arguments}};
    list.push_back(std::move(entry));
  }
  return list;
}

ordered_json TraceJson(const v1::RequestTrace& trace) {
  const auto known = [](double value) { return value > 0 ? ordered_json(value) : ordered_json(nullptr); };
  ordered_json options = ordered_json::array();
  for (const v1::PlanOption& option : trace.options()) {
    options.push_back({{"plan", option.format().empty() ? "local" : "remote"},
                       {"format", option.format()},
                       {"predicted_ttft", known(option.predicted_ttft())},
                       {"bytes_per_token", known(option.bytes_per_token())}});
  }
  ordered_json frames = ordered_json::array();
  for (const v1::FrameTrace& frame : trace.frames()) {
    frames.push_back({{"first_layer", frame.first_layer()},
                      {"layers", frame.layers()},
                      {"token_begin", frame.token_begin()},
                      {"tokens", frame.tokens()},
                      {"bytes", frame.bytes()},
                      {"encoded_from", known(frame.encoded_from())},
                      {"sent", known(frame.sent())},
                      {"received", frame.received()},
                      {"applied", known(frame.applied())}});
  }
  return {{"reason", trace.reason()},
          {"options", std::move(options)},
          {"frames", std::move(frames)},
          {"frames_left_out", trace.frames_left_out()},
          {"first_token", known(trace.first_token())}};
}

}  // namespace

ordered_json ReportJson(const CompletionReport& report) {
  const v1::Started& started = report.started;
  ordered_json json;
  json["plan"] = started.plan();
  json["format"] = started.format();
  json["payload_bytes"] = started.payload_bytes();
  json["raw_bytes"] = started.raw_bytes();
  json["handed_over_tokens"] = started.handed_over_tokens();
  json["ttft"] = report.ttft_seconds;
  if (started.predicted_ttft() > 0) json["predicted_ttft"] = started.predicted_ttft();
  ordered_json stages;
  stages["gateway"] = report.gateway_seconds();
  stages["held"] = report.held_seconds;
  for (const auto& [name, seconds] : kStages) stages[name] = (started.stages().*seconds)();
  json["stages"] = std::move(stages);
  json["fallback_reason"] =
      started.fallback_reason().empty() ? ordered_json(nullptr) : ordered_json(started.fallback_reason());
  if (report.trace != nullptr) json["trace"] = TraceJson(*report.trace);
  return json;
}

ordered_json RoleChunk(const CompletionIdentity& identity, int choice) {
  ordered_json json =
      Chunk(identity, choice, {{"role", "assistant"}, {"content", NoText(identity)}}, nullptr, nullptr);
  if (identity.return_token_ids && choice == 0) json["prompt_token_ids"] = identity.prompt_ids[0];
  return json;
}

ordered_json PromptChunk(const CompletionIdentity& identity, size_t prompt) {
  const int choice = static_cast<int>(prompt) * identity.choices_per_prompt;
  ordered_json json = Chunk(identity, choice, ordered_json::object(), nullptr, nullptr);
  json["choices"][0]["prompt_token_ids"] = identity.prompt_ids[prompt];
  return json;
}

ordered_json DeltaChunk(const CompletionIdentity& identity, int choice, const ChoiceDelta& delta) {
  ordered_json json = ordered_json::object();
  if (!delta.reasoning.empty()) json["reasoning_content"] = delta.reasoning;
  if (!delta.text.empty()) json["content"] = delta.text;
  if (!delta.calls.empty()) json["tool_calls"] = Calls(delta.calls, delta.first_call);
  ordered_json chunk = Chunk(identity, choice, std::move(json), delta.logprobs, nullptr);
  if (!delta.token_ids.empty()) chunk["choices"][0]["token_ids"] = delta.token_ids;
  return chunk;
}

ordered_json LastChunk(const CompletionIdentity& identity, int choice, const ChoiceEnd& end,
                       const CompletionReport* report) {
  ordered_json json = Chunk(identity, choice, ordered_json::object(), nullptr, &end);
  if (report != nullptr) json["aludel"] = ReportJson(*report);
  return json;
}

ordered_json UsageChunk(const CompletionIdentity& identity, const TokenUsage& usage,
                        const CompletionReport& report) {
  ordered_json json = Head(identity, /*chunk=*/true);
  json["choices"] = ordered_json::array();
  json["usage"] = Usage(usage, report.started);
  return json;
}

std::string WholeBody(const CompletionIdentity& identity, const std::vector<WholeChoice>& choices,
                      const TokenUsage& usage, const CompletionReport& report) {
  // Objects are left open for the member that follows: a choice for its log-probabilities, the body for
  // its choices.
  const auto open = [](const ordered_json& object) {
    std::string text = Dump(object);
    text.pop_back();
    return text;
  };
  ordered_json head = Head(identity, /*chunk=*/false);
  if (identity.return_token_ids && identity.chat) head["prompt_token_ids"] = identity.prompt_ids[0];
  std::string body = open(head);
  if (identity.chat && !choices[0].prompt_logprobs.empty()) {
    absl::StrAppend(&body, ",\"prompt_logprobs\":", choices[0].prompt_logprobs);
  }
  size_t bytes = 4096;
  for (const WholeChoice& choice : choices) {
    bytes += 2 * (choice.reasoning.size() + choice.text.size()) + choice.logprobs.size() +
             choice.prompt_logprobs.size();
  }
  body.reserve(bytes);
  body += ",\"choices\":[";
  for (size_t i = 0; i < choices.size(); ++i) {
    const WholeChoice& choice = choices[i];
    ordered_json entry;
    entry["index"] = i;
    if (identity.chat) {
      ordered_json& message = entry["message"];
      message = {{"role", "assistant"},
                 {"content", choice.text.empty() ? NoText(identity) : ordered_json(choice.text)},
                 {"refusal", nullptr}};
      if (!choice.reasoning.empty()) message["reasoning_content"] = choice.reasoning;
      if (!choice.calls.empty()) message["tool_calls"] = Calls(choice.calls, std::nullopt);
    } else {
      entry["text"] = choice.text;
    }
    entry["finish_reason"] = choice.end.reason;
    entry["stop_reason"] = choice.end.stop;
    if (identity.return_token_ids) {
      if (!identity.chat && i % identity.choices_per_prompt == 0) {
        entry["prompt_token_ids"] = identity.prompt_ids[i / identity.choices_per_prompt];
      }
      entry["token_ids"] = choice.token_ids;
    }
    absl::StrAppend(&body, i == 0 ? "" : ",", open(entry), ",\"logprobs\":");
    choice.logprobs.AppendTo(&body);
    if (!identity.chat && !choice.prompt_logprobs.empty()) {
      absl::StrAppend(&body, ",\"prompt_logprobs\":", choice.prompt_logprobs);
    }
    body += "}";
  }
  absl::StrAppend(&body, "],\"usage\":", Dump(Usage(usage, report.started)),
                  ",\"aludel\":", Dump(ReportJson(report)), "}");
  return body;
}

std::vector<HttpHeader> ReportHeaders(const v1::Started& started) {
  std::string timing;
  for (const auto& [name, seconds] : kStages) {
    absl::StrAppendFormat(&timing, "%s%s;dur=%.3f", timing.empty() ? "" : ", ", name,
                          (started.stages().*seconds)() * 1e3);
  }
  return {{"x-aludel-plan", started.plan()},
          {"x-aludel-format", started.format()},
          {"x-aludel-payload-bytes", absl::StrCat(started.payload_bytes())},
          {"x-aludel-cached-tokens", absl::StrCat(CachedTokens(started))},
          {"Server-Timing", std::move(timing)}};
}

std::string SseEvent(const ordered_json& data) { return absl::StrCat("data: ", Dump(data), "\n\n"); }

}  // namespace aludel
