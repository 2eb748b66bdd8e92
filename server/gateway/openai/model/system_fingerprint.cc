#include "server/gateway/openai/model/system_fingerprint.h"

#include <openssl/sha.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace aludel {

std::string SystemFingerprint(absl::string_view numerics) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const uint8_t*>(numerics.data()), numerics.size(),
         reinterpret_cast<uint8_t*>(digest.data()));
  return absl::StrCat("fp_", absl::BytesToHexString(digest.substr(0, 6)));
}

}  // namespace aludel
