#include <algorithm>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "runtime/bench/adapter_benchmark.h"
#include "runtime/bench/engine_benchmark.h"
#include "runtime/evaluate/score.h"
#include "runtime/status_macros.h"
#include "runtime/tool/machine_flags.h"
#include "runtime/tool/progress.h"
#include "server/bench/commands.h"

namespace aludel {
namespace {

constexpr char kUsage[] =
    R"(aludel-bench engine measures what continuous batching and the prefix cache are worth: requests that share a system
prompt, all at once, against the same requests one at a time, on the engine of the servers in this process. Prompts are
random ids; answers are greedy and have a fixed length.

  aludel-bench engine --model deploy/demo/base --requests 64

"Of the forward passes": the time that the same tokens take through the model alone, in the fewest passes (what requests
share once, the rest of their prompts in full chunks, then all answers in step), measured in the same run, over the
engine's time. Models of make-model have no tokenizer: --tokenizer deploy/demo/base will do.

With --adapters N it measures in its place what N LoRA adapters in one batch cost a step of the model: requests that
decode, each with one of N random adapters of --rank over every linear layer, against the same step of the base alone.

  aludel-bench engine --model /tmp/llama-1b --adapters 8 --rank 16 --requests 8)";

constexpr double kMilli = 1e3;

void Print(const char* name, const EngineRun& run, int64_t output_tokens) {
  const auto tokens = static_cast<double>(run.requests * output_tokens);
  absl::PrintF("| %s | %d | %.2f | %.1f | %.1f %% | %.1f / %.1f | %.2f / %.2f | %.2f | %.0f %% |\n", name,
               run.requests, run.seconds, tokens / run.seconds,
               100 * static_cast<double>(run.prefix_hits) / static_cast<double>(run.prefix_queries),
               kMilli * Percentile(run.ttft, 0.5), kMilli * Percentile(run.ttft, 0.99),
               run.gaps.empty() ? 0 : kMilli * Percentile(run.gaps, 0.5),
               run.gaps.empty() ? 0 : kMilli * Percentile(run.gaps, 0.99),
               run.gaps.empty() ? 0 : kMilli * Percentile(run.gaps, 1),
               100 * run.forward_seconds / run.seconds);
}

void Print(const EngineBenchmark& result, const EngineBenchmarkOptions& options) {
  absl::PrintF("%d shared and %d own prompt tokens, %d tokens of answer\n\n", options.shared_tokens,
               options.own_tokens, options.output_tokens);
  absl::PrintF(
      "| | requests | seconds | tokens/s | prompt tokens from the cache | TTFT p50 / p99, ms | ITL p50 / "
      "p99, ms | "
      "longest ITL, ms | of the forward passes |\n|---|---|---|---|---|---|---|---|---|\n");
  Print("at once", result.together, options.output_tokens);
  Print("one at a time", result.alone, options.output_tokens);
  absl::PrintF("\nof the prompts' tokens, %.1f %% had been asked for before\n",
               100 * static_cast<double>((options.requests - 1) * options.shared_tokens) /
                   static_cast<double>(options.requests * (options.shared_tokens + options.own_tokens)));
  const auto rate = [](const EngineRun& run) { return static_cast<double>(run.requests) / run.seconds; };
  absl::PrintF("throughput at once over one at a time: %.2f\n", rate(result.together) / rate(result.alone));
  absl::PrintF(
      "longest wait of a running request for its next token: %d steps, the bound is %d (%d preemptions)\n",
      result.together.most_steps, result.step_bound, result.together.preemptions);
  absl::PrintF("answers with the same tokens both ways: %d of %d\n", result.same_answers,
               result.alone.requests);
}

void Print(const AdapterBenchmark& result, const AdapterBenchmarkOptions& options) {
  const auto line = [](const std::string& name, const StepTime& step, const StepTime& base) {
    const std::string spread = step.spread.has_value() ? absl::StrFormat("%.1f %%", 100 * *step.spread) : "-";
    absl::PrintF("| %s | %.2f | %.3f | %s | %.2f | %.3f |\n", name, kMilli * step.seconds,
                 step.seconds / base.seconds, spread, kMilli * step.processor_seconds,
                 step.processor_seconds / base.processor_seconds);
  };
  absl::PrintF(
      "| step (median of %d) | ms | over the base's | spread | processor ms | over the base's |\n"
      "|---|---|---|---|---|---|\n",
      options.steps);
  line(absl::StrFormat("%d rows decode, base alone", options.rows), result.base, result.base);
  line(absl::StrFormat("%d rows over %d adapters of rank %d", options.rows, options.adapters, options.rank),
       result.adapters, result.base);
  line(absl::StrFormat("%d rows of one adapter", options.rows), result.same, result.base);
  line(absl::StrFormat("%d tokens of a prompt, base alone", options.prefill), result.base_prefill,
       result.base_prefill);
  line(absl::StrFormat("%d tokens of a prompt, one adapter", options.prefill), result.adapter_prefill,
       result.base_prefill);
  const auto megabytes = [](int64_t bytes) { return static_cast<double>(bytes) / 1e6; };
  absl::PrintF("\nan adapter: %.1f MB on the device, loaded in %.0f ms\n", megabytes(result.adapter_bytes),
               kMilli * result.load_seconds);
  const int64_t read = result.adapter_bytes * std::min(options.adapters, options.rows);
  absl::PrintF(
      "weights that a step reads: %.0f MB of the base and %.0f of the adapters, %.3f times the base's\n",
      megabytes(result.base_bytes), megabytes(read), 1 + megabytes(read) / megabytes(result.base_bytes));
}

absl::Status MeasureAdapters(AdapterBenchmarkOptions options, const EngineBenchmarkOptions& engine,
                             Device* device) {
  options.model = engine.model;
  options.rows = engine.requests;
  options.prefill = engine.max_num_batched_tokens;
  options.compute = engine.compute;
  options.weights = engine.weights;
  ProgressBar bar;
  ALUDEL_ASSIGN_OR_RETURN(const AdapterBenchmark result,
                          BenchmarkAdapters(options, device, [&](int64_t done, int64_t total) {
                            bar.Update("steps", done, total);
                            return !StopAsked();
                          }));
  bar.Break();
  Print(result, options);
  return absl::OkStatus();
}

}  // namespace

