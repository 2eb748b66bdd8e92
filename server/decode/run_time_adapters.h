#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/decode/decode_context.h"

namespace aludel {

// Makes an adapter known while the server runs, from a directory below adapter_root, links resolved; errors are those of
// LoadAdapter (handoff.proto).
// `cache_of`: ReadCacheOf's; "": its own.
absl::Status AddAdapter(const DecodeContext& context, const std::string& name, const std::string& directory,
                        const std::string& cache_of = "");

// Forgets an adapter, whether it came so or from the configuration.
absl::Status RemoveAdapter(const DecodeContext& context, const std::string& name);

}  // namespace aludel
