#pragma once

#include <string>

#include "absl/strings/strip.h"
#include "transport/transport.h"
#include "transport/transport_options.h"

namespace aludel {

// Options of one side of a test between processes. `kind` is "tcp", "tls" (TCP with the certificate of the
// folder `certificates`), or "ucx:" and UCX transports.
inline TransportOptions OptionsOf(absl::string_view kind, const std::string& certificates) {
  TransportOptions options;
  if (absl::ConsumePrefix(&kind, "ucx:")) {
    options.kind = "ucx";
    options.ucx_transports = std::string(kind);
    options.ucx_devices = "lo";
  } else if (kind == "tls") {
    options.tls = {.certificate_file = certificates + "/peer.crt",
                   .key_file = certificates + "/peer.key",
                   .ca_file = certificates + "/ca.crt"};
  }
  return options;
}

}  // namespace aludel
