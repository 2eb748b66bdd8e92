#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "aludel/v1/handoff.pb.h"
#include "server/observe/request_metrics.h"
#include "server/observe/trace_context.h"

namespace aludel {

// What identifies a request, from its first line on.
struct RequestIdentity {
  std::string id;      // the client's x-request-id, or ours
  std::string client;  // name of its API key; "" where none is needed
  std::string peer;    // "address:port"
  std::string method;
  std::string path;                         // as it came, without the query, which may hold secrets
  std::string route;                        // its path, or "other": foreign paths are no labels
  TraceContext trace;                       // of the gateway's own operation
  std::array<uint8_t, 8> parent_span = {};  // the client's operation; zeros: it sent none
};

// How a completion ended, for the log line, the trace and the client's account.
struct CompletionOutcome {
  int status = 0;           // HTTP; also of a stream that had already sent 200
  const char* name = "ok";  // "ok", or a gRPC code's name in lower case
  bool refused = false;     // by the gateway itself: no decode server was asked
  std::string error;        // message to the client; "" where it went well
  std::string operation;    // "chat" or "text_completion", as OpenTelemetry names them
  std::string model;        // "" where the request never named one of ours
  std::string completion_id;
  std::vector<std::string> finish_reasons;  // by choice
  bool stream = false;
  bool has_first_token = false;
  std::optional<int64_t> max_tokens;  // what the request says of these
  std::optional<double> temperature;
  int64_t prompts = 0;  // 0 where the request never came to them
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  v1::Started started;         // the decode server's report; empty where no token came
  double ttft_seconds = 0;     // request body read -> first text in the client's socket
  double held_seconds = 0;     // the part of it in which text was held back
  double gateway_seconds = 0;  // the other part outside the decode server
  double seconds = 0;          // request body read -> end
};

using OnCompletionEnd = std::function<void(const CompletionOutcome&)>;

// The name that metrics and logs give to an HTTP status of ours.
const char* OutcomeName(int status);

}  // namespace aludel
