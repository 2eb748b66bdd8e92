// The bytes of a connection, cut where the first byte says: every request on it through parser and request
// path (origin, trace, body). Cutting must not change what is understood.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "server/gateway/access/cors.h"
#include "server/gateway/openai/completion_request.h"
#include "server/http/http_parser.h"
#include "server/observe/trace_context.h"

namespace aludel {
namespace {

struct Outcome {
  std::vector<HttpRequest> requests;
  int error_status = 0;
};

Outcome Parse(absl::string_view input, size_t piece) {
  const HttpLimits limits = {.max_header_bytes = 4096, .max_body_bytes = 4096};
  Outcome outcome;
  std::string unread;
  auto parser = std::make_unique<HttpParser>(limits);
  while (!input.empty()) {
    const size_t size = std::min(piece, input.size());
    unread.append(input.data(), size);
    input.remove_prefix(size);
    while (!unread.empty()) {
      size_t consumed = 0;
      const HttpParser::State state = parser->Feed(unread, &consumed);
      if (consumed > unread.size()) std::abort();
      unread.erase(0, consumed);
      if (state == HttpParser::State::kError || state == HttpParser::State::kHeaderDone) parser->Head();
      if (state == HttpParser::State::kError) {
        outcome.error_status = parser->error().status;
        return outcome;
      }
      if (state == HttpParser::State::kDone) {
        outcome.requests.push_back(parser->Release());
        parser = std::make_unique<HttpParser>(limits);
      } else if (state == HttpParser::State::kNeedMore) {
        break;
      }
    }
  }
  return outcome;
}

}  // namespace
}  // namespace aludel

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace aludel;
  if (size < 1) return 0;
  const absl::string_view input(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  const Outcome whole = Parse(input, std::max<size_t>(1, input.size()));
  const Outcome cut = Parse(input, 1 + bytes[0]);
  if (whole.requests.size() != cut.requests.size()) std::abort();
  static const Cors* const kCors = new Cors({"https://a.example"});
  for (size_t i = 0; i < whole.requests.size(); ++i) {
    const HttpRequest& request = whole.requests[i];
    if (request.body != cut.requests[i].body || request.path != cut.requests[i].path) std::abort();
    QueryParameter(request.query, "model");
    const std::string head = FormatResponseHead(11, 200, kCors->HeadersFor(request));
    if (head.find("\r\n\r\n") != head.size() - 4) std::abort();
    if (const auto trace = TraceContext::Parse(request.Header(kTraceparent))) {
      if (!TraceContext::Parse(trace->ToTraceparent())) std::abort();
    }
    CompletionRequest parsed;
    if (request.path == "/v1/completions") {
      ParseCompletionRequest(request.body, &parsed);
    } else {
      ParseChatRequest(request.body, &parsed);
    }
  }
  return 0;
}
