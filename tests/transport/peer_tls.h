#pragma once

#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/certificates.h"
#include "transport/transport.h"
#include "transport/transport_options.h"

namespace aludel {

// The settings of a TCP transport with the certificate `name`.
inline TransportTls TlsOf(const Certificates& certificates, const std::string& name) {
  return {.certificate_file = certificates.Path(name + ".crt"),
          .key_file = certificates.Path(name + ".key"),
          .ca_file = certificates.Path("ca.crt"),
          .reload_interval = absl::Milliseconds(50)};
}

// Settings under which the transports of one test know each other. Made once in a process.
inline TransportTls PeerTls() {
  static const Certificates* const kCertificates = [] {
    auto* certificates = new Certificates(absl::StrCat("transport_test_", getpid()));
    certificates->MakeAuthority("ca");
    certificates->MakeCertificate("peer", "ca");
    return certificates;
  }();
  return TlsOf(*kCertificates, "peer");
}

}  // namespace aludel
