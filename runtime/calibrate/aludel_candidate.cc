#include "runtime/calibrate/aludel_candidate.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace aludel {
namespace {

std::string Percents(const std::vector<double>& errors) {
  return absl::StrJoin(
      errors, "/", [](std::string* out, double error) { absl::StrAppendFormat(out, "%.2f%%", 100 * error); });
}

std::string Trained(const FittedDecoder& fit) {
  if (fit.train_error.empty()) return "";
  const std::string cut = fit.cut_from > 0 ? absl::StrFormat("; training was cut to %d of %d steps for time",
                                                             fit.steps, fit.cut_from)
                                           : "";
  return absl::StrFormat("; error of K and V %s trained, %s held out%s", Percents(fit.train_error),
                         Percents(fit.held_out_error), cut);
}

std::string Tuned(const FittedDecoder& fit) {
  if (!fit.tuned.has_value()) return "";
  return absl::StrFormat("; KL tuned from %.4f to %.4f", fit.tuned->first_kl, fit.tuned->last_kl);
}

}  // namespace

double AludelCandidate::Worst(double HandoffProbe::Result::*figure) const {
  double worst = 0;
  for (const HandoffProbe::Result& result : measured) worst = std::max(worst, result.*figure);
  return worst;
}

std::string AludelCandidate::Describe(size_t consumer, const std::string& name, double raw_bytes) const {
  const FittedDecoder& fit = decoders[consumer];
  const HandoffProbe::Result& result = measured[consumer];
  const std::string ranks = absl::StrJoin(
      shape.groups, "+", [](std::string* out, const AludelGroup& g) { absl::StrAppend(out, g.rank); });
  return absl::StrFormat(
      "p=%d, %s: rank %s, %.1f bytes/token (1/%.0f of raw), MLP of %d%s%s; KL %.4f on held-out prompts, "
      "at most %.4f with 95 %% confidence",
      shape.recomputed_layers, name, ranks, result.bytes_per_token, raw_bytes / result.bytes_per_token,
      fit.width, Trained(fit), Tuned(fit), result.kl, result.kl_bound);
}

}  // namespace aludel
