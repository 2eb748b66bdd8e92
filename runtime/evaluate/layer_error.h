#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/evaluate/oracle.h"
#include "runtime/kv/block_pool.h"
#include "runtime/model/transformer.h"

namespace aludel {

// Squared error and energy, added up over tokens, queries and prompts; their quotient is a relative error.
struct ErrorSum {
  double error = 0;
  double energy = 0;
  double ratio() const { return energy > 0 ? error / energy : 0; }
  void Add(const ErrorSum& other) {
    error += other.error;
    energy += other.energy;
  }
};

// How far one layer of a reconstructed cache is from the consumer's own.
//   k, v    plain: ||K^ - K||^2 over ||K||^2 of the handed-over tokens, likewise V.
//   logits  attention-aware: q.K^ against q.K, for the queries q that the consumer asks of its own cache. Both
//           sides are centered over the keys of a query, because the softmax does not see a constant.
//   output  what attention then adds to the residual stream: (softmax(q K^) V^ - softmax(q K) V) W_o.
// Every layer is judged for itself: queries, and the cache around the handed-over tokens, are the oracle's.
struct LayerError {
  ErrorSum k, v, logits, output;
  void Add(const LayerError& other) {
    k.Add(other.k);
    v.Add(other.v);
    logits.Add(other.logits);
    output.Add(other.output);
  }
};

// Remembers the oracle of one prompt after another, and measures reconstructed caches against it. The queries
// are those of the last prompt token and of the oracle's answer. One thread; model and pools must outlive it.
class LayerErrorMeter : public LayerObserver {
 public:
  // Both pools may be one, also by type.
  static absl::StatusOr<std::unique_ptr<LayerErrorMeter>> Create(Transformer& model, BlockPool& oracle_pool,
                                                                 BlockPool& tested_pool);

  // `blocks` of the oracle's pool hold the oracle's cache of all but the last token of `prompt`, and room for the answer.
  absl::Status RememberOracle(absl::Span<const BlockId> blocks, absl::Span<const int32_t> prompt,
                              const Answer& answer);

  // One entry per layer. `blocks` of the tested pool hold the cache under test; tokens [begin, end) of it were handed over.
  absl::StatusOr<std::vector<LayerError>> Measure(absl::Span<const BlockId> blocks, int64_t begin,
                                                  int64_t end);

  absl::Status OnLayer(const LayerSlice& slice) override;

 private:
  // Rows of K (rotated) and V, [tokens, kv_dim].
  struct Cache {
    std::vector<float> k, v;
  };
  // What attention makes of a cache: logits [queries, heads, keys], those behind a query 0, and values
  // [queries, q_dim].
  struct Attended {
    std::vector<float> logits, values;
  };
  struct OracleLayer {
    std::vector<float> q;  // rotated, [queries, q_dim]
    Cache cache;
    Attended attended;
    double output_energy = 0;
  };

  LayerErrorMeter(Transformer& model, BlockPool& oracle_pool, BlockPool& tested_pool, Buffer staging,
                  Buffer output);
  absl::Status Read(const PagedKv& paged, absl::Span<const BlockId> blocks, int64_t begin, int64_t end,
                    Cache* cache);
  Attended Attend(const std::vector<float>& q, const Cache& cache) const;
  // ||values W_o||^2 over all queries.
  absl::StatusOr<double> OutputEnergy(int layer, const std::vector<float>& values);

  Transformer& model_;
  BlockPool& oracle_pool_;
  BlockPool& tested_pool_;
  RopeFrequencies rope_;
  Buffer staging_;  // f32 [max_rows, q_dim]
  Buffer output_;   // f32 [max_rows, hidden]
  std::vector<uint8_t> page_;
  int64_t first_query_ = 0;  // its position
  int64_t queries_ = 0;
  std::vector<OracleLayer> oracle_;
};

}  // namespace aludel
