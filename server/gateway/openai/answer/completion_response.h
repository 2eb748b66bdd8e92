#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "aludel/v1/handoff.pb.h"
#include "nlohmann/json.hpp"
#include "server/gateway/openai/answer/completion_choice.h"
#include "server/http/http_message.h"

namespace aludel {

// What every chunk and body of one answer repeats.
struct CompletionIdentity {
  bool chat = true;
  std::string id;  // "chatcmpl-..." or "cmpl-..."
  int64_t created = 0;
  std::string model;
  std::string system_fingerprint;
  bool include_usage = false;  // streamed: every chunk has a "usage", null but for the last
  bool may_call = false;       // tools: an answer without text has null for content, whole or streamed
  bool return_token_ids = false;
  int64_t prompt_tokens = 0;                     // of all prompts
  std::vector<std::vector<int32_t>> prompt_ids;  // of each prompt, where return_token_ids
  int choices_per_prompt = 1;
};

struct TokenUsage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;  // of all choices
  int64_t reasoning_tokens = 0;   // of them
};

// One choice of an answer that is not streamed.
struct WholeChoice {
  std::string reasoning;
  std::string text;
  std::vector<ToolCall> calls;
  LogprobsText logprobs;
  std::vector<int32_t> token_ids;  // where they were asked for
  std::string prompt_logprobs;     // JSON, of its prompt, where they were asked for
  ChoiceEnd end;
};

// How the answer came about: the decode server's report and the gateway's own clock.
struct CompletionReport {
  v1::Started started;
  const v1::RequestTrace* trace = nullptr;  // where it was asked for; of the exchange
  double ttft_seconds = 0;                  // request body read -> first text in the client's socket
  // What of it passed from the first token to the first text: what may become a tool call or a stop string is
  // held back, and more is generated meanwhile.
  double held_seconds = 0;
  // And what else passed outside the decode server: parsing, rendering, tokenizing, routing, the socket.
  double gateway_seconds() const { return ttft_seconds - held_seconds - started.stages().ttft(); }
};

// Prompt tokens that were computed before this request: in the decode server's prefix cache, or kept by the
// prefill server.
uint32_t CachedTokens(const v1::Started& started);
// The "aludel" object of an answer.
nlohmann::ordered_json ReportJson(const CompletionReport& report);

// Bodies in OpenAI's shape. A chunk is one server-sent event's data.
nlohmann::ordered_json RoleChunk(const CompletionIdentity& identity, int choice);
// The first of a plain completion's prompt where its token ids were asked for.
nlohmann::ordered_json PromptChunk(const CompletionIdentity& identity, size_t prompt);
nlohmann::ordered_json DeltaChunk(const CompletionIdentity& identity, int choice, const ChoiceDelta& delta);
// The end of one choice; `report` comes with the last of them.
nlohmann::ordered_json LastChunk(const CompletionIdentity& identity, int choice, const ChoiceEnd& end,
                                 const CompletionReport* report);
nlohmann::ordered_json UsageChunk(const CompletionIdentity& identity, const TokenUsage& usage,
                                  const CompletionReport& report);
// Serialized, as log-probabilities make it large.
std::string WholeBody(const CompletionIdentity& identity, const std::vector<WholeChoice>& choices,
                      const TokenUsage& usage, const CompletionReport& report);

// x-aludel-plan, -format, -payload-bytes and -cached-tokens (prompt tokens whose cache was
// handed over, or there already, instead of computed), and the stages as Server-Timing, which browsers show.
std::vector<HttpHeader> ReportHeaders(const v1::Started& started);

// One server-sent event. JSON on one line has no line break of its own, so a single data line carries it.
std::string SseEvent(const nlohmann::ordered_json& data);
inline constexpr absl::string_view kSseDone = "data: [DONE]\n\n";

}  // namespace aludel
