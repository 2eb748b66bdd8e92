#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/device.h"
#include "kernels/weight_format.h"
#include "runtime/evaluate/allocation.h"
#include "runtime/evaluate/layer_error.h"
#include "runtime/evaluate/score.h"

namespace aludel {

// aludel-eval without its command line: what handoff formats cost and lose, all side by side on the same
// questions. Every format goes through its serialized frames. All of a prompt but its last token is
// handed over.
struct EvaluateJob {
  std::string producer;            // model, as ModelPath::Parse takes it
  std::string consumer;            // likewise
  std::string codec;               // artifact directory, or "" for formats that need none
  std::string qa;                  // question file
  std::vector<std::string> texts;  // files of plain text for perplexity; may be empty
  // "all", or a comma-separated list of formats and controls.
  std::string formats = "all";
  int64_t questions = 0;  // 0: all
  int64_t text_windows = 32;
  int64_t window_tokens = 512;
  // Of every cut NAME@N beside its NAME: tokens of a text that have been read when the other planes come
  // (upgrade_meter.h). Empty: not measured.
  std::vector<int64_t> upgrade_after;
  int max_answer_tokens = 24;
  DType compute = DType::kF32;
  std::optional<WeightFormat> weights;  // of both models: fp8, int8 or int4, or none
  bool unrounded_oracle = false;        // `weights` are not the oracle's: KL then holds what they lose
  DType kv_dtype = DType::kBf16;  // of the producer's cache and of what formats fill; the oracle's is bf16
  int64_t max_num_batched_tokens = 256;  // of the producer's prefill, hence of frames; the servers' default
  uint64_t seed = 1;                     // of the bootstrap
  std::string log;                       // where every question's record is kept (evaluation_log.h), or ""
  bool resume = false;                   // go on where `log` ends
};

struct FormatResult {
  std::string name;
  // Place among the artifact's formats of preset aludel by the loss that calibration measured for this
  // consumer, from 0 = the coarsest.
  std::optional<int> tier;
  std::optional<double> max_kl;  // what its calibration was asked for
  int recomputed_layers = 0;
  int64_t recomputed_tokens = 1;  // at a prompt's head and tail; the last token always is one
  double consumer_compute_share = 0;
  double bytes_per_token = 0;
  double bytes_vs_raw = 0;
  double f1 = 0;
  Interval f1_ci95;
  Interval f1_loss_ci95;  // of oracle minus format, paired
  double em = 0;
  double kl = 0;
  Interval kl_ci95;
  double kl_p95 = 0;
  double tv = 0;
  std::vector<double> ppl;  // of EvaluateReport::texts
  double encode_tokens_per_s = 0;
  double reconstruct_tokens_per_s = 0;
  std::vector<LayerError> layer_errors;  // per layer
  std::vector<Share> shares;             // of bytes_per_token
};

// One question as a reader wants to see it: what each format answered beside the oracle.
struct Example {
  struct Shown {
    std::string text;
    double f1 = 0;
    double kl = 0;  // mean over the oracle's answer tokens
  };
  int64_t number = 0;  // from 1
  std::string prompt;  // its message; of a long one the end
  std::string oracle;
  double oracle_f1 = 0;
  std::vector<Shown> formats;  // as EvaluateReport::formats
};

// Perplexity of a text on the consumer's own cache.
struct TextResult {
  std::string name;  // of the file
  double oracle_ppl = 0;
};

// KL(oracle || format) over a text's tokens, where the planes that are missing at first come later.
struct UpgradeCurve {
  std::optional<int64_t> after;   // tokens read over the base; none: the upgrade never comes
  bool again = false;             // these are read once more when it has come
  std::vector<double> kl;         // [UpgradeResult::spans]
  std::vector<Interval> kl_ci95;  // of windows
};

struct UpgradeResult {
  std::string text;    // of the file
  std::string format;  // "NAME@N"
  int64_t windows = 0;
  // Frame headers included: of what comes first, of what comes later, and of frames that come whole.
  double base_bytes_per_token = 0;
  double upgrade_bytes_per_token = 0;
  double whole_bytes_per_token = 0;
  std::vector<int64_t> spans;  // their ends; the first begins at 0
  std::vector<UpgradeCurve> curves;
};

struct EvaluateReport {
  std::string producer, consumer, producer_hash, consumer_hash, compute;
  int64_t questions = 0;
  int64_t prompt_tokens = 0;
  int64_t answer_tokens = 0;  // of the oracle, end tokens counted
  // Of whole prompts in the consumer's and the producer's prefill.
  double local_tokens_per_s = 0;
  double producer_tokens_per_s = 0;
  double oracle_f1 = 0;
  Interval oracle_f1_ci95;
  double oracle_em = 0;
  std::vector<TextResult> texts;
  std::vector<FormatResult> formats;
  std::vector<UpgradeResult> upgrades;  // by text, then by format
  std::vector<Example> examples;        // at most kMaxExamples, those that differ most first
  std::string command, machine, date;   // set by the tool; may be empty
  std::string kv_dtype;                 // of what formats fill
};

inline constexpr size_t kMaxExamples = 200;

// Called as work proceeds, with the scores so far in words; false ends with Cancelled.
using EvaluateProgress =
    std::function<bool(absl::string_view stage, int64_t done, int64_t total, absl::string_view scores)>;

absl::StatusOr<EvaluateReport> Evaluate(const EvaluateJob& job, Device* device,
                                        const EvaluateProgress& progress);

// A line for each format whose loss on these questions is above what its calibration was asked for (the lower
// end of its 95 % interval is).
std::vector<std::string> LossWarnings(const EvaluateReport& report);
// What the figures come to, in sentences: which format to take, and how sure that is.
std::vector<std::string> Verdict(const EvaluateReport& report);
// The report as JSON text.
std::string ReportJson(const EvaluateReport& report);
// Writes report.json, report.md and report.html into `directory`, which is created where it does not exist.
absl::Status WriteReport(const EvaluateReport& report, const std::string& directory);
std::string ReportMarkdown(const EvaluateReport& report);
// A page that needs nothing else: the verdict, plots of quality against bytes, tables and examples.
std::string ReportHtml(const EvaluateReport& report);

}  // namespace aludel
