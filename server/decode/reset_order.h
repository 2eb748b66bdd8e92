#pragma once

#include <functional>
#include <utility>

#include "absl/status/status.h"

namespace aludel {

using WhenReset = std::function<void(const absl::Status&)>;

// Clears what a server has cached while others, that it gets it from, are reset: `clear_here` at once, so that nothing
// old is found from now on, and again once `reset_others` is done, as what came from them meanwhile may be of before
// their reset. `done` gets the second clearing's error, else that of the others; it runs once, where the last of them
// calls. Each argument is called, with what to call once when it is done; what they refer to must live until `done`.
inline void ResetInOrder(const std::function<void(WhenReset)>& clear_here,
                         const std::function<void(WhenReset)>& reset_others, WhenReset done) {
  clear_here([](const absl::Status&) {});  // what it left, the second one finds, too
  reset_others([clear_here, done = std::move(done)](const absl::Status& others) {
    clear_here([done, others](const absl::Status& here) { done(here.ok() ? others : here); });
  });
}

}  // namespace aludel
