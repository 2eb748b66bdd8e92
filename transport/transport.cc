#include "transport/transport.h"

#include "absl/strings/str_cat.h"

namespace aludel {

absl::StatusOr<std::unique_ptr<Transport>> OpenTransport(const TransportOptions& options, MessageHandler*) {
  return absl::InvalidArgumentError(absl::StrCat("transport kind \"", options.kind, "\" is not known"));
}

}  // namespace aludel
