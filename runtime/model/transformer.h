#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "runtime/kv/block_pool.h"
#include "runtime/model/adapters/adapter_rows.h"
#include "runtime/model/adapters/lora_weights.h"
#include "runtime/model/model_config.h"
#include "runtime/model/model_path.h"
#include "runtime/model/transformer_options.h"
#include "runtime/model/weights/weight_stream.h"

namespace aludel {

struct LayerWeights;
struct Weights;
struct Workspace;

// What one layer computed for consecutive tokens of one sequence, before RoPE. The views die when the call
// that passed them returns.
struct LayerSlice {
  int layer = 0;
  int64_t token_begin = 0;
  TensorView h;  // [tokens, hidden], the attention input after the layer's RMSNorm
  TensorView k;  // [tokens, kv_dim], after bias and k-norm, before RoPE; of Transformer::row_type(), as v
  TensorView v;  // [tokens, kv_dim]
  TensorView x = {};  // [tokens, hidden], f32: the residual stream before the layer's RMSNorm
  TensorView q = {};  // [tokens, q_dim], after bias and q-norm, before RoPE
  int64_t row = 0;    // the first token's in the step

  int64_t tokens() const { return k.rows; }
};

// Sees every layer of a forward pass as soon as its K and V exist. Called on the thread that runs
// the forward.
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  // An error ends this sequence's observation, not the forward; Forward reports it
  // in BatchItem::observer_status.
  virtual absl::Status OnLayer(const LayerSlice& slice) = 0;
  // Memory for K and V of a layer side by side, of all rows of any step: [at least max_rows rounded up to 16, 2 kv_dim] of
  // Transformer::row_type(). They are computed there where nobody else who watches the step wants them elsewhere; the slice's
  // views say where they are. Without data: anywhere.
  virtual TensorView KvRows(int /*layer*/) { return {}; }
};

// Takes the logits of consecutive tokens of one sequence, in pieces of a few rows, on the thread that runs the forward.
class LogitsSink {
 public:
  virtual ~LogitsSink() = default;
  // logits [rows, vocab], f32 host memory that is valid during the call; row 0 is of the token at `position`.
  virtual void OnLogits(int64_t position, absl::Span<const float> logits) = 0;
};

// One sequence's share of a batch: tokens at positions [position, position + ids.size()), whose cache pages
// are `blocks` (they must already cover the last position).
struct BatchItem {
  absl::Span<const int32_t> ids;
  int64_t position = 0;
  absl::Span<const BlockId> blocks;
  bool wants_logits = false;  // of the last token
  LayerObserver* observer = nullptr;
  absl::Status observer_status;
  // Set, and then not wants_logits: the next token is drawn from these logits where they are, and Forward
  // leaves it in `token` (kNoToken: the logits are no numbers).
  std::optional<RowSampling> draw = std::nullopt;
  int32_t token = kNoToken;
  LogitsSink* all_logits = nullptr;      // set: gets the logits of every token
  const LoraWeights* adapter = nullptr;  // of this model; null: the base alone. Must live through the call
  // Its K and V are not written: it attends to those of an item of the same positions, before it in the batch or in an
  // earlier one. Items that only read stand behind all others.
  bool reads_only = false;
};

// What loading cost.
struct LoadReport {
  int64_t bytes = 0;  // of weight files
  double seconds = 0;
  bool past_cache = false;  // the page cache was bypassed
  int kept_fp8 = 0;         // as Weights has them
  int dequantized_fp8 = 0;
};

// A decoder-only transformer (Llama, Mistral, Qwen2, Qwen3 are one class with other numbers) and its weights on one
// device. Items of one batch may have different adapters over them, or none. Owns its workspace, therefore one
// Forward at a time: it belongs to one engine thread.
class Transformer {
 public:
  // Reads a HuggingFace model directory and the adapter that is merged into it; `progress` hears of bytes
  // read. Errors name the file, the tensor, what was found and what was expected.
  static absl::StatusOr<std::unique_ptr<Transformer>> Load(Device* device, const ModelPath& path,
                                                           const TransformerOptions& options,
                                                           const LoadProgress& progress = nullptr);
  ~Transformer();

