#include "runtime/bench/engine_benchmark.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "runtime/bench/forward_benchmark.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/engine_stats.h"
#include "runtime/engine/scheduler.h"
#include "runtime/model/transformer.h"
#include "runtime/model/transformer_options.h"
#include "runtime/status_macros.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace aludel {
namespace {

constexpr int kBlockTokens = 16;
constexpr int kRepeats = 3;                        // of the forward passes alone; the best counts
constexpr std::chrono::milliseconds kLookUp(100);  // how often a stop is looked for

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Notes when each token of one request came.
class Watcher : public SequenceListener {
 public:
  void OnToken(const TokenEvent& event) override {
    absl::MutexLock lock(&mutex_);
    times_.push_back(Clock::now());
    steps_.push_back(event.step);
    tokens_.push_back(event.id);
  }
  void OnDone(const absl::Status& status, const SequenceResult& /*result*/) override {
    absl::MutexLock lock(&mutex_);
    status_ = status;
    done_ = true;
  }
  // False where it takes longer.
  bool WaitDone(std::chrono::milliseconds limit) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&done_), absl::FromChrono(limit));
  }
  int64_t generated() {
    absl::MutexLock lock(&mutex_);
    return static_cast<int64_t>(tokens_.size());
  }

  // Once done.
  const absl::Status& status() const { return status_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  void AddTo(Clock::time_point begun, EngineRun* run) const {
    run->ttft.push_back(Seconds(begun, times_.front()));
    for (size_t i = 1; i < times_.size(); ++i) {
      run->gaps.push_back(Seconds(times_[i - 1], times_[i]));
      run->most_steps = std::max(run->most_steps, steps_[i] - steps_[i - 1]);
    }
  }

 private:
  absl::Mutex mutex_;
  bool done_ = false;
  absl::Status status_;
  std::vector<Clock::time_point> times_;
  std::vector<uint64_t> steps_;
  std::vector<int32_t> tokens_;
};

class Benchmark {
 public:
  Benchmark(const EngineBenchmarkOptions& options, Device* device,
            const std::function<bool(int64_t, int64_t)>& progress)
      : options_(options),
        device_(device),
        progress_(progress),
        alone_(options.alone == 0 ? options.requests : std::min(options.alone, options.requests)) {}

  absl::StatusOr<EngineBenchmark> Run() {
    ALUDEL_RETURN_IF_ERROR(Load());
    EngineBenchmark result;
    std::vector<std::vector<int32_t>> together, alone;
    ForwardBenchmark forward(device_, model_.get(),
                             {.shared_tokens = options_.shared_tokens,
                              .own_tokens = options_.own_tokens,
                              .output_tokens = options_.output_tokens,
                              .block_tokens = kBlockTokens,
                              .step_tokens = options_.max_num_batched_tokens,
                              .kv_dtype = options_.kv_dtype});
    // Once in vain, so that memory and caches are warm for both.
    ALUDEL_RETURN_IF_ERROR(
        forward.Run(options_.requests, std::min<int64_t>(2, options_.output_tokens)).status());
    ALUDEL_ASSIGN_OR_RETURN(result.together, RunTogether(&together));
    ALUDEL_ASSIGN_OR_RETURN(result.alone, RunAlone(&alone));
    ALUDEL_ASSIGN_OR_RETURN(const ForwardSeconds all, Best(&forward, options_.requests));
    ALUDEL_ASSIGN_OR_RETURN(const ForwardSeconds one, Best(&forward, 1));
    result.together.forward_seconds = all.Sum();
    result.alone.forward_seconds = one.shared + static_cast<double>(alone_) * one.own;
    for (size_t i = 0; i < alone.size(); ++i) result.same_answers += alone[i] == together[i] ? 1 : 0;
    result.step_bound = MostStepsToAToken(options_.requests, options_.max_num_batched_tokens);
    return result;
  }

 private:
  int64_t Length() const { return options_.shared_tokens + options_.own_tokens + options_.output_tokens; }

