#pragma once

#include <cstdint>

#include "runtime/codec/frame.h"
#include "server/handoff/frame_cipher.h"

namespace aludel {

// From OpenSSL's generator: tickets cannot be guessed, and no two processes share an epoch.
TicketId RandomTicketId();
uint64_t RandomEpoch();
FrameCipher::Key RandomFrameKey();

}  // namespace aludel
