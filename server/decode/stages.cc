#include "server/decode/stages.h"

#include <algorithm>

namespace aludel {

StageSeconds SplitFirstToken(const SequenceTimes& times, const std::optional<ProducerSeconds>& producer,
                             double before_admission) {
  StageSeconds stages;
  stages.ttft = before_admission + times.ttft;
  stages.queue = before_admission + times.queue;
  stages.prefill = times.prefill;
  stages.reconstruct = times.reconstruct;
  stages.recompute = times.recompute;
  stages.transfer = times.await;
  if (producer.has_value()) {
    const double worked = producer->queue + producer->prefill + producer->encode;
    const double explained = std::min(worked, times.await);
    const double share = worked > 0 ? explained / worked : 0;
    stages.queue += producer->queue * share;
    stages.prefill += producer->prefill * share;
    stages.encode = producer->encode * share;
    stages.transfer = times.await - explained;
  }
  const double known =
      stages.queue + stages.prefill + stages.encode + stages.transfer + stages.reconstruct + stages.recompute;
  stages.first_decode = std::max(0.0, stages.ttft - known);
  return stages;
}

}  // namespace aludel
