#pragma once

#include <cstdint>

#include "runtime/codec/frame.h"

namespace aludel {

// From OpenSSL's generator: nobody guesses a ticket, and no two processes share an epoch.
TicketId RandomTicketId();
uint64_t RandomEpoch();

}  // namespace aludel
