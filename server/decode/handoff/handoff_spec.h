#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "aludel/v1/handoff.pb.h"
#include "runtime/codec/codec.h"
#include "server/decode/handoff/patience.h"
#include "server/decode/plan/planner.h"

namespace aludel {

// What one handoff shall bring, and how long it is waited for.
struct HandoffSpec {
  std::string request_id;
  std::string traceparent;      // "": none
  std::vector<int32_t> prompt;  // up to the last token that is handed over
  std::shared_ptr<const CodecSpec>
      codec;                             // its own: an adapter's codec may go before the last frame has come
  std::string cache_salt;                // of what is known here
  std::string tenant;                    // the request's salt, for the prefill server
  bool no_store = false;                 // nothing of the prompt is kept there
  std::optional<v1::Workflow> workflow;  // the request's place in it
  std::optional<uint64_t> max_staleness_ms;  // of codes from the prefill server's cache
  bool trace = false;                        // the request asks for it
  PlanRequest wanted;                        // what the request asked for, its format being the codec's
  absl::Time deadline;                       // of the request; MonotonicNow()
  Patience patience;
  MoveRule move;
};

}  // namespace aludel
