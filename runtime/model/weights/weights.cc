#include "runtime/model/weights/weights.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "runtime/model/adapters/lora_adapter.h"
#include "runtime/model/transformer_options.h"
#include "runtime/model/weights/stored_matrix.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// A part of a stack of matrices or vectors.
struct Part {
  std::string name;  // of the module (matrices) or the tensor (vectors)
  int64_t rows = 0;
};

bool HeadIsEmbedding(const ModelConfig& config, DType compute, WeightFormat format) {
  return config.tied_embeddings && format == FormatOf(compute);
}

// Finds and checks every tensor of a model, makes room for it on the device and cuts the work of filling that
// room into tasks. Without a device it only checks.
class LoadPlan {
 public:
  LoadPlan(const ModelFiles& files, const ModelConfig& config, Device* device, DType compute,
           std::optional<WeightFormat> format, Stream stream)
      : files_(files),
        config_(config),
        device_(device),
        compute_(compute),
        format_(format.value_or(FormatOf(compute))),
        keeps_fp8_(!format.has_value() && device != nullptr && compute == DType::kBf16 &&
                   config.quantization.fp8_inputs && device->ops().KeepsFp8()),
        stream_(stream),
        mutex_(std::make_shared<absl::Mutex>()) {}

  absl::Status AddModel(Weights* weights);
  std::vector<LoadTask> TakeTasks() { return std::move(tasks_); }
  int kept_fp8() const { return kept_fp8_; }
  int dequantized_fp8() const { return dequantized_fp8_; }
  // Weights of a layer that the architecture does not have would be left out in silence: norms, biases (some
  // quantizers write zeros) or whole matrices, or what an adapter adds to such.
  absl::Status CheckStrays() const;

 private:
  absl::Status AddLayer(int index, LayerWeights* layer);
  // Vectors end to end, as f32.
  absl::Status AddVector(const std::vector<Part>& parts, Buffer* out);
  using Matrices = std::vector<std::shared_ptr<const StoredMatrix>>;
  // Matrices with the same inputs, stacked by rows and packed as one.
  absl::Status AddMatrix(const std::vector<Part>& parts, int64_t cols, std::unique_ptr<PackedMatrix>* out) {
    ALUDEL_ASSIGN_OR_RETURN(Matrices matrices, OpenAll(parts, cols));
    const WeightFormat format = FormatFor(matrices);
    return AddMatrices(std::move(matrices), format, out);
  }
  absl::StatusOr<Matrices> OpenAll(const std::vector<Part>& parts, int64_t cols);
  // Of a stack; counts what is kept in FP8 and what is not.
  WeightFormat FormatFor(const Matrices& matrices);
  absl::Status AddMatrices(Matrices matrices, WeightFormat format, std::unique_ptr<PackedMatrix>* out);
  absl::Status AddSmallStack(Matrices matrices, PackedMatrix* packed);

  absl::StatusOr<std::shared_ptr<const StoredMatrix>> Open(const Part& part, int64_t cols) {
    absl::StatusOr<std::unique_ptr<StoredMatrix>> matrix =
        StoredMatrix::Open(files_, config_.quantization, part.name, part.rows, cols);
    if (!matrix.ok()) return matrix.status();
    return std::shared_ptr<const StoredMatrix>(*std::move(matrix));
  }
  void AddTask(std::vector<TensorBytes> reads, std::function<absl::Status()> run) {
    tasks_.push_back({std::move(reads), std::move(run)});
  }

  const ModelFiles& files_;
  const ModelConfig& config_;
  Device* const device_;
  const DType compute_;
  const WeightFormat format_;
  const bool keeps_fp8_;  // of what is stored so
  const Stream stream_;
  const std::shared_ptr<absl::Mutex> mutex_;  // one task at a time on stream_
  std::vector<LoadTask> tasks_;
  std::set<const SafetensorsEntry*> used_;
  int kept_fp8_ = 0;
  int dequantized_fp8_ = 0;
};

// Numbers that are read and converted at a time: they stay in the cache between the two.
constexpr int64_t kPiece = int64_t{1} << 19;
// Numbers of one task.
constexpr int64_t kTask = int64_t{1} << 23;

// As many rows as make up `numbers`, in whole blocks.
int64_t RowsOf(int64_t numbers, int64_t cols, int64_t block) {
  return std::max<int64_t>(1, numbers / cols / block) * block;
}

// Calls use(begin, end) for rows [begin, end) in steps.
template <typename Use>
absl::Status ForRows(int64_t begin, int64_t end, int64_t step, Use use) {
  for (int64_t first = begin; first < end; first += step) {
    ALUDEL_RETURN_IF_ERROR(use(first, std::min(end, first + step)));
  }
  return absl::OkStatus();
}

