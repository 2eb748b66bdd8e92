#include "runtime/bench/adapter_benchmark.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "runtime/bench/halves_spread.h"
#include "runtime/bench/make_adapter.h"
#include "runtime/kv/block_pool.h"
#include "runtime/model/transformer.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int kBlockTokens = 16;

using Adapters = std::vector<std::unique_ptr<LoraWeights>>;

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size()) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double Since(std::chrono::steady_clock::time_point begun) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

double ProcessorSeconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Of steps of one kind.
struct Times {
  std::vector<double> seconds, processor_seconds;

  // Over those of `base`, which took turns with them.
  StepTime Over(const Times& base) const {
    std::vector<double> ratios;
    for (size_t i = 0; i < seconds.size(); ++i) ratios.push_back(seconds[i] / base.seconds[i]);
    return {Median(seconds), Median(processor_seconds), HalvesSpread(ratios)};
  }
};

// All matrices, the head too; of the embedding a step reads single rows.
int64_t BytesOfStep(const ModelConfig& config, WeightFormat format) {
  const int64_t layer =
      int64_t{config.hidden} * (2 * config.q_dim() + 2 * config.kv_dim() + 3 * int64_t{config.ffn});
  const int64_t weights = config.layers * layer + int64_t{config.vocab} * config.hidden;
  return static_cast<int64_t>(static_cast<double>(weights) * BitsPerWeight(format) / 8);
}

absl::StatusOr<Adapters> MakeAdapters(const AdapterBenchmarkOptions& options, Device* device,
                                      const Transformer& model, double* load_seconds) {
  std::string directory = std::filesystem::temp_directory_path() / "aludel-adapters-XXXXXX";
  if (::mkdtemp(directory.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot make a directory ", directory));
  }
  const absl::Cleanup remove = [&] { std::filesystem::remove_all(directory); };
  Adapters adapters;
  std::vector<double> seconds;
  for (int64_t i = 0; i < options.adapters; ++i) {
    const std::string path = absl::StrCat(directory, "/", i);
    ALUDEL_RETURN_IF_ERROR(MakeAdapter(
        {.base = options.model, .out = path, .rank = options.rank, .seed = static_cast<uint64_t>(i + 1)}));
    const auto begun = std::chrono::steady_clock::now();
    ALUDEL_ASSIGN_OR_RETURN(auto adapter, LoraWeights::Load(device, path,
                                                            {options.model, model.hash(), model.config(),
                                                             model.options().compute}));
    seconds.push_back(Since(begun));
    adapters.push_back(std::move(adapter));
    std::filesystem::remove_all(path);
  }
  *load_seconds = Median(seconds);
  return adapters;
}

// Steps over sequences whose cache is full of what memory held: time does not depend on it.
class Steps {
 public:
  Steps(Transformer* model, BlockPool* pool) : model_(model), pool_(pool) {}

  absl::Status Init(int64_t sequences, int64_t tokens) {
    tables_ = std::vector<BlockTable>(sequences);
    for (BlockTable& table : tables_) ALUDEL_RETURN_IF_ERROR(table.Grow(*pool_, tokens));
    return absl::OkStatus();
  }

  // One step of `tokens` tokens at `position` of each of the first `sequences`, which is added to `times`.
  absl::Status Run(int64_t sequences, int64_t position, int64_t tokens,
                   const std::function<const LoraWeights*(int64_t)>& adapter, Times* times) {
    ids_.resize(tokens, 1);
    std::vector<BatchItem> items(sequences);
    for (int64_t i = 0; i < sequences; ++i) {
      items[i].ids = ids_;
      items[i].position = position;
      items[i].blocks = tables_[i].ids();
      items[i].wants_logits = true;
      items[i].adapter = adapter(i);
    }
    const auto begun = std::chrono::steady_clock::now();
    const double processor_begun = ProcessorSeconds();
    ALUDEL_RETURN_IF_ERROR(model_->Forward(absl::MakeSpan(items), *pool_, &logits_));
    times->processor_seconds.push_back(ProcessorSeconds() - processor_begun);
    times->seconds.push_back(Since(begun));
    return absl::OkStatus();
  }

 private:
  Transformer* const model_;
  BlockPool* const pool_;
  std::vector<BlockTable> tables_;
  std::vector<int32_t> ids_;
  std::vector<float> logits_;
};

}  // namespace

absl::StatusOr<AdapterBenchmark> BenchmarkAdapters(
    const AdapterBenchmarkOptions& options, Device* device,
    const std::function<bool(int64_t done, int64_t total)>& progress) {
  if (std::min({options.adapters, options.rows, options.context, options.prefill, options.steps}) < 1) {
    return absl::InvalidArgumentError("adapters, rows, context, prefill and steps want positive numbers");
  }
  ALUDEL_ASSIGN_OR_RETURN(const auto model,
                          Transformer::Load(device, options.model,
                                            {.compute = options.compute,
                                             .weights = options.weights,
                                             .max_rows = std::max(options.rows, options.prefill)}));
  AdapterBenchmark result;
  ALUDEL_ASSIGN_OR_RETURN(const Adapters adapters,
                          MakeAdapters(options, device, *model, &result.load_seconds));
  result.base_bytes = BytesOfStep(model->config(), model->options().weight_format());
  result.adapter_bytes = static_cast<int64_t>(adapters.front()->bytes());
  const int64_t tokens = std::max(options.context + 1, options.prefill);
  const int64_t blocks = options.rows * ((tokens + kBlockTokens - 1) / kBlockTokens);
  ALUDEL_ASSIGN_OR_RETURN(
      const auto pool, BlockPool::Create(device, model->MakeKvLayout(blocks, kBlockTokens, options.compute)));
  Steps steps(model.get(), pool.get());
  ALUDEL_RETURN_IF_ERROR(steps.Init(options.rows, tokens));
  Times base, mixed, same, base_prefill, prefill;
  const auto none = [](int64_t) -> const LoraWeights* { return nullptr; };
  const auto each = [&](int64_t i) { return adapters[i % options.adapters].get(); };
  const auto first = [&](int64_t) -> const LoraWeights* { return adapters.front().get(); };
  for (int64_t i = 0; i < options.steps; ++i) {
    if (!progress(i, options.steps)) return absl::CancelledError("stopped");
    ALUDEL_RETURN_IF_ERROR(steps.Run(options.rows, options.context, 1, none, &base));
    ALUDEL_RETURN_IF_ERROR(steps.Run(options.rows, options.context, 1, each, &mixed));
    ALUDEL_RETURN_IF_ERROR(steps.Run(options.rows, options.context, 1, first, &same));
    ALUDEL_RETURN_IF_ERROR(steps.Run(1, 0, options.prefill, none, &base_prefill));
    ALUDEL_RETURN_IF_ERROR(steps.Run(1, 0, options.prefill, first, &prefill));
  }
  result.base = base.Over(base);
  result.adapters = mixed.Over(base);
  result.same = same.Over(base);
  result.base_prefill = base_prefill.Over(base_prefill);
  result.adapter_prefill = prefill.Over(base_prefill);
  return result;
}

}  // namespace aludel