  const ModelConfig& config() const { return config_; }
  const TransformerOptions& options() const { return options_; }
  // XXH3-128 over config.json, the weight files and the adapter's, hex: identifies this model to peers and
  // artifacts, the base with an adapter as another model than the base.
  const std::string& hash() const { return hash_; }
  const LoadReport& load_report() const { return load_report_; }
  // Layers run since the model was loaded: it moves inside a step, so that a slow one is not taken for a stuck
  // one. From any thread.
  uint64_t layers_run() const { return layers_run_.load(std::memory_order_relaxed); }
  Device* device() const { return device_; }
  // Positions a sequence may use.
  int64_t context() const;
  // Of keys and values as products leave them, for whoever reads them: the compute type where the device keeps rows narrow
  // (Ops::KeepsNarrow) and the model has no biases there and no norms of heads, which want sums; else f32. Of queries, too, in
  // steps of more rows than kMostWideQueries.
  DType row_type() const { return row_type_; }
  // The queue on which this model's work runs; a codec that reads or feeds its tensors enqueues on the same.
  Stream stream() const { return stream_; }
  // Another, for copies of what lies ready while that one goes on.
  Stream copy_stream() const { return copy_stream_; }
  // Bytes of working memory of a transformer with these options, beside weights and KV cache.
  static size_t WorkspaceBytes(const ModelConfig& config, const TransformerOptions& options);
  // Rows that a step becomes which only decodes `rows` sequences: more where the device remembers steps (ReplayKinds), so that
  // few numbers stand for all.
  int64_t RoundedRows(int64_t rows) const;
  // Queries of so many rows are not rounded before they are rotated: in steps of a few rows a fused kernel (FusedDecode) does both,
  // and those of up to 64 give a row the same bits whatever others there are. Keys are rounded in all, as pages say.
  static constexpr int64_t kMostWideQueries = 64;
  // Steps of more sequences are taken as they are, and not remembered: unread rows would cost arithmetic, which
  // products of so many are bound by, and the host arrays of many more are larger than a graph has room for.
  static constexpr int64_t kMostFilledRows = 512;
  // Room for the logits of steps that ask for those of up to `rows` rows; without it the first such step makes room. The model
  // must be idle.
  absl::Status ReserveLogits(int64_t rows);
  // A layout with this model's shape for `blocks` blocks.
  KvLayout MakeKvLayout(int64_t blocks, int block_tokens, DType dtype) const;

  // Runs all layers over the batch, writes K and V into the pool's pages, draws the items' tokens, and fills
  // `logits` (f32 host memory, [items that want logits, vocab], in item order). At most options().max_rows
  // tokens; ids must be in range (InvalidArgument otherwise, and nothing is written).
  absl::Status Forward(absl::Span<BatchItem> items, BlockPool& pool, std::vector<float>* logits);

  // Runs layers [0, layers) fully and computes K and V of layer `layers` too (they come free): the consumer's
  // recomputed shallow layers. Enqueues that on stream(), and what leaves the normalized attention input of layer `layers`
  // in `h` (device memory of any type, [rows, hidden]).
  absl::Status ForwardShallow(absl::Span<BatchItem> items, int layers, BlockPool& pool, const TensorView& h);

  // Runs layers [first, end) alone over one item (its observer and logits are not looked at), from the
  // residual stream `x` [tokens, hidden] (f32 host memory) that enters layer `first`, and writes their K and
  // V. The pages of these layers must already hold every token before item.position.
  absl::Status ForwardLayers(const BatchItem& item, int first, int end, absl::Span<const float> x,
                             BlockPool& pool);

  // k, v [rows, kv_dim] = this model's own projections of h [rows, hidden] at `layer`, bias, k-norm and the
  // adapter's updates included, before RoPE. Device memory of any type. At most max_rows rows.
  void ProjectKv(int layer, const TensorView& h, const TensorView& k, const TensorView& v,
                 const LoraWeights* adapter = nullptr);

  // out [rows, hidden] = attended [rows, q_dim] through this model's output projection of `layer`. f32 device
  // memory. At most max_rows rows.
  void ProjectOutput(int layer, const TensorView& attended, const TensorView& out);

