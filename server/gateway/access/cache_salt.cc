#include "server/gateway/access/cache_salt.h"

#include <openssl/sha.h>

#include "absl/strings/str_cat.h"

namespace aludel {

std::string MakeCacheSalt(absl::string_view key_name, absl::string_view request_salt) {
  if (key_name.empty() && request_salt.empty()) return "";
  const std::string text = absl::StrCat("aludel cache salt 1:", key_name.size(), ":", key_name, ":",
                                        request_salt.size(), ":", request_salt);
  std::string salt(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const uint8_t*>(text.data()), text.size(), reinterpret_cast<uint8_t*>(salt.data()));
  return salt;
}

}  // namespace aludel
