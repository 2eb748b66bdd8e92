#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/http/tls_context.h"

namespace aludel {

// A self-signed certificate for `name`, and for `alternatives` ("DNS:a,IP:b") where there are some.
inline TlsFiles MakeCertificate(const std::string& name, const std::string& alternatives = "") {
  const std::string stem = absl::StrCat(::testing::TempDir(), name);
  const TlsFiles files = {.certificate = stem + ".crt", .key = stem + ".key"};
  const std::string extension = alternatives.empty() ? "" : " -addext subjectAltName=" + alternatives;
  const std::string command = absl::StrCat(
      "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=", name,
      extension, " -keyout ", files.key, " -out ", files.certificate, " 2>/dev/null");
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  return files;
}

}  // namespace aludel
