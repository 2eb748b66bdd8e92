#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "aludel/v1/handoff.pb.h"
#include "nlohmann/json.hpp"
#include "server/gateway/http_message.h"

namespace aludel {

// What every chunk and body of one answer repeats.
struct CompletionIdentity {
  bool chat = true;
  std::string id;  // "chatcmpl-..." or "cmpl-..."
  int64_t created = 0;
  std::string model;
};

// How the answer came about: the decode server's report and the gateway's own clock.
struct CompletionReport {
  v1::Started started;
  double ttft_seconds = 0;  // request body read -> first text in the client's socket
  // What of it passed outside the decode server: parsing, rendering, tokenising, routing, the socket.
  double gateway_seconds() const { return ttft_seconds - started.stages().ttft(); }
};

// Bodies in OpenAI's shape. A chunk is one server-sent event's data.
nlohmann::ordered_json RoleChunk(const CompletionIdentity& identity);
nlohmann::ordered_json TextChunk(const CompletionIdentity& identity, absl::string_view text);
nlohmann::ordered_json LastChunk(const CompletionIdentity& identity, const v1::Finished& finished,
                                 const CompletionReport& report);
nlohmann::ordered_json UsageChunk(const CompletionIdentity& identity, const v1::Finished& finished);
nlohmann::ordered_json WholeBody(const CompletionIdentity& identity, absl::string_view text,
                                 const v1::Finished& finished, const CompletionReport& report);

// x-request-id, x-aludel-plan, -format and -payload-bytes, and the stages as Server-Timing, which browsers
// show.
std::vector<HttpHeader> ReportHeaders(absl::string_view request_id, const v1::Started& started);

// One server-sent event. JSON on one line has no line break of its own, so a single data line carries it.
std::string SseEvent(const nlohmann::ordered_json& data);
inline constexpr absl::string_view kSseDone = "data: [DONE]\n\n";

}  // namespace aludel
