#include "runtime/model/decode_warm_up.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/replay_kinds.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

const ReplayKinds* ReplayKindsOf(const Transformer& model) {
  return dynamic_cast<const ReplayKinds*>(model.device());
}

// The furthest position alone tells steps of as many rows apart. So one sequence is there, and the other rows are like those
// that fill steps up: block lists of all would be more than a device takes at once.
absl::Status Step(Transformer& model, BlockPool& pool, int64_t rows, int64_t position, bool draws) {
  const int32_t id = 0;
  const std::vector<BlockId> blocks(pool.layout().BlocksFor(position + 1), pool.padding().front());
  std::vector<BatchItem> items(rows);
  for (BatchItem& item : items) {
    item.ids = absl::MakeConstSpan(&id, 1);
    item.blocks = pool.padding();
    if (draws) item.draw = RowSampling{};
  }
  items.front().position = position;
  items.front().blocks = blocks;
  items.front().wants_logits = !draws;  // those of all rows are computed then
  std::vector<float> logits;
  const absl::Status status = model.Forward(absl::MakeSpan(items), pool, &logits);
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrFormat(
          "warming up decode steps (cuda_graphs: false leaves this out), %d rows, position %d: %s", rows,
          position, std::string(status.message())));
}

}  // namespace

absl::Status ReserveForDecoding(Transformer& model, int64_t sequences) {
  if (ReplayKindsOf(model) == nullptr) return absl::OkStatus();
  const int64_t rows = model.RoundedRows(std::min(sequences, model.options().max_rows));
  const absl::Status status = model.ReserveLogits(rows);
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrFormat("logits of %d sequences (max_num_seqs; fewer need less): %s", rows,
                                      std::string(status.message())));
}

absl::Status WarmUpDecoding(Transformer& model, BlockPool& pool, int64_t sequences, int64_t context) {
  const ReplayKinds* const kinds = ReplayKindsOf(model);
  if (kinds == nullptr) return absl::OkStatus();
  // Largest first: it makes all the room for logits that is not there yet, and remembered steps do not outlive that.
  std::set<int64_t, std::greater<>> batches;
  // Each sequence that decodes writes into a block of its own.
  const int64_t most_rows =
      std::min({sequences, model.options().max_rows, Transformer::kMostFilledRows, pool.layout().blocks});
  for (int64_t rows = 1; rows <= most_rows; ++rows) batches.insert(model.RoundedRows(rows));
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
