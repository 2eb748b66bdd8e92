#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/evaluate/evaluate.h"

namespace aludel {
namespace {

constexpr double kTolerableF1 = 0.02;
constexpr int64_t kEnoughQuestions = 100;
constexpr double kTolerablePerplexity = 1.05;  // of the oracle's

std::string Size(const FormatResult& format) {
  if (format.bytes_vs_raw > 0.95) return "as many bytes as the raw cache";
  if (format.bytes_vs_raw > 0.5)
    return absl::StrFormat("%.0f %% of the raw cache's bytes", 100 * format.bytes_vs_raw);
  return absl::StrFormat("1/%.0f of the raw cache's bytes", 1 / format.bytes_vs_raw);
}

std::string Loss(const FormatResult& format, const EvaluateReport& report) {
  const double loss = report.oracle_f1 - format.f1;
  return absl::StrFormat("%s %.3f F1 (95 %%: %.3f to %.3f)", loss < 0 ? "gain" : "lose",
                         loss < 0 ? -loss : loss,
                         loss < 0 ? -format.f1_loss_ci95.high : format.f1_loss_ci95.low,
                         loss < 0 ? -format.f1_loss_ci95.low : format.f1_loss_ci95.high);
}

// Of formats whose bytes tell about a text, and not enough.
std::vector<std::string> LossesOnTexts(const EvaluateReport& report) {
  std::vector<std::string> sentences;
  for (const FormatResult& format : report.formats) {
    if (format.bytes_per_token <= 0) continue;
    std::vector<std::string> lost;
    for (size_t i = 0; i < format.ppl.size(); ++i) {
      const double share = format.ppl[i] / report.texts[i].oracle_ppl;
      // Of what is no number, too.
      if (!(share <= kTolerablePerplexity)) {
        lost.push_back(
            absl::StrFormat("%s (perplexity %.3f times local prefill's)", report.texts[i].name, share));
      }
    }
    if (lost.empty()) continue;
    sentences.push_back(absl::StrFormat("%s is not for prompts like %s: more than %g times is too much.",
                                        format.name, absl::StrJoin(lost, ", "), kTolerablePerplexity));
  }
  return sentences;
}

}  // namespace

std::vector<std::string> Verdict(const EvaluateReport& report) {
  const FormatResult* smallest = nullptr;  // that surely loses little
  const FormatResult* best = nullptr;
  for (const FormatResult& format : report.formats) {
    if (format.bytes_per_token <= 0) continue;  // a control
    if (best == nullptr || format.f1_loss_ci95.high < best->f1_loss_ci95.high) best = &format;
    if (format.f1_loss_ci95.high > kTolerableF1) continue;
    if (smallest == nullptr || format.bytes_per_token < smallest->bytes_per_token) smallest = &format;
  }
  std::vector<std::string> sentences;
  if (smallest != nullptr) {
    sentences.push_back(absl::StrFormat(
        "%s sends %s, and its answers %s against local prefill, on the same %d questions. It is the smallest "
        "format "
        "that surely loses less than %g.",
        smallest->name, Size(*smallest), Loss(*smallest, report), report.questions, kTolerableF1));
  } else if (best != nullptr) {
    sentences.push_back(
        absl::StrFormat("On these %d questions no format is sure to lose less than %g F1 against local "
                        "prefill. The nearest to it is %s: "
                        "it sends %s, and its answers %s.",
                        report.questions, kTolerableF1, best->name, Size(*best), Loss(*best, report)));
  }
  for (std::string& sentence : LossesOnTexts(report)) sentences.push_back(std::move(sentence));
  if (report.questions < kEnoughQuestions) {
    sentences.push_back(
        absl::StrFormat("Only %d questions: another sample may say something else (the oracle's own F1 is "
                        "%.3f, 95 %%: %.3f to %.3f). "
                        "Ask %d or more.",
                        report.questions, report.oracle_f1, report.oracle_f1_ci95.low,
                        report.oracle_f1_ci95.high, kEnoughQuestions));
  }
  return sentences;
}

}  // namespace aludel
