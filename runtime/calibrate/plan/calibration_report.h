#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/calibrate/aludel_candidate.h"
#include "runtime/calibrate/plan/calibration_plan.h"
#include "runtime/calibrate/plan/stage_meter.h"

namespace aludel {

// What a run did, for people and programs: what was planned of every stage and what it took, every rate that was tried
// and its loss, what was chosen, how its latents share their energy, and the error of each layer.
struct CalibrationReport {
  std::string format;
  std::vector<std::string> consumers;
  std::string prompts;  // "2880 prompts with 640000 tokens to fit, 320 held out"
  std::string budget;   // what one chose; "": there was none
  CalibrationPlan plan;
  std::vector<AludelCandidate> tried;  // in their order; weights are not looked at and may have been dropped
  AludelCandidate chosen;              // likewise
  double raw_bytes = 0;                // of a token's raw cache

  std::string ToJson(const StageMeter& meter) const;
  std::string ToText(const StageMeter& meter) const;
  // The plan beside what it took, a row for each stage.
  std::string PlanAndActual(const StageMeter& meter) const;

 private:
  // A row for each group of the chosen point.
  std::string Spectra() const;
};

// Without its weights.
AludelCandidate Findings(const AludelCandidate& candidate);

// DIRECTORY/FORMAT.json and .txt, over those of an earlier run.
absl::Status WriteReport(const std::string& directory, const CalibrationReport& report,
                         const StageMeter& meter);

}  // namespace aludel