// Hands rows [begin, end) to use(view, first row): as they lie in the file where they lie in a usable type,
// otherwise as f32, a few at a time.
template <typename Use>
absl::Status ReadRows(const StoredMatrix& matrix, int64_t begin, int64_t end, int64_t block, Use use) {
  const TensorView in_place = matrix.InPlace();
  if (in_place.data != nullptr) return use(in_place.Rows(begin, end - begin), begin);
  const int64_t cols = matrix.cols();
  const int64_t step = std::min(end - begin, RowsOf(kPiece, cols, block));
  std::vector<float> piece(static_cast<size_t>(step * cols));
  return ForRows(begin, end, step, [&](int64_t first, int64_t last) {
    matrix.Read(first, last, piece.data());
    return use(TensorView::Of(piece.data(), last - first, cols), first);
  });
}

absl::Status LoadPlan::AddVector(const std::vector<Part>& parts, Buffer* out) {
  std::vector<const SafetensorsEntry*> tensors;
  std::vector<TensorBytes> reads;
  int64_t size = 0;
  for (const Part& part : parts) {
    ALUDEL_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, FindShaped(files_, part.name, {part.rows}));
    if (!IsPlain(*entry)) {
      return absl::InvalidArgumentError(absl::StrCat(files_.directory(), ": tensor ", part.name,
                                                     " has dtype ", entry->dtype, ", want BF16, F16 or F32"));
    }
    tensors.push_back(entry);
    reads.push_back({entry, 0, entry->data.size()});
    used_.insert(entry);
    size += part.rows;
  }
  if (device_ == nullptr) return absl::OkStatus();
  AddTask(std::move(reads),
          [tensors, size, out, device = device_, stream = stream_, mutex = mutex_]() -> absl::Status {
            std::vector<float> host(size);
            float* to = host.data();
            for (const SafetensorsEntry* tensor : tensors) {
              ReadPlain(*tensor, 0, tensor->elements(), to);
              to += tensor->elements();
            }
            ALUDEL_ASSIGN_OR_RETURN(*out, device->Allocate(host.size() * sizeof(float)));
            absl::MutexLock lock(mutex.get());
            device->CopyToDevice(out->data(), host.data(), host.size() * sizeof(float), stream);
            return device->Synchronize(stream);
          });
  return absl::OkStatus();
}

// Rows [begin, end) of a matrix to those of `packed` from at + begin on: codes as they are where both have them.
absl::Status PackPart(Ops& ops, const StoredMatrix& matrix, int64_t begin, int64_t end, int64_t at,
                      PackedMatrix& packed) {
  if (packed.format() == WeightFormat::kFp8) {
    std::vector<float> scales(static_cast<size_t>(end - begin));
    const uint8_t* codes = matrix.Fp8Codes(begin, end, scales.data());
    if (codes != nullptr) {
      return ops.PackFp8Rows({codes, scales.data(), end - begin, matrix.cols()}, at + begin, packed);
    }
  }
  return ReadRows(matrix, begin, end, packed.row_block(), [&](const TensorView& view, int64_t first) {
    return ops.PackRows(view, at + first, packed);
  });
}

absl::StatusOr<LoadPlan::Matrices> LoadPlan::OpenAll(const std::vector<Part>& parts, int64_t cols) {
  Matrices matrices;
  for (const Part& part : parts) {
    ALUDEL_ASSIGN_OR_RETURN(std::shared_ptr<const StoredMatrix> matrix, Open(part, cols));
    used_.insert(matrix->tensors().begin(), matrix->tensors().end());
    matrices.push_back(std::move(matrix));
  }
  return matrices;
}

WeightFormat LoadPlan::FormatFor(const Matrices& matrices) {
  if (!keeps_fp8_) return format_;
  const bool kept = std::all_of(matrices.begin(), matrices.end(), [](const auto& matrix) {
    return matrix->Fp8Codes(0, 0, nullptr) != nullptr;
  });
  const bool stored = std::any_of(matrices.begin(), matrices.end(), [](const auto& matrix) {
    return matrix->tensors().front()->dtype == "F8_E4M3";
  });
  kept_fp8_ += kept ? 1 : 0;
  dequantized_fp8_ += stored && !kept ? 1 : 0;
  return kept ? WeightFormat::kFp8 : format_;
}

