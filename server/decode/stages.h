#pragma once

#include <optional>

#include "runtime/engine/engine.h"
#include "server/observe/request_metrics.h"

namespace aludel {

// What a prefill server spent on a run, on its own clock.
struct ProducerSeconds {
  double queue = 0;
  double prefill = 0;
  double encode = 0;
};

// Splits the time to the first token into exclusive stages that sum to it. `before_admission`: from the call
// to the engine's admission. Of the time spent waiting for frames, as much as the producer accounts for is
// queue, prefill and encode (in proportion where it worked longer than we waited, because we worked too), and
// the rest is transfer. What the engine's own stages leave is the first decode step.
StageSeconds SplitFirstToken(const SequenceTimes& times, const std::optional<ProducerSeconds>& producer,
                             double before_admission);

}  // namespace aludel
