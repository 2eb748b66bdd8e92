#include "runtime/calibrate/plan/job_plan.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/calibrate/aludel_format.h"
#include "runtime/calibrate/calibration_setup.h"
#include "runtime/calibrate/plan/machine_room.h"
#include "runtime/calibrate/plan/work_rates.h"
#include "runtime/status_macros.h"
#include "runtime/tool/byte_size.h"

namespace aludel {
namespace {

double BytesUnder(const std::string& directory) {
  double bytes = 0;
  std::error_code error;
  for (auto it = std::filesystem::recursive_directory_iterator(directory, error);
       !error && it != std::filesystem::recursive_directory_iterator(); it.increment(error)) {
    std::error_code skipped;
    const auto size = it->is_regular_file(skipped) ? it->file_size(skipped) : 0;
    if (!skipped) bytes += static_cast<double>(size);
  }
  return bytes;
}

// As a fit that made linear decoders has noted.
bool IsLinear(const ArtifactFormat& format) {
  const auto note = format.notes.find("decoder");
  return note != format.notes.end() && absl::StartsWith(note->second, "linear");
}

void Print(const CalibrationPlan& plan) {
  std::printf("%s", plan.Table().c_str());
  PrintLine(plan.Needs());
  std::fflush(stdout);
}

}  // namespace

absl::StatusOr<PlanInput> PlanOfJob(const AludelJob& job, const AludelInputs& inputs,
                                    const std::optional<ArtifactManifest>& old) {
  PlanInput input{
      job, inputs.config, inputs.prompts.train, inputs.prompts.held_out, inputs.more_prompts, {}, false, 0,
      0};
  bool linear = job.options.linear;
  if (Extends(job)) {
    if (!old.has_value()) {
      return absl::NotFoundError(absl::StrCat(job.base.out, " holds no artifact to extend"));
    }
    ALUDEL_ASSIGN_OR_RETURN(const ArtifactFormat* format, old->Find(FormatName(job, inputs.most_recomputed)));
    input.extended = format->aludel;
    linear = linear || (job.retune && IsLinear(*format));
  }
  input.by_passages = !inputs.more_prompts.empty() && job.options.passages.rank > 0 &&
                      job.options.tuning.passes <= 0 && linear;
  input.artifact_bytes = BytesUnder(job.base.out);
  input.process_bytes = inputs.process_bytes;
  return input;
}

absl::Status CheckRoomOfJob(const PlanInput& input, const std::string& work) {
  const AludelJob& job = input.job;
  Room room;
  room.memory_by_flag = job.max_memory > 0;
  room.disk_by_flag = job.max_disk > 0;
  room.memory = static_cast<double>(room.memory_by_flag ? job.max_memory : FreeMemory());
  room.disk = room.disk_by_flag ? static_cast<double>(job.max_disk)
                                : static_cast<double>(FreeDisk(work)) + BytesUnder(work);
  return CheckRoom(input, room);
}

absl::StatusOr<TimedPlan> PlanOnMachine(const std::optional<ArtifactManifest>& old, AludelJob* job,
                                        AludelInputs* inputs) {
  TimedPlan timed;
  std::error_code ignored;
  const bool fresh = !std::filesystem::exists(inputs->work, ignored);
  ALUDEL_ASSIGN_OR_RETURN(const PlanInput full, PlanOfJob(*job, *inputs, old));
  PrintLine("measuring what this machine does a second");
  std::fflush(stdout);
  ALUDEL_ASSIGN_OR_RETURN(const WorkRates rates,
                          MeasureRates(full, *inputs->consumers.front(), inputs->work));
  timed.plan = MakePlan(CountWork(full, rates.answer_tokens), &rates);
  if (job->budget > 0) {
    const auto choose = [&] { return ChooseForBudget(full, rates, job->budget); };
    absl::StatusOr<BudgetChoice> choice =
        job->dry_run ? choose() : OpenBudget(inputs->work, full, job->budget, choose);
    ALUDEL_RETURN_IF_ERROR(choice.status());
    timed.budget = absl::StrCat(FormatSeconds(job->budget), " buys ", choice->Describe(WholeJob(full)));
    PrintLine(absl::StrCat("--budget ", timed.budget));
    for (const std::string& line : MoreThanBudget(full, rates, job->budget)) PrintLine(line);
    AludelJob bought;
    const PlanInput less = Apply(*choice, full, &bought);
    timed.plan = MakePlan(CountWork(less, rates.answer_tokens), &rates);
    *job = std::move(bought);
    inputs->prompts.train.resize(static_cast<size_t>(choice->train));
    inputs->prompts.held_out.resize(static_cast<size_t>(choice->held_out));
    inputs->more_prompts.resize(static_cast<size_t>(choice->more));
  }
  Print(timed.plan);
  if (fresh && job->dry_run) std::filesystem::remove(inputs->work, ignored);  // if it is empty
  return timed;
}

void PrintPlanOfDevice(const PlanInput& input) {
  const AludelJob& job = input.job;
  const double bytes = job.base.compute == DType::kF32 ? 4 : 2;
  const double answer = job.base.scd.max_answer_tokens;
  const WorkRates rates =
      RatesOfDevice(input.config, job.device_flops, job.device_bandwidth, job.device_share, bytes, answer);
  PrintLine(
      absl::StrFormat("on a device of %.3g FLOP/s and %.3g bytes/s of which %.0f %% are reached, "
                      "answers of %.0f tokens:",
                      job.device_flops, job.device_bandwidth, 100 * job.device_share, answer));
  Print(MakePlan(CountWork(input, answer), &rates));
}

}  // namespace aludel
