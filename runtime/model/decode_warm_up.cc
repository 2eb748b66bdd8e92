#include "runtime/model/decode_warm_up.h"

#include <algorithm>
#include <functional>
#include <set>
#include <vector>

#include "kernels/replay_kinds.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

absl::Status Step(Transformer& model, BlockPool& pool, int64_t sequences, int64_t position, bool draws) {
  const int32_t id = 0;
  const std::vector<BlockId> blocks(pool.layout().BlocksFor(position + 1), pool.padding().front());
  std::vector<BatchItem> items(sequences);
  for (BatchItem& item : items) {
    item.ids = absl::MakeConstSpan(&id, 1);
    item.position = position;
    item.blocks = blocks;
    if (draws) item.draw = RowSampling{};
    item.wants_logits = !draws;
  }
  std::vector<float> logits;
  return model.Forward(absl::MakeSpan(items), pool, &logits);
}

}  // namespace

absl::Status WarmUpDecoding(Transformer& model, BlockPool& pool, int64_t sequences, int64_t context) {
  const auto* const kinds = dynamic_cast<const ReplayKinds*>(model.device());
  if (kinds == nullptr) return absl::OkStatus();
  // Largest first: it makes all the room for logits that there will be, which remembered steps do not outlive.
  std::set<int64_t, std::greater<>> batches;
  for (int64_t rows = 1; rows <= std::min(sequences, model.options().max_rows); ++rows) {
    batches.insert(model.RoundedRows(rows));
  }
  context = std::min(context, model.config().max_positions);
  for (const int64_t batch : batches) {
    for (int64_t begin = 0; begin < context; begin = kinds->ReplayedPositions(begin + 1)) {
      for (const bool draws : {true, false}) {
        // The first time loads what the second remembers.
        for (int time = 0; time < 2; ++time) {
          ALUDEL_RETURN_IF_ERROR(Step(model, pool, batch, begin, draws));
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace aludel
