#include "server/store/control/operator_token.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/strip.h"

namespace aludel {

absl::StatusOr<TokenHash> ParseSha256(absl::string_view hex) {
  TokenHash hash;
  const bool digits = std::all_of(hex.begin(), hex.end(), [](unsigned char c) { return std::isxdigit(c); });
  if (hex.size() != 2 * hash.size() || !digits)
    return absl::InvalidArgumentError("want 64 hexadecimal digits");
  const std::string bytes = absl::HexStringToBytes(hex);
  std::copy(bytes.begin(), bytes.end(), hash.begin());
  return hash;
}

bool HasToken(absl::string_view authorization, const TokenHash& token_sha256) {
  TokenHash hash = {};
  const bool bearer = absl::ConsumePrefix(&authorization, "Bearer ");
  SHA256(reinterpret_cast<const uint8_t*>(authorization.data()), authorization.size(), hash.data());
  return CRYPTO_memcmp(hash.data(), token_sha256.data(), hash.size()) == 0 && bearer;
}

}  // namespace aludel
