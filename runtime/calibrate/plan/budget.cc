#include "runtime/calibrate/plan/budget.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/calibrate/aludel/train_decoder.h"
#include "runtime/calibrate/tune_passages_job.h"
#include "runtime/codec/artifact/weight_file.h"
#include "runtime/status_macros.h"
#include "runtime/tool/byte_size.h"

namespace aludel {
namespace {

constexpr double kUsable = 0.9;  // of a budget: measured rates are those of a moment
constexpr double kLeastDial = 1.0 / 256;
constexpr int64_t kFewestPrompts = 10, kFewestHeldOut = 8;
// The fit gets as many times the share of its prompts and steps that tuning gets of its own: with few of them a decoder
// fails on all that it has not seen, and tuning does not mend that.
constexpr double kFitBeforeTuning = 3;
constexpr double kAllPasses = 0.5, kOnePass = 1 / kFitBeforeTuning;  // dials from which tuning takes as many

int64_t Share(int64_t full, double dial, int64_t least) {
  const auto share = static_cast<int64_t>(std::ceil(dial * static_cast<double>(full)));
  return std::min(full, std::max(share, least));
}

double SecondsOf(const BudgetChoice& choice, const PlanInput& input, const WorkRates& rates) {
  AludelJob job;
  const PlanInput trial = Apply(choice, input, &job);
  return ExpectedSeconds(MakePlan(CountWork(trial, rates.answer_tokens), &rates));
}

// No more than `most` prompts, but for --retune, which does nothing else and has as few as teach something.
int64_t PassagesAmong(int64_t most, const PlanInput& input) {
  const std::vector<int64_t> ends = WholePassages(input.more, RecomputedOf(input));
  const auto above = std::upper_bound(ends.begin(), ends.end(), most);
  if (above != ends.begin()) return *(above - 1);
  if (!input.job.retune) return 0;
  return ends.empty() ? static_cast<int64_t>(input.more.size()) : ends.front();
}

// The largest dial whose time fits.
double LargestDial(const PlanInput& input, const WorkRates& rates, double seconds) {
  const BudgetChoice full = WholeJob(input);
  if (SecondsOf(full, input, rates) <= seconds) return 1;
  double low = kLeastDial, high = 1;
  for (int i = 0; i < 24; ++i) {
    const double dial = std::sqrt(low * high);
    (SecondsOf(AtDial(input, dial), input, rates) <= seconds ? low : high) = dial;
  }
  return low;
}

std::string PathOf(const std::string& work, const PlanInput& input, const std::string& machine,
                   double seconds) {
  return absl::StrCat(work, "/", WorkKey(absl::StrCat("budget 2 ", seconds, " ", machine), input), ".budget");
}

// Whether a file's figures can be those of this job.
bool IsWithin(const BudgetChoice& choice, const BudgetChoice& full) {
  const auto within = [](int64_t some, int64_t least, int64_t all) { return some >= least && some <= all; };
  return within(choice.train, 1, full.train) && within(choice.held_out, 1, full.held_out) &&
         within(choice.more, 0, full.more) &&
         within(choice.steps, std::min<int64_t>(1, full.steps), full.steps) &&
         within(choice.sensitivity_prompts, 0, full.sensitivity_prompts) &&
         within(choice.passes, 0, full.passes);
}

}  // namespace

std::string BudgetChoice::Describe(const BudgetChoice& full) const {
  if (everything) return "the whole job";
  std::string text = absl::StrFormat("%d of %d prompts", train + held_out, full.train + full.held_out);
  const auto add = [&](int64_t some, int64_t all, const char* what) {
    if (all > 0) absl::StrAppendFormat(&text, ", %d of %d %s", some, all, what);
  };
  add(steps, full.steps, "steps");
  add(sensitivity_prompts, full.sensitivity_prompts, "prompts of sensitivity");
  add(passes, full.passes, "passes of tuning");
  add(more, full.more, "prompts of --tuning-data");
  return text;
}

BudgetChoice WholeJob(const PlanInput& input) {
  const AludelJob& job = input.job;
  return {.train = static_cast<int64_t>(input.train.size()),
          .held_out = static_cast<int64_t>(input.held_out.size()),
          .more = static_cast<int64_t>(input.more.size()),
          .steps = job.options.linear || job.retune ? 0 : job.options.training.steps,
          .sensitivity_prompts =
              job.retune ? 0 : std::min(job.sensitivity_prompts, static_cast<int64_t>(input.train.size())),
          .passes = input.by_passages ? 0 : TuningPasses(job.options),
          .everything = true};
}

BudgetChoice AtDial(const PlanInput& input, double dial) {
  const BudgetChoice full = WholeJob(input);
  if (dial >= 1) return full;
  BudgetChoice choice = full;
  choice.everything = false;
  const bool fits_then_tunes = !input.job.retune && (input.by_passages || full.passes > 0 || full.more > 0);
  const double fit_dial = fits_then_tunes ? std::min(1.0, kFitBeforeTuning * dial) : dial;
  choice.train = Share(full.train, fit_dial, kFewestPrompts);
  choice.held_out = Share(full.held_out, fit_dial, kFewestHeldOut);
  choice.more = Share(full.more, dial, 0);
  if (input.by_passages) choice.more = PassagesAmong(choice.more, input);
  choice.steps = Share(full.steps, fit_dial, kFewestTrainingSteps);
  choice.sensitivity_prompts = Share(full.sensitivity_prompts, dial, 1);
  const int64_t passes = dial >= kOnePass || input.job.retune ? 1 : 0;  // --retune does nothing else
  choice.passes = dial >= kAllPasses ? full.passes : std::min(full.passes, passes);
  return choice;
}

PlanInput Apply(const BudgetChoice& choice, const PlanInput& input, AludelJob* job) {
  *job = input.job;
  if (choice.steps > 0) job->options.training.steps = choice.steps;
  if (!job->retune) job->sensitivity_prompts = choice.sensitivity_prompts;
  if (!input.by_passages) job->options.tuning.passes = choice.passes;
  return {*job,
          input.config,
          input.train.first(static_cast<size_t>(choice.train)),
          input.held_out.first(static_cast<size_t>(choice.held_out)),
          input.more.first(static_cast<size_t>(choice.more)),
          input.extended,
          input.by_passages,
          input.artifact_bytes,
          input.process_bytes,
          input.linear,
          input.on_gpu};
}

std::string WorkKey(std::string key, const PlanInput& input) {
  const BudgetChoice full = WholeJob(input);
  absl::StrAppend(&key, " ", full.train, " ", full.held_out, " ", full.more, " ", full.steps, " ",
                  full.sensitivity_prompts, " ", full.passes, " ", input.job.max_kl.value_or(0));
  // Flags count as far as they change the work. What the process and the destination hold is another each time.
  PlanInput plain = input;
  plain.process_bytes = plain.artifact_bytes = 0;
  for (const StageWork& stage : CountWork(plain, input.job.base.scd.max_answer_tokens)) {
    absl::StrAppendFormat(&key, "\n%s %d %d %.17g %.17g", Name(stage.stage), stage.least, stage.most,
                          stage.memory, stage.disk);
    for (const double amount : stage.once.values) absl::StrAppendFormat(&key, " %.17g", amount);
  }
  for (const auto& prompts : {input.train, input.held_out, input.more}) {
    for (const auto& prompt : prompts) absl::StrAppend(&key, "\n", absl::StrJoin(prompt, " "));
  }
  return Sha256Hex({reinterpret_cast<const uint8_t*>(key.data()), key.size()}).substr(0, 24);
}

double ExpectedSeconds(const CalibrationPlan& plan) {
  return std::min(plan.most_seconds, 2 * plan.least_seconds);
}

absl::StatusOr<BudgetChoice> ChooseForBudget(const PlanInput& input, const WorkRates& rates, double seconds) {
  const BudgetChoice full = WholeJob(input);
  const BudgetChoice choice = AtDial(input, LargestDial(input, rates, kUsable * seconds));
  const double expected = SecondsOf(choice, input, rates);
  if (expected <= kUsable * seconds) return choice;
  return absl::DeadlineExceededError(
      absl::StrFormat("--budget is %s, the least that calibrates (%s) takes about %s; give more time%s",
                      FormatSeconds(seconds), choice.Describe(full), FormatSeconds(expected / kUsable),
                      input.job.options.linear || input.job.retune ? "" : ", or --linear"));
}

std::vector<std::string> MoreThanBudget(const PlanInput& input, const WorkRates& rates, double seconds) {
  const BudgetChoice full = WholeJob(input);
  const double whole = SecondsOf(full, input, rates) / kUsable;
  std::vector<std::string> lines;
  for (const double times : {2.0, 4.0}) {
    if (times * seconds >= whole) break;
    lines.push_back(
        absl::StrCat("--budget ", FormatSeconds(times * seconds), " would buy ",
                     AtDial(input, LargestDial(input, rates, kUsable * times * seconds)).Describe(full)));
  }
  if (whole > seconds) lines.push_back(absl::StrCat("the whole job takes about ", FormatSeconds(whole)));
  return lines;
}

absl::StatusOr<BudgetChoice> OpenBudget(const std::string& work, const PlanInput& input,
                                        const std::string& machine, double seconds,
                                        const std::function<absl::StatusOr<BudgetChoice>()>& choose) {
  const std::string path = PathOf(work, input, machine, seconds);
  BudgetChoice choice;
  int whole = 0;
  std::ifstream known(path);
  if (known >> choice.train >> choice.held_out >> choice.more >> choice.steps >> choice.sensitivity_prompts >>
      choice.passes >> whole) {
    choice.everything = whole != 0;
    if (IsWithin(choice, WholeJob(input))) return choice;
  }
  ALUDEL_ASSIGN_OR_RETURN(choice, choose());
  std::error_code error;
  std::filesystem::create_directories(work, error);
  std::ofstream file(path + ".partial");
  file << choice.train << " " << choice.held_out << " " << choice.more << " " << choice.steps << " "
       << choice.sensitivity_prompts << " " << choice.passes << " " << (choice.everything ? 1 : 0) << "\n";
  file.close();
  if (!file || std::rename((path + ".partial").c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot write ", path));
  }
  return choice;
}

}  // namespace aludel
