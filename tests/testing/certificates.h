#pragma once

#include <string>

namespace aludel {

// Authorities and certificates in files of a folder of the test, made by the openssl command.
class Certificates {
 public:
  explicit Certificates(const std::string& folder);

  std::string Path(const std::string& file) const;
  void MakeAuthority(const std::string& name);
  // Signed by `authority`, with these entries in its subjectAltName. Files are replaced as a mounted secret's
  // are: at once.
  void MakeCertificate(const std::string& name, const std::string& authority,
                       const std::string& names = "IP:127.0.0.1");
  // Settings of a server: the certificate `name`, peers of the authority "ca".
  std::string Settings(const std::string& name) const;

 private:
  const std::string folder_;
};

// The whole file.
std::string ReadFile(const std::string& path);

}  // namespace aludel