absl::Status LoadPlan::AddMatrices(Matrices matrices, WeightFormat format,
                                   std::unique_ptr<PackedMatrix>* out) {
  if (device_ == nullptr) return absl::OkStatus();
  const int64_t cols = matrices.front()->cols();
  int64_t rows = 0;
  for (const auto& matrix : matrices) rows += matrix->rows();
  ALUDEL_ASSIGN_OR_RETURN(*out, device_->ops().NewPacked(rows, cols, format));
  const int64_t block = (*out)->row_block();
  const bool whole_blocks = std::all_of(matrices.begin(), matrices.end() - 1,
                                        [&](const auto& matrix) { return matrix->rows() % block == 0; });
  if (!whole_blocks) return AddSmallStack(std::move(matrices), out->get());
  int64_t at = 0;
  for (const auto& matrix : matrices) {
    const int64_t step = RowsOf(kTask, cols, block);
    for (int64_t begin = 0; begin < matrix->rows(); begin += step) {
      const int64_t end = std::min(begin + step, matrix->rows());
      AddTask(matrix->BytesOf(begin, end), [=, device = device_, packed = out->get()] {
        return PackPart(device->ops(), *matrix, begin, end, at, *packed);
      });
    }
    at += matrix->rows();
  }
  return absl::OkStatus();
}

// A stack whose parts share blocks of the device's layout: put together first.
absl::Status LoadPlan::AddSmallStack(Matrices matrices, PackedMatrix* packed) {
  std::vector<TensorBytes> reads;
  for (const auto& matrix : matrices) {
    const std::vector<TensorBytes> bytes = matrix->BytesOf(0, matrix->rows());
    reads.insert(reads.end(), bytes.begin(), bytes.end());
  }
  AddTask(std::move(reads), [matrices, packed, device = device_] {
    std::vector<float> stack(static_cast<size_t>(packed->out_features() * packed->in_features()));
    float* to = stack.data();
    for (const auto& matrix : matrices) {
      matrix->Read(0, matrix->rows(), to);
      to += matrix->rows() * matrix->cols();
    }
    const TensorView view = TensorView::Of(stack.data(), packed->out_features(), packed->in_features());
    return device->ops().PackRows(view, 0, *packed);
  });
  return absl::OkStatus();
}

absl::Status LoadPlan::AddLayer(int index, LayerWeights* layer) {
  const std::string p = absl::StrCat("model.layers.", index, ".");
  const std::string attention = p + "self_attn.";
  const int64_t hidden = config_.hidden;
  const int64_t q = config_.q_dim();
  const int64_t kv = config_.kv_dim();
  ALUDEL_RETURN_IF_ERROR(AddVector({{p + "input_layernorm.weight", hidden}}, &layer->input_norm));
  ALUDEL_RETURN_IF_ERROR(AddMatrix({{attention + "q_proj", q}}, hidden, &layer->q));
  ALUDEL_RETURN_IF_ERROR(
      AddMatrix({{attention + "k_proj", kv}, {attention + "v_proj", kv}}, hidden, &layer->kv));
  if (config_.qkv_bias) {
    ALUDEL_RETURN_IF_ERROR(AddVector(
        {{attention + "q_proj.bias", q}, {attention + "k_proj.bias", kv}, {attention + "v_proj.bias", kv}},
        &layer->qkv_bias));
  }
  if (config_.qk_norm) {
    ALUDEL_RETURN_IF_ERROR(AddVector({{attention + "q_norm.weight", config_.head_dim}}, &layer->q_norm));
    ALUDEL_RETURN_IF_ERROR(AddVector({{attention + "k_norm.weight", config_.head_dim}}, &layer->k_norm));
  }
  ALUDEL_RETURN_IF_ERROR(AddMatrix({{attention + "o_proj", hidden}}, q, &layer->o));
  if (config_.o_bias)
    ALUDEL_RETURN_IF_ERROR(AddVector({{attention + "o_proj.bias", hidden}}, &layer->o_bias));
  ALUDEL_RETURN_IF_ERROR(AddVector({{p + "post_attention_layernorm.weight", hidden}}, &layer->post_norm));
  ALUDEL_RETURN_IF_ERROR(AddMatrix({{p + "mlp.gate_proj", config_.ffn}, {p + "mlp.up_proj", config_.ffn}},
                                   hidden, &layer->gate_up));
  if (config_.mlp_bias) {
    ALUDEL_RETURN_IF_ERROR(
        AddVector({{p + "mlp.gate_proj.bias", config_.ffn}, {p + "mlp.up_proj.bias", config_.ffn}},
                  &layer->gate_up_bias));
    ALUDEL_RETURN_IF_ERROR(AddVector({{p + "mlp.down_proj.bias", hidden}}, &layer->down_bias));
  }
  return AddMatrix({{p + "mlp.down_proj", hidden}}, config_.ffn, &layer->down);
}

