#include "runtime/calibrate/candidate_search.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/calibrate/rate_search.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int kBisections = 6;

// Where the loss would be met by coarser steps alone, the decoder as it is.
absl::StatusOr<double> CoarsestBytes(const AludelCandidate& from, const SearchGoal& goal,
                                     CandidateFitter& fitter) {
  double low = 1, high = 32;  // factors of the step
  double bytes = from.bytes();
  for (int i = 0; i < kBisections && !goal.Over(); ++i) {
    const double factor = std::sqrt(low * high);
    AludelCandidate trial = from;
    for (size_t g = 0; g < trial.encoder.size(); ++g) {
      trial.encoder[g].grid.step *= static_cast<float>(factor);
      for (FittedDecoder& decoder : trial.decoders) decoder.weights.groups[g].grid = trial.encoder[g].grid;
    }
    ALUDEL_RETURN_IF_ERROR(fitter.Measure(&trial));
    if (trial.kl_bound() <= goal.max_kl) {
      low = factor;
      bytes = fitter.BytesAt(trial, trial.encoder.front().grid.step);
    } else {
      high = factor;
    }
  }
  return bytes;
}

// `best` was fitted to `bytes_met` and meets the loss.
absl::StatusOr<AludelCandidate> Narrow(AludelCandidate best, double bytes_met, const SearchGoal& goal,
                                       CandidateFitter& fitter) {
  RateSearch search(bytes_met);
  while (true) {
    if (goal.Over()) return best;
    ALUDEL_ASSIGN_OR_RETURN(const double guess, CoarsestBytes(best, goal, fitter));
    const std::optional<double> bytes = search.Next(guess);
    if (!bytes.has_value() || goal.Over()) return best;
    ALUDEL_ASSIGN_OR_RETURN(AludelCandidate candidate, fitter.Fit(best.shape.recomputed_layers, *bytes));
    if (candidate.kl_bound() > goal.max_kl) {
      search.Missed(*bytes);
    } else {
      search.Met(*bytes);
      best = std::move(candidate);
    }
  }
}

}  // namespace

absl::StatusOr<AludelCandidate> FindCandidate(const SearchGoal& goal, CandidateFitter& fitter) {
  std::string floors;
  for (int p = goal.fewest_recomputed; p <= goal.most_recomputed; ++p) {
    // Fewer latents leave the decoder more width at the same cost, so that less may lose less.
    for (const double bytes : {goal.raw_bytes / 16, goal.raw_bytes / 64}) {
      if (!floors.empty() && goal.Over()) {
        return absl::DeadlineExceededError(
            absl::StrFormat("--budget was over before anything met --max-kl %g; tried: %s. Give more time, a "
                            "larger --max-kl, or --recomputed-layers, so that fewer structures are tried",
                            goal.max_kl, floors));
      }
      ALUDEL_ASSIGN_OR_RETURN(AludelCandidate first, fitter.Fit(p, bytes));
      if (first.kl_bound() <= goal.max_kl) return Narrow(std::move(first), bytes, goal, fitter);
      absl::StrAppendFormat(&floors, "%sp=%d, %.0f bytes/token: %.4f (mean %.4f)", floors.empty() ? "" : "; ",
                            p, bytes, first.kl_bound(), first.kl());
    }
  }
  return absl::OutOfRangeError(
      absl::StrFormat("--max-kl %g cannot be met with 95 %% confidence; floors: %s. More recomputed layers, "
                      "more calibration text, a larger --compute-share or more --steps lower them",
                      goal.max_kl, floors));
}

}  // namespace aludel
