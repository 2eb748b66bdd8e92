#include "server/handoff/random.h"

#include <openssl/rand.h>

#include "kernels/check.h"

namespace aludel {

TicketId RandomTicketId() {
  TicketId id;
  // Without random numbers no ticket is safe; OpenSSL fails here only where the system has no entropy source.
  ALUDEL_CHECK(RAND_bytes(id.data(), static_cast<int>(id.size())) == 1);
  return id;
}

uint64_t RandomEpoch() {
  uint64_t epoch = 0;
  ALUDEL_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(&epoch), sizeof(epoch)) == 1);
  return epoch;
}

FrameCipher::Key RandomFrameKey() {
  FrameCipher::Key key;
  ALUDEL_CHECK(RAND_priv_bytes(key.data(), static_cast<int>(key.size())) == 1);
  return key;
}

}  // namespace aludel
