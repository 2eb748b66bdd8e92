#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "transport/transport.h"
#include "transport/transport_options.h"

namespace aludel {

// `handler` must outlive the transport.
absl::StatusOr<std::unique_ptr<Transport>> OpenTransport(const TransportOptions& options,
                                                         MessageHandler* handler);

}  // namespace aludel
