#include "server/decode/load/call_hints.h"

#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "server/rpc/load_metadata.h"

namespace aludel {
namespace {

absl::string_view Find(const grpc::CallbackServerContext& call, const char* key) {
  const auto found = call.client_metadata().find(key);
  if (found == call.client_metadata().end()) return {};
  return {found->second.data(), found->second.size()};
}

}  // namespace

v1::PromptPrefixes PrefixesOf(const grpc::CallbackServerContext& call) {
  const absl::string_view bytes = Find(call, kPrefixesKey);
  v1::PromptPrefixes prefixes;
  if (!prefixes.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) prefixes.Clear();
  return prefixes;
}

bool ExchangeHints(grpc::CallbackServerContext* call, LoadReporter* reporter,
                   EventStream<v1::GenerateEvent>* stream) {
  stream->ReportWith(kLoadReportKey, [reporter] { return reporter->Hint(); });
  uint32_t limit_ms = 0;
  if (absl::SimpleAtoi(Find(*call, kWaitLimitKey), &limit_ms)) {
    const double wait = reporter->WaitingSeconds();
    if (wait > limit_ms / 1e3) {
      stream->End(
          {grpc::StatusCode::RESOURCE_EXHAUSTED,
           absl::StrFormat("prompts wait %.3f s here, and this one may wait %.3f s", wait, limit_ms / 1e3),
           kTurnedAway});
      return false;
    }
  }
  return true;
}

}  // namespace aludel