absl::Status LoadPlan::AddModel(Weights* weights) {
  const Part embedding{"model.embed_tokens", config_.vocab};
  ALUDEL_ASSIGN_OR_RETURN(Matrices table, OpenAll({embedding}, config_.hidden));
  ALUDEL_RETURN_IF_ERROR(AddMatrices(std::move(table), FormatOf(compute_), &weights->embedding));
  weights->layers.resize(config_.layers);
  for (int i = 0; i < config_.layers; ++i) ALUDEL_RETURN_IF_ERROR(AddLayer(i, &weights->layers[i]));
  ALUDEL_RETURN_IF_ERROR(AddVector({{"model.norm.weight", config_.hidden}}, &weights->final_norm));
  if (!HeadIsEmbedding(config_, compute_, format_)) {
    const Part head = config_.tied_embeddings ? embedding : Part{"lm_head", config_.vocab};
    ALUDEL_RETURN_IF_ERROR(AddMatrix({head}, config_.hidden, &weights->own_head));
  }
  return CheckStrays();
}

absl::Status LoadPlan::CheckStrays() const {
  for (const auto& [name, entry] : files_.entries()) {
    if (!absl::StartsWith(name, "model.layers.") || used_.count(entry) != 0) continue;
    const auto refuse = [&, &name = name](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat(files_.directory(), ": tensor ", name, " is ", what,
                                                     ", ", config_.architecture, " has none there (it has ",
                                                     config_.layers, " layers)"));
    };
    if (absl::EndsWith(name, ".weight")) return refuse("a weight");
    if (absl::EndsWith(name, ".bias") &&
        std::any_of(entry->data.begin(), entry->data.end(), [](uint8_t byte) { return byte != 0; })) {
      return refuse("a bias that is not zero");
    }
  }
  const LoraAdapter* adapter = files_.adapter();
  return adapter == nullptr ? absl::OkStatus() : adapter->CheckStrays(used_, files_.directory());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Weights>> Weights::Load(Device* device, const ModelFiles& files,
                                                       const ModelConfig& config, DType compute,
                                                       std::optional<WeightFormat> format, Stream stream,
                                                       const StreamOptions& options,
                                                       const LoadProgress& progress) {
  auto weights = std::make_unique<Weights>();
  LoadPlan plan(files, config, device, compute, format, stream);
  ALUDEL_RETURN_IF_ERROR(plan.AddModel(weights.get()));
  ALUDEL_ASSIGN_OR_RETURN(StreamedFiles streamed, StreamWeights(files, plan.TakeTasks(), options, progress));
  weights->hash = std::move(streamed.hash);
  weights->past_cache = streamed.past_cache;
  weights->kept_fp8 = plan.kept_fp8();
  weights->dequantized_fp8 = plan.dequantized_fp8();
  return weights;
}

absl::Status CheckWeights(const ModelFiles& files, const ModelConfig& config) {
  Weights nowhere;
  return LoadPlan(files, config, nullptr, DType::kF32, WeightFormat::kF32, Stream{}).AddModel(&nowhere);
}

namespace {

struct Counts {
  int64_t matrices = 0;  // without embedding and head
  int64_t vectors = 0;
};

Counts CountLayers(const ModelConfig& config) {
  const int64_t hidden = config.hidden;
  const int64_t qkv = config.q_dim() + 2 * config.kv_dim();
  Counts layer{qkv * hidden + hidden * config.q_dim() + 3 * hidden * config.ffn, 2 * hidden};
  if (config.qkv_bias) layer.vectors += qkv;
  if (config.o_bias) layer.vectors += hidden;
  if (config.mlp_bias) layer.vectors += 2 * config.ffn + hidden;
  if (config.qk_norm) layer.vectors += 2 * config.head_dim;
  return {config.layers * layer.matrices, config.layers * layer.vectors + hidden};
}

}  // namespace

int64_t CountParameters(const ModelConfig& config) {
  const Counts counts = CountLayers(config);
  const int64_t table = int64_t{config.vocab} * config.hidden;
  return counts.matrices + counts.vectors + table * (config.tied_embeddings ? 1 : 2);
}

int64_t LoadedBytes(const ModelConfig& config, DType compute, WeightFormat format) {
  const Counts counts = CountLayers(config);
  const int64_t table = int64_t{config.vocab} * config.hidden;
  const int64_t head = HeadIsEmbedding(config, compute, format) ? 0 : table;
  const double packed = static_cast<double>(counts.matrices + head) * BitsPerWeight(format) / 8;
  return static_cast<int64_t>(packed) + table * static_cast<int64_t>(SizeOf(compute)) +
         counts.vectors * static_cast<int64_t>(sizeof(float));
}

}  // namespace aludel
