#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/tensor.h"
#include "runtime/calibrate/aludel/passage.h"
#include "runtime/calibrate/fit/statistics.h"
#include "runtime/model/transformer.h"

namespace aludel {

// What one model computes for every token of the calibration prompts, on disk, so that fits of any structure
// read it as often as they like with bounded memory, and an interrupted calibration finds it again. A row is
// bf16: K (before RoPE) and V of every layer, [K_0 V_0 K_1 V_1 ...], then H of layers [0, side_layers).
//
// The first `head` tokens of every prompt never travel (CodecSpec::recomputed_head_tokens). Among them are
// attention sinks, whose keys and values resemble no other token's; fits must not see them. Their rows lie
// behind all others: rows [0, rows()) are the tokens that travel, prompt by prompt, and the head tokens of
// all prompts follow from row rows() on.
struct StateLayout {
  int layers = 0;
  int side_layers = 0;
  int64_t kv_dim = 0;
  int64_t hidden = 0;

  int64_t kv(int layer) const { return layer * 2 * kv_dim; }
  int64_t h(int layer) const { return layers * 2 * kv_dim + layer * hidden; }
  int64_t columns() const { return h(side_layers); }
};

// A finished file, mapped read-only. Thread-safe.
class StateFile {
 public:
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  const StateLayout& layout() const { return layout_; }
  int64_t rows() const { return rows_; }
  int64_t head() const { return head_; }
  // Tokens of a prompt of `tokens` that lie behind rows().
  int64_t HeadTokens(size_t tokens) const { return std::min(head_, static_cast<int64_t>(tokens)); }
  // Columns [begin, begin + count) of row `row`, widened.
  void Read(int64_t row, int64_t begin, int64_t count, float* out) const;

 private:
  friend class StateJob;
  StateFile(StateLayout layout, int64_t rows, int64_t head, const uint8_t* map, size_t bytes)
      : layout_(layout), rows_(rows), head_(head), map_(map), bytes_(bytes) {}

  StateLayout layout_;
  int64_t rows_;
  int64_t head_;
  const uint8_t* map_;
  size_t bytes_;
};

// Opens the file for this model and these prompts in `directory`, which may have H of more layers than asked for, or
// runs the model over the prompts and writes it: whole or not at all. `stage` names the work to `progress`.
absl::StatusOr<std::unique_ptr<StateFile>> OpenStates(const std::string& directory, Transformer& model,
                                                      absl::Span<const std::vector<int32_t>> prompts,
                                                      int side_layers, int64_t head, absl::string_view stage,
                                                      const CalibrationProgress& progress);

// The same for passages: row by row their tokens, in the order of their ids; no head lies apart.
absl::StatusOr<std::unique_ptr<StateFile>> OpenPassageStates(const std::string& directory, Transformer& model,
                                                             absl::Span<const Passage> passages,
                                                             int side_layers, absl::string_view stage,
                                                             const CalibrationProgress& progress);

// Token ids of rows [0, rows()) of a file of these prompts.
std::vector<int32_t> RowIds(absl::Span<const std::vector<int32_t>> prompts, int64_t head);

// Bytes that OpenStates writes for prompts of `tokens` tokens in all.
size_t StateBytes(const ModelConfig& config, int side_layers, int64_t tokens);

}  // namespace aludel
