#include "runtime/model/prefill_warm_up.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/row_class.h"
#include "runtime/kv/block_pool.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int kBlockTokens = 16;

}  // namespace

absl::Status WarmUpPrefill(Transformer& model, DType kv_dtype) {
  if (!model.device()->times_products()) return absl::OkStatus();
  const int64_t most = std::min(model.options().max_rows, model.config().max_positions);
  const int64_t blocks = (most + kBlockTokens - 1) / kBlockTokens;
  ALUDEL_ASSIGN_OR_RETURN(
      const std::unique_ptr<BlockPool> pool,
      BlockPool::Create(model.device(), model.MakeKvLayout(blocks, kBlockTokens, kv_dtype)));
  BlockTable table;
  ALUDEL_RETURN_IF_ERROR(table.Grow(*pool, most));
  const std::vector<int32_t> ids(most);
  for (int64_t rows = 0; rows < most;) {
    rows = std::min(RowClass(rows + 1), most);
    BatchItem step;
    step.ids = absl::MakeConstSpan(ids).first(rows);
    step.blocks = table.ids();
    std::vector<float> logits;
    const absl::Status status = model.Forward(absl::MakeSpan(&step, 1), *pool, &logits);
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrFormat("warming up prefill steps, %d tokens: %s", rows,
                                                         std::string(status.message())));
    }
  }
  return absl::OkStatus();
}

}  // namespace aludel