  absl::Status Load() {
    if (options_.requests < 1 || options_.alone < 0 || options_.shared_tokens < 0 ||
        options_.own_tokens < 1 || options_.output_tokens < 1) {
      return absl::InvalidArgumentError(
          "want --requests, --own-tokens and --output-tokens above 0, --shared-tokens and --alone at least "
          "0");
    }
    ALUDEL_ASSIGN_OR_RETURN(tokenizer_,
                            Tokenizer::Load(options_.tokenizer.empty() ? ModelPath::Parse(options_.model).base
                                                                       : options_.tokenizer));
    TransformerOptions transformer;
    transformer.compute = options_.compute;
    transformer.weights = options_.weights;
    transformer.max_rows = options_.max_num_batched_tokens;
    ALUDEL_ASSIGN_OR_RETURN(model_,
                            Transformer::Load(device_, ModelPath::Parse(options_.model), transformer));
    if (Length() > model_->context()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "prompt and answer have %d tokens, the model's context is %d", Length(), model_->context()));
    }
    std::mt19937 random(1);
    std::uniform_int_distribution<int32_t> any(0, static_cast<int32_t>(model_->config().vocab) - 1);
    prompts_.resize(options_.requests);
    for (size_t i = 0; i < prompts_.size(); ++i) {
      if (i > 0) prompts_[i].assign(prompts_[0].begin(), prompts_[0].begin() + options_.shared_tokens);
      while (static_cast<int64_t>(prompts_[i].size()) < options_.shared_tokens + options_.own_tokens) {
        prompts_[i].push_back(any(random));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Engine>> NewEngine() {
    const int64_t blocks = (Length() + kBlockTokens - 1) / kBlockTokens;
    return Engine::Start(model_.get(), tokenizer_.get(),
                         {.kv_blocks = blocks * options_.requests,
                          .block_tokens = kBlockTokens,
                          .kv_dtype = options_.kv_dtype,
                          .max_context = std::min(model_->context(), Length() + 1),
                          .max_num_batched_tokens = options_.max_num_batched_tokens,
                          .max_num_seqs = static_cast<int>(options_.requests)});
  }

  absl::Status Ask(Engine& engine, int64_t request, const std::shared_ptr<Watcher>& watcher) const {
    GenerateSpec spec{.prompt = prompts_[request]};
    spec.sampling.temperature = 0;
    spec.sampling.max_tokens = options_.output_tokens;
    spec.sampling.ignore_eos = true;
    return engine.Generate(std::move(spec), watcher).status();
  }

  // Waits for `watchers` to end. `done` tokens were generated before them.
  absl::Status Await(const std::vector<std::shared_ptr<Watcher>>& watchers, int64_t done) const {
    const int64_t total = (options_.requests + alone_) * options_.output_tokens;
    for (const auto& watcher : watchers) {
      while (!watcher->WaitDone(kLookUp)) {
        int64_t generated = done;
        for (const auto& one : watchers) generated += one->generated();
        if (!progress_(generated, total)) return absl::CancelledError("the benchmark was interrupted");
      }
      ALUDEL_RETURN_IF_ERROR(watcher->status());
    }
    return absl::OkStatus();
  }

  static void ReadCounters(const Engine& engine, EngineRun* run) {
    const EngineStats stats = engine.stats();
    run->prefix_queries = stats.prefix_queries;
    run->prefix_hits = stats.prefix_hits;
    run->preemptions = stats.preemptions;
  }

  absl::StatusOr<EngineRun> RunTogether(std::vector<std::vector<int32_t>>* answers) {
    EngineRun run{.requests = options_.requests};
    ALUDEL_ASSIGN_OR_RETURN(const auto engine, NewEngine());
    std::vector<std::shared_ptr<Watcher>> watchers;
    const Clock::time_point begun = Clock::now();
    for (int64_t i = 0; i < options_.requests; ++i) {
      watchers.push_back(std::make_shared<Watcher>());
      ALUDEL_RETURN_IF_ERROR(Ask(*engine, i, watchers.back()));
    }
    ALUDEL_RETURN_IF_ERROR(Await(watchers, 0));
    run.seconds = Seconds(begun, Clock::now());
    for (const auto& watcher : watchers) {
      watcher->AddTo(begun, &run);
      answers->push_back(watcher->tokens());
    }
    ReadCounters(*engine, &run);
    return run;
  }

  absl::StatusOr<EngineRun> RunAlone(std::vector<std::vector<int32_t>>* answers) {
    EngineRun run{.requests = alone_};
    ALUDEL_ASSIGN_OR_RETURN(const auto engine, NewEngine());
    const Clock::time_point begun = Clock::now();
    for (int64_t i = 0; i < alone_; ++i) {
      const auto watcher = std::make_shared<Watcher>();
      const Clock::time_point asked = Clock::now();
      ALUDEL_RETURN_IF_ERROR(Ask(*engine, i, watcher));
      ALUDEL_RETURN_IF_ERROR(Await({watcher}, (options_.requests + i) * options_.output_tokens));
      watcher->AddTo(asked, &run);
      answers->push_back(watcher->tokens());
    }
    run.seconds = Seconds(begun, Clock::now());
    ReadCounters(*engine, &run);
    return run;
  }

  // Of each part.
  absl::StatusOr<ForwardSeconds> Best(ForwardBenchmark* forward, int64_t requests) const {
    ForwardSeconds best;
    for (int i = 0; i < kRepeats; ++i) {
      ALUDEL_ASSIGN_OR_RETURN(const ForwardSeconds run, forward->Run(requests, options_.output_tokens));
      best = i == 0 ? run : ForwardSeconds{std::min(best.shared, run.shared), std::min(best.own, run.own)};
    }
    return best;
  }

  const EngineBenchmarkOptions options_;
  Device* const device_;
  const std::function<bool(int64_t, int64_t)> progress_;
  const int64_t alone_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Transformer> model_;
  std::vector<std::vector<int32_t>> prompts_;
};

}  // namespace

absl::StatusOr<EngineBenchmark> BenchmarkEngine(
    const EngineBenchmarkOptions& options, Device* device,
    const std::function<bool(int64_t done, int64_t total)>& progress) {
  return Benchmark(options, device, progress).Run();
}

}  // namespace aludel
