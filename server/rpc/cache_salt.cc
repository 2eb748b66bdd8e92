#include "server/rpc/cache_salt.h"

#include <openssl/sha.h>

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

constexpr size_t kHalf = 16;

// 16 bytes.
std::string HeadOfHash(const std::string& text) {
  std::string hash(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const uint8_t*>(text.data()), text.size(), reinterpret_cast<uint8_t*>(hash.data()));
  return hash.substr(0, kHalf);
}

}  // namespace

std::string MakeCacheSalt(absl::string_view key_name, absl::string_view request_salt) {
  if (key_name.empty() && request_salt.empty()) return "";
  const std::string tenant =
      key_name.empty() ? std::string(kHalf, '\0') : HeadOfHash(absl::StrCat("aludel tenant 1:", key_name));
  return tenant + HeadOfHash(absl::StrCat("aludel cache salt 2:", key_name.size(), ":", key_name, ":",
                                          request_salt.size(), ":", request_salt));
}

}  // namespace aludel
