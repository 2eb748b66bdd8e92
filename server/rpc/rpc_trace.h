#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "grpcpp/server_context.h"
#include "server/observe/trace_context.h"

namespace aludel {

// The caller's place in its trace, from the call's metadata; nothing where it sent none.
inline std::optional<TraceContext> CallerTrace(const grpc::ServerContextBase& call) {
  const auto it = call.client_metadata().find(kTraceparent);
  if (it == call.client_metadata().end()) return std::nullopt;
  return TraceContext::Parse(absl::string_view(it->second.data(), it->second.size()));
}

}  // namespace aludel
