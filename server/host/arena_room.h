#pragma once

#include <cstddef>
#include <string>

#include "server/host/model_host.h"

namespace aludel {

// What to tell an operator whose arena of `arena` bytes is too small for handoffs in this format of the longest prompts that
// the engine takes, which are then prefilled where they are decoded; empty where it is not. `field` is the setting's name,
// `window` as in ModelHost::HandoffWindow.
std::string ArenaShortage(const ModelHost& model, const CodecSpec& codec, const char* field, size_t arena,
                          size_t window);

}  // namespace aludel
