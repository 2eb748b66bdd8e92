#include "server/handoff/frame_cipher.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace aludel {
namespace {

struct FreeContext {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};
using Context = std::unique_ptr<EVP_CIPHER_CTX, FreeContext>;

using Nonce = std::array<uint8_t, 12>;

Nonce NonceOf(uint32_t sequence) {
  Nonce nonce = {};
  for (int i = 0; i < 4; ++i) nonce[i] = static_cast<uint8_t>(sequence >> (8 * i));
  return nonce;
}

}  // namespace

FrameCipher::~FrameCipher() { OPENSSL_cleanse(key_.data(), key_.size()); }

absl::StatusOr<std::unique_ptr<FrameCipher>> FrameCipher::FromTicket(const std::string& key) {
  if (key.empty()) return nullptr;
  if (key.size() != kKeyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("ticket.frame_key: found ", key.size(), " bytes, want ", kKeyBytes, " or none"));
  }
  Key bytes;
  std::copy(key.begin(), key.end(), bytes.begin());
  return std::make_unique<FrameCipher>(bytes);
}

// OpenSSL fails in these calls only where it cannot allocate, or we pass nonsense; but for the last step
// of Open.
void FrameCipher::Seal(uint32_t sequence, absl::Span<const uint8_t> associated,
                       absl::Span<uint8_t> frame) const {
  ALUDEL_CHECK(frame.size() >= kTagBytes);
  const Nonce nonce = NonceOf(sequence);
  const absl::Span<uint8_t> text = frame.subspan(0, frame.size() - kTagBytes);
  const Context context(EVP_CIPHER_CTX_new());
  int written = 0;
  ALUDEL_CHECK(EVP_EncryptInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, key_.data(), nonce.data()) == 1);
  ALUDEL_CHECK(EVP_EncryptUpdate(context.get(), nullptr, &written, associated.data(),
                                 static_cast<int>(associated.size())) == 1);
  ALUDEL_CHECK(EVP_EncryptUpdate(context.get(), text.data(), &written, text.data(),
                                 static_cast<int>(text.size())) == 1);
  ALUDEL_CHECK(EVP_EncryptFinal_ex(context.get(), text.data() + text.size(), &written) == 1);
  ALUDEL_CHECK(
      EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_GET_TAG, kTagBytes, frame.data() + text.size()) == 1);
}

absl::Status FrameCipher::Open(uint32_t sequence, absl::Span<const uint8_t> associated,
                               absl::Span<uint8_t> frame) const {
  if (frame.size() < kTagBytes) {
    return absl::DataLossError(absl::StrCat("frame ", sequence, ": ", frame.size(),
                                            " encrypted bytes, want at least the tag's ", kTagBytes));
  }
  const Nonce nonce = NonceOf(sequence);
  const absl::Span<uint8_t> text = frame.subspan(0, frame.size() - kTagBytes);
  const Context context(EVP_CIPHER_CTX_new());
  int written = 0;
  ALUDEL_CHECK(EVP_DecryptInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, key_.data(), nonce.data()) == 1);
  ALUDEL_CHECK(EVP_DecryptUpdate(context.get(), nullptr, &written, associated.data(),
                                 static_cast<int>(associated.size())) == 1);
  ALUDEL_CHECK(EVP_DecryptUpdate(context.get(), text.data(), &written, text.data(),
                                 static_cast<int>(text.size())) == 1);
  ALUDEL_CHECK(
      EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_SET_TAG, kTagBytes, frame.data() + text.size()) == 1);
  if (EVP_DecryptFinal_ex(context.get(), text.data() + text.size(), &written) == 1) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("frame ", sequence, ": its authentication tag does not fit"));
}

}  // namespace aludel
