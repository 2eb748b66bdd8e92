#include "server/host/arena_room.h"

#include "absl/strings/str_cat.h"

namespace aludel {

std::string ArenaShortage(const ModelHost& model, const CodecSpec& codec, const char* field, size_t arena,
                          size_t window) {
  const EngineOptions& options = model.engine().options();
  const size_t needed = model.HandoffWindow(codec, options.max_context, window);
  if (needed <= arena) return "";
  return absl::StrCat(field, " is ", arena, ", and a prompt of ", options.max_context, " tokens needs ",
                      needed, " in format ", codec.name, " with steps of ", options.max_num_batched_tokens,
                      " tokens: such prompts are prefilled where they are decoded");
}

}  // namespace aludel
