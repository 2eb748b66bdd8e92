#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/calibrate/plan/calibration_plan.h"

namespace aludel {

// What a time buys: how many of the prompts and how much training. All of it shrinks by one dial, so that more time
// never buys less of anything.
struct BudgetChoice {
  int64_t train = 0, held_out = 0, more = 0;  // the first prompts of each kind
  int64_t steps = 0;                          // of training
  int64_t sensitivity_prompts = 0;
  int64_t passes = 0;  // of tuning
  bool everything = false;

  bool operator==(const BudgetChoice&) const = default;
  // "320 of 1440 prompts, 1334 of 6000 steps, 1 of 2 passes of tuning, ...", of `full`.
  std::string Describe(const BudgetChoice& full) const;
};

// The job's own figures; and what is left of them at `dial`, 0 to 1. Of passages to tune by some or none are left, and no
// part of one. Prompts and steps of the fit keep three times the dial where something tunes what it makes; prompts of
// sensitivity and of tuning the dial, and below a third of it no pass tunes.
BudgetChoice WholeJob(const PlanInput& input);
BudgetChoice AtDial(const PlanInput& input, double dial);

// `input` with the choice's prompts, of which `job`, a copy of the input's that gets its steps and passes, must live
// as long.
PlanInput Apply(const BudgetChoice& choice, const PlanInput& input, AludelJob* job);

// Names what the input makes a job compute, and `key`: what an interrupted run has decided for it is found by that again.
std::string WorkKey(std::string key, const PlanInput& input);

// What time a plan is expected to take: of a search, that it takes twice the least, up to the most.
double ExpectedSeconds(const CalibrationPlan& plan);

// The most that fits into `seconds`, a tenth of which is kept for what turns out slower. DeadlineExceeded, with the time
// that the least would take, where even that does not fit.
absl::StatusOr<BudgetChoice> ChooseForBudget(const PlanInput& input, const WorkRates& rates, double seconds);

// What twice and four times the time would buy, and how long the whole job takes; a line for each.
std::vector<std::string> MoreThanBudget(const PlanInput& input, const WorkRates& rates, double seconds);

// A choice is made once: an interrupted run finds it in `work` and comes to the same artifact, however loaded the machine
// is by then. `choose` is called where there is none for this input, whatever it makes the job compute, this time, and
// `machine`, which names what computes it.
absl::StatusOr<BudgetChoice> OpenBudget(const std::string& work, const PlanInput& input,
                                        const std::string& machine, double seconds,
                                        const std::function<absl::StatusOr<BudgetChoice>()>& choose);

}  // namespace aludel