  // Rotates k (before RoPE) and writes it and v into the pages for positions [position, position + rows).
  void WriteKv(int layer, int64_t position, absl::Span<const BlockId> blocks, const TensorView& k,
               const TensorView& v, BlockPool& pool);
  // The same of consecutive layers from `first` on, whose K and V lie side by side: rows [rows, layers * 2 kv_dim].
  void WriteKvLayers(int first, int64_t position, absl::Span<const BlockId> blocks, const TensorView& rows,
                     BlockPool& pool);

 private:
  Transformer(Device* device, ModelConfig config, const TransformerOptions& options);

  // A batch laid out as consecutive rows; adapter_rows_ are the latest one's.
  struct Batch {
    std::vector<int32_t> ids;
    std::vector<SequenceRows> rows;
    size_t writing = 0;  // of `rows`: the first ones, of items that do not only read

    absl::Span<const SequenceRows> writers() const { return absl::MakeConstSpan(rows).first(writing); }
    int64_t count() const { return static_cast<int64_t>(ids.size()); }
  };
  // What a step gives: logits of these rows of the batch, the last of which become tokens on the device.
  struct Output {
    std::vector<int64_t> rows;
    std::vector<RowSampling> draws;
    size_t first_draw =
        0;  // of `draws`: those before it, as those behind the items', are of rows that nobody asked for
  };
  // Validates ids.
  absl::Status BeginBatch(absl::Span<const BatchItem> items, Batch* batch);
  // out = a W^T [+ bias], or out += that, with what the rows' adapters add to one of a layer's matrices.
  void Multiply(const TensorView& a, int layer, std::unique_ptr<PackedMatrix> LayerWeights::*matrix,
                std::unique_ptr<PackedLowRank> LayerUpdates::*update, const float* bias, bool accumulate,
                const TensorView& out);
  void Embed(const Batch& batch);
  // `items` are the batch's.
  void Head(const Batch& batch, absl::Span<const BatchItem> items, const Output& output);
  // Logits of every row of the items that have a sink, kLogitRows rows at a time. Behind RunStep.
  absl::Status GiveAllLogits(const Batch& batch, absl::Span<const BatchItem> items);
  // Of a step that is all alike to others of as many rows, as it only decodes, at most kMostFilledRows sequences: the position
  // before which they end. Else 0.
  int64_t RepeatedPositions(absl::Span<const BatchItem> items, const Output& output) const;
  size_t LogitBytes(int64_t rows) const;
  // Appends rows that nobody reads and that write into the pool's padding, and asks for logits, and tokens where any are
  // drawn, of all rows.
  void RoundUp(const BlockPool& pool, Batch* batch, Output* output) const;
  // A device may remember steps that are repeated, see above.
  void RunStep(const Batch& batch, const Output& output, int64_t repeated_positions,
               absl::Span<BatchItem> items, BlockPool& pool);
  // What goes into a layer's cache, until the next layer begins.
  struct CacheRows {
    TensorView h;     // attention input after its norm, [padded rows, hidden]
    TensorView k, v;  // before RoPE, [rows, kv_dim]
  };
  // Of the queries of a step whose layers are not fused.
  DType QueryType(int64_t rows) const { return rows > kMostWideQueries ? row_type_ : DType::kF32; }
  // Where K and V of a layer go, `rows` of them: where those who watch the items want them, if they agree.
  TensorView KvRows(int layer, int64_t rows, absl::Span<const BatchItem> items) const;
  // Attention input, K and V of one layer, and the writers' into the cache. `items`: those that are watched, or none.
  CacheRows CacheInput(int layer, const Batch& batch, absl::Span<const BatchItem> items, BlockPool& pool);
  // The same, then its queries, and the observers.
  void AttendInput(int layer, const Batch& batch, absl::Span<BatchItem> items, BlockPool& pool);
  void FinishLayer(int layer, const Batch& batch, BlockPool& pool);

  Device* device_;
  ModelConfig config_;
  TransformerOptions options_;
  DType row_type_;
  std::atomic<uint64_t> layers_run_{0};
  std::string hash_;
  LoadReport load_report_;
  RopeFrequencies rope_;
  Stream stream_;
  Stream copy_stream_;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<Workspace> work_;
  AdapterRows adapter_rows_;  // of the latest batch
  AdapterRows head_rows_;     // of the rows of logits
};

}  // namespace aludel
