#include "server/gateway/completion_response.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/gateway/api_error.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

constexpr std::pair<const char*, double (v1::Stages::*)() const> kStages[] = {
    {"queue", &v1::Stages::queue},
    {"prefill", &v1::Stages::prefill},
    {"encode", &v1::Stages::encode},
    {"transfer", &v1::Stages::transfer},
    {"reconstruct", &v1::Stages::reconstruct},
    {"native", &v1::Stages::native},
    {"first_decode", &v1::Stages::first_decode}};

ordered_json Head(const CompletionIdentity& identity, bool chunk) {
  ordered_json json;
  json["id"] = identity.id;
  json["object"] = !identity.chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
  json["created"] = identity.created;
  json["model"] = identity.model;
  return json;
}

ordered_json Chunk(const CompletionIdentity& identity, ordered_json delta, const char* finish_reason) {
  ordered_json choice;
  choice["index"] = 0;
  if (identity.chat) {
    choice["delta"] = std::move(delta);
  } else {
    choice["text"] = delta.value("content", "");
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = finish_reason == nullptr ? ordered_json(nullptr) : ordered_json(finish_reason);
  ordered_json json = Head(identity, /*chunk=*/true);
  json["choices"] = ordered_json::array({std::move(choice)});
  return json;
}

ordered_json Usage(const v1::Finished& finished) {
  return {{"prompt_tokens", finished.prompt_tokens()},
          {"completion_tokens", finished.completion_tokens()},
          {"total_tokens", finished.prompt_tokens() + finished.completion_tokens()}};
}

ordered_json Report(const CompletionReport& report) {
  const v1::Started& started = report.started;
  ordered_json json;
  json["plan"] = started.plan();
  json["format"] = started.format();
  json["payload_bytes"] = started.payload_bytes();
  json["raw_bytes"] = started.raw_bytes();
  json["handed_over_tokens"] = started.handed_over_tokens();
  json["ttft"] = report.ttft_seconds;
  ordered_json stages;
  stages["gateway"] = report.gateway_seconds();
  for (const auto& [name, seconds] : kStages) stages[name] = (started.stages().*seconds)();
  json["stages"] = std::move(stages);
  json["fallback_reason"] =
      started.fallback_reason().empty() ? ordered_json(nullptr) : ordered_json(started.fallback_reason());
  return json;
}

}  // namespace

ordered_json RoleChunk(const CompletionIdentity& identity) {
  return Chunk(identity, {{"role", "assistant"}, {"content", ""}}, nullptr);
}

ordered_json TextChunk(const CompletionIdentity& identity, absl::string_view text) {
  return Chunk(identity, {{"content", std::string(text)}}, nullptr);
}

ordered_json LastChunk(const CompletionIdentity& identity, const v1::Finished& finished,
                       const CompletionReport& report) {
  ordered_json json = Chunk(identity, ordered_json::object(), finished.reason().c_str());
  json["aludel"] = Report(report);
  return json;
}

ordered_json UsageChunk(const CompletionIdentity& identity, const v1::Finished& finished) {
  ordered_json json = Head(identity, /*chunk=*/true);
  json["choices"] = ordered_json::array();
  json["usage"] = Usage(finished);
  return json;
}

ordered_json WholeBody(const CompletionIdentity& identity, absl::string_view text,
                       const v1::Finished& finished, const CompletionReport& report) {
  ordered_json choice;
  choice["index"] = 0;
  if (identity.chat) {
    choice["message"] = {{"role", "assistant"}, {"content", std::string(text)}, {"refusal", nullptr}};
  } else {
    choice["text"] = std::string(text);
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = finished.reason();
  ordered_json json = Head(identity, /*chunk=*/false);
  json["choices"] = ordered_json::array({std::move(choice)});
  json["usage"] = Usage(finished);
  json["aludel"] = Report(report);
  return json;
}

std::vector<HttpHeader> ReportHeaders(absl::string_view request_id, const v1::Started& started) {
  std::string timing;
  for (const auto& [name, seconds] : kStages) {
    absl::StrAppendFormat(&timing, "%s%s;dur=%.3f", timing.empty() ? "" : ", ", name,
                          (started.stages().*seconds)() * 1e3);
  }
  return {{"x-request-id", std::string(request_id)},
          {"x-aludel-plan", started.plan()},
          {"x-aludel-format", started.format()},
          {"x-aludel-payload-bytes", absl::StrCat(started.payload_bytes())},
          {"Server-Timing", std::move(timing)}};
}

std::string SseEvent(const ordered_json& data) { return absl::StrCat("data: ", Dump(data), "\n\n"); }

}  // namespace aludel
