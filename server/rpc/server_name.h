#pragma once

#include <string>
#include <utility>

namespace aludel {

// Where one server is, which several names may stand for.
struct ServerName {
  std::string target;    // host:port, or a gRPC target
  std::string tls_name;  // that its certificate must have; "": the target's host

  // A target as it stands.
  ServerName(std::string given) : target(std::move(given)) {}  // NOLINT: a name is a server
  ServerName(std::string given, std::string name) : target(std::move(given)), tls_name(std::move(name)) {}

  friend auto operator<=>(const ServerName&, const ServerName&) = default;
};

}  // namespace aludel