absl::Status EngineCommand(int argc, char** argv) {
  EngineBenchmarkOptions options;
  MachineFlags machine;
  FlagSet flags(kUsage);
  flags.Add("model", "DIR", &options.model, "its directory, or BASE+ADAPTER with a LoRA adapter");
  flags.Add("tokenizer", "DIR", &options.tokenizer, "where the tokenizer is; empty: in the model directory");
  flags.Add("requests", "N", &options.requests, "at once");
  flags.Add("alone", "N", &options.alone, "of them that are also run one at a time; 0: all");
  flags.Add("shared-tokens", "N", &options.shared_tokens, "that all prompts begin with");
  flags.Add("own-tokens", "N", &options.own_tokens, "of each prompt behind them");
  flags.Add("output-tokens", "N", &options.output_tokens, "of each answer");
  flags.Add("max-num-batched-tokens", "N", &options.max_num_batched_tokens,
            "of one engine step, as engine.max_num_batched_tokens of the servers");
  AdapterBenchmarkOptions adapters{.adapters = 0};
  flags.Add("adapters", "N", &adapters.adapters, "in one batch; 0: measure the engine without any");
  flags.Add("rank", "N", &adapters.rank, "of each adapter");
  flags.Add("steps", "N", &adapters.steps, "of each kind, with --adapters");
  machine.AddCompute(&flags, options.compute, "arithmetic of the model");
  machine.AddWeights(&flags);
  machine.AddKvDtype(&flags, "of the cache");
  machine.AddDevice(&flags);
  machine.AddThreads(&flags);
  ALUDEL_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.help_asked()) {
    std::fputs(flags.Help().c_str(), stdout);
    return absl::OkStatus();
  }
  if (options.model.empty()) return absl::InvalidArgumentError("--model is needed (see --help)");
  ALUDEL_ASSIGN_OR_RETURN(options.compute, machine.Compute());
  ALUDEL_ASSIGN_OR_RETURN(options.weights, machine.Weights());
  ALUDEL_ASSIGN_OR_RETURN(options.kv_dtype, machine.KvDtype());
  ALUDEL_ASSIGN_OR_RETURN(const auto device, machine.Open());
  StopOnSignals();
  if (adapters.adapters > 0) return MeasureAdapters(adapters, options, device.get());
  ProgressBar bar;
  ALUDEL_ASSIGN_OR_RETURN(const EngineBenchmark result,
                          BenchmarkEngine(options, device.get(), [&](int64_t done, int64_t total) {
                            bar.Update("tokens", done, total);
                            return !StopAsked();
                          }));
  bar.Break();
  Print(result, options);
  return absl::OkStatus();
}

}  // namespace aludel
