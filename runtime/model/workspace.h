#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "runtime/model/model_config.h"
#include "runtime/status_macros.h"

namespace aludel {

// GEMM primitives are made per row count. Rounding the count keeps them few; the rows beyond are zeros or
// leftovers and never read.
inline int64_t GemmRows(int64_t rows) { return rows <= 16 ? rows : (rows + 15) / 16 * 16; }

// Rows of logits that a workspace begins with; a step that asks for more makes it larger. A step has far fewer sequences than
// tokens: a row for each token of a chunk would take gigabytes with a large vocabulary.
constexpr int64_t kFirstLogitRows = 64;

// Rows of a step that may be fused, whatever the device takes.
constexpr size_t kMostFusedRows = 16;

// One allocation per activation, sized for the largest batch.
struct Workspace {
  Buffer x, h, q, kv, attended, gate_up, activated, last, logits, tokens;
  Buffer angles;              // of a step whose layers are fused
  bool angles_there = false;  // of the step that runs
  bool rotated = false;       // q, of the layer that runs: it was fused

  static absl::StatusOr<std::unique_ptr<Workspace>> Create(Device* device, const ModelConfig& config,
                                                           DType compute, int64_t max_rows) {
    auto work = std::make_unique<Workspace>();
    const std::vector<char> zeros(size_t{1} << 20);  // lives until Synchronize: copies may still read it
    for (const Item& item : Plan(config, compute, max_rows)) {
      Buffer& buffer = (*work).*item.buffer;
      ALUDEL_ASSIGN_OR_RETURN(buffer, device->Allocate(item.bytes));
      for (size_t begin = 0; begin < item.bytes; begin += zeros.size()) {
        device->CopyToDevice(buffer.as<char>() + begin, zeros.data(),
                             std::min(zeros.size(), item.bytes - begin), Stream{});
      }
    }
    ALUDEL_RETURN_IF_ERROR(device->Synchronize(Stream{}));
    return work;
  }

  struct Item {
    Buffer Workspace::*buffer;
    size_t bytes;
  };
  static std::vector<Item> Plan(const ModelConfig& config, DType compute, int64_t max_rows) {
    const size_t rows = GemmRows(max_rows);
    const size_t narrow = SizeOf(compute);
    return {{&Workspace::x, rows * config.hidden * sizeof(float)},
            {&Workspace::h, rows * config.hidden * narrow},
            {&Workspace::q, rows * config.q_dim() * sizeof(float)},
            {&Workspace::kv, rows * 2 * config.kv_dim() * sizeof(float)},
            {&Workspace::attended, rows * config.q_dim() * narrow},
            {&Workspace::gate_up, rows * 2 * config.ffn * narrow},
            {&Workspace::activated, rows * config.ffn * narrow},
            {&Workspace::last, rows * config.hidden * std::max(narrow, sizeof(float))},
            {&Workspace::logits, std::min<size_t>(rows, kFirstLogitRows) * config.vocab * sizeof(float)},
            {&Workspace::tokens, rows * sizeof(int32_t)},
            {&Workspace::angles, std::min<size_t>(rows, kMostFusedRows) * config.head_dim * sizeof(float)}};
  }
};

}  // namespace aludel
