// aludel-eval: what each handoff format costs in bytes and computing, and what it loses.

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "runtime/evaluate/evaluate.h"
#include "runtime/status_macros.h"
#include "runtime/tool/flag_set.h"
#include "runtime/tool/machine_flags.h"
#include "runtime/tool/progress.h"
#include "runtime/tool/version.h"

namespace aludel {
namespace {

constexpr char kUsage[] =
    R"(aludel-eval compares handoff formats on questions: bytes per token, F1 and exact match of the answers, and
how far the consumer's next-token distributions move (KL, total variation) from those on its own cache. Every
format is decoded from its serialized frames. The zero-byte controls of the artifact stand beside the formats.

  aludel-eval --producer base --consumer chat --codec codec --qa questions.jsonl --formats all --out report

Questions are lines of {"context": ..., "question": ..., "answers": [...]}, of {"messages": [...]} as in OpenAI's batch
files, or of {"ids": [...]}, which a gateway's `capture` writes. Writes report.json, report.md and report.html, and
records.jsonl question by question, from which --resume goes on.)";

// As a shell would take it.
std::string CommandLine(int argc, char** argv) {
  std::vector<std::string> words;
  for (int i = 0; i < argc; ++i) {
    const absl::string_view word = argv[i];
    const bool plain = !word.empty() && absl::c_all_of(word, [](char c) {
      return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("-_./=,:+@%", c);
    });
    words.push_back(plain ? std::string(word)
                          : absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'"));
  }
  return absl::StrJoin(words, " ");
}

std::string Machine(const Device& device) {
  std::ifstream in("/proc/cpuinfo");
  std::string model;
  for (std::string line; model.empty() && std::getline(in, line);) {
    if (absl::StartsWith(line, "model name")) model = line.substr(std::min(line.size(), line.find(':') + 2));
  }
  return absl::StrCat(device.name(), " on ", model.empty() ? "an unnamed processor" : model, ", ",
                      std::thread::hardware_concurrency(), " threads");
}

// Rising numbers of tokens that are read before what a window of so many tokens ends with.
absl::StatusOr<std::vector<int64_t>> ParseUpgradeAfter(const std::string& text, int64_t window_tokens) {
  std::vector<int64_t> after;
  for (const absl::string_view word : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    int64_t tokens = 0;
    if (!absl::SimpleAtoi(word, &tokens) || tokens <= (after.empty() ? 0 : after.back()) ||
        tokens >= window_tokens / 2) {
      return absl::InvalidArgumentError(
          absl::StrFormat("--upgrade-after %s: found \"%s\", want rising numbers of tokens, from 1 and below "
                          "half of --window-tokens, %d",
                          text, word, window_tokens / 2));
    }
    after.push_back(tokens);
  }
  return after;
}

absl::Status Run(int argc, char** argv) {
  EvaluateJob job;
  std::string out;
  int64_t max_answer_tokens = job.max_answer_tokens;
  int64_t seed = 1;
  std::string upgrade_after;
  MachineFlags machine;
  FlagSet flags(kUsage);
  flags.Add("producer", "DIR", &job.producer, "model of the prefill side: its directory");
  flags.Add("consumer", "DIR", &job.consumer, "model of the decode side, BASE+ADAPTER with a LoRA adapter");
  flags.Add("codec", "DIR", &job.codec,
            "artifact directory; without it raw, lossless, int8 and int4 can be measured");
  flags.Add("qa", "FILE", &job.qa, "questions, JSON lines");
  flags.AddList(
      "text", "FILE", &job.texts,
      "plain text for perplexity; may be repeated: prose, code and other languages fare differently");
  flags.Add("formats", "LIST", &job.formats, "comma-separated formats and controls, or all");
  flags.Add("out", "DIR", &out, "where report.json, report.md and report.html go");
  flags.Add("questions", "N", &job.questions, "use the first N questions; 0: all");
  flags.Add("text-windows", "N", &job.text_windows, "windows of each text at most");
  flags.Add("window-tokens", "N", &job.window_tokens, "tokens of a window; its first half is handed over");
  flags.Add("upgrade-after", "LIST", &upgrade_after,
            "the loss of every cut NAME@N beside its NAME, token by token, where the other planes come after "
            "so many "
            "tokens of each --text; comma-separated, e.g. 16,64");
  flags.Add("max-answer-tokens", "N", &max_answer_tokens, "length at which answers are cut");
  flags.Add("max-num-batched-tokens", "N", &job.max_num_batched_tokens,
            "of one prefill step; frames are cut there");
  machine.AddCompute(&flags, job.compute, "arithmetic of both models and the codec");
  machine.AddWeights(&flags);
  machine.AddKvDtype(&flags, "of both models' caches, but of the oracle's, which is bf16");
  flags.Add("unrounded-oracle", &job.unrounded_oracle,
            "compare with the consumer as it is stored: KL then holds what --weights loses");
  flags.Add("seed", "N", &seed, "of the bootstrap");
  flags.Add("resume", &job.resume, "go on with the interrupted evaluation in --out");
  machine.AddDevice(&flags);
  machine.AddThreads(&flags);
  flags.AddVersion(std::string("aludel-eval ") + kVersion);
  ALUDEL_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (const auto answer = flags.Answer(); answer.has_value()) {
    std::fputs(answer->c_str(), stdout);
    return absl::OkStatus();
  }
  if (job.producer.empty() || job.consumer.empty() || job.qa.empty() || out.empty()) {
    return absl::InvalidArgumentError("--producer, --consumer, --qa and --out are needed (see --help)");
  }
  if (max_answer_tokens < 1 || job.window_tokens < 4 || job.text_windows < 1 ||
      job.max_num_batched_tokens < 1) {
    return absl::InvalidArgumentError(
        "want --max-answer-tokens, --text-windows and --max-num-batched-tokens above 0 and --window-tokens "
        "at least 4");
  }
  ALUDEL_ASSIGN_OR_RETURN(job.upgrade_after, ParseUpgradeAfter(upgrade_after, job.window_tokens));
  ALUDEL_ASSIGN_OR_RETURN(job.compute, machine.Compute());
  ALUDEL_ASSIGN_OR_RETURN(job.weights, machine.Weights());
  ALUDEL_ASSIGN_OR_RETURN(job.kv_dtype, machine.KvDtype());
  if (job.unrounded_oracle && !job.weights.has_value()) {
    return absl::InvalidArgumentError("--unrounded-oracle says nothing without --weights, which rounds");
  }
  job.max_answer_tokens = static_cast<int>(max_answer_tokens);
  job.seed = static_cast<uint64_t>(seed);
  job.log = out + "/records.jsonl";
  ALUDEL_ASSIGN_OR_RETURN(const auto device, machine.Open());
  StopOnSignals();
  ProgressBar bar;
  const EvaluateProgress progress = [&bar](absl::string_view stage, int64_t done, int64_t total,
                                           absl::string_view scores) {
    bar.Update(stage, done, total, scores);
    return !StopAsked();
  };
  ALUDEL_ASSIGN_OR_RETURN(EvaluateReport report, Evaluate(job, device.get(), progress));
  report.command = CommandLine(argc, argv);
  report.machine = Machine(*device);
  report.date = absl::FormatTime("%Y-%m-%d %H:%M UTC", absl::Now(), absl::UTCTimeZone());
  bar.Break();
  ALUDEL_RETURN_IF_ERROR(WriteReport(report, out));
  std::fputs(ReportMarkdown(report).c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace
}  // namespace aludel

int main(int argc, char** argv) {
  const absl::Status status = aludel::Run(argc, argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "aludel-eval: %s\n", std::string(status.message()).c_str());
  return absl::IsCancelled(status) ? 130 : 2;
}
