#include "runtime/calibrate/plan/calibration_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/tool/byte_size.h"

namespace aludel {
namespace {

constexpr size_t kFewestPrompts = 10;  // that a suggestion leaves of them

std::string Interval(double least, double most) {
  if (most <= 1.05 * least) return FormatSeconds(least);
  return absl::StrCat(FormatSeconds(least), " to ", FormatSeconds(most));
}

CalibrationPlan PlanOf(const PlanInput& input) {
  return MakePlan(CountWork(input, input.job.base.scd.max_answer_tokens), nullptr);
}

// The first prompts alone.
PlanInput FirstPrompts(const PlanInput& input, size_t train) {
  PlanInput fewer = input;
  fewer.held_out = input.held_out.first(
      std::min(input.held_out.size(),
               std::max<size_t>(1, input.held_out.size() * train / std::max<size_t>(1, input.train.size()))));
  fewer.train = input.train.first(train);
  return fewer;
}

// As another job; it must outlive what is returned.
PlanInput Changed(const PlanInput& input, const AludelJob& job) {
  return {job,
          input.config,
          input.train,
          input.held_out,
          input.more,
          input.extended,
          input.by_passages,
          input.artifact_bytes,
          input.process_bytes,
          input.linear,
          input.on_gpu};
}

using Fits = std::function<bool(const PlanInput&)>;

// Settings by which `fits` holds; empty: none known.
std::vector<std::string> Suggestions(const PlanInput& input, const Fits& fits) {
  std::vector<std::string> found;
  size_t low = 0, high = input.train.size();
  while (high - low > 1) {
    const size_t middle = (low + high) / 2;
    (fits(FirstPrompts(input, middle)) ? low : high) = middle;
  }
  if (low >= kFewestPrompts) {
    const PlanInput fewer = FirstPrompts(input, low);
    found.push_back(absl::StrCat("--prompts ", fewer.train.size() + fewer.held_out.size()));
  }
  AludelJob job = input.job;
  const auto fits_as = [&](const AludelJob& changed) { return fits(Changed(input, changed)); };
  for (int64_t tokens = 131072; tokens >= 8192 && !job.retune; tokens /= 2) {
    job.options.training_tokens = tokens;
    if (!fits_as(job)) continue;
    found.push_back(absl::StrCat("--training-tokens ", tokens));
    break;
  }
  job = input.job;
  for (int layers = input.config.layers / 2; layers >= 1 && !input.extended.has_value(); layers /= 2) {
    job.options.group_layers = layers;
    if (input.job.options.group_layers > 0 && layers >= input.job.options.group_layers) continue;
    if (!fits_as(job)) continue;
    found.push_back(absl::StrCat("--group-layers ", layers));
    break;
  }
  job = input.job;
  job.base.compute = DType::kBf16;
  if (input.job.base.compute == DType::kF32 && fits_as(job)) found.push_back("--compute bf16");
  return found;
}

absl::Status Refuse(const PlanInput& input, absl::string_view what, absl::string_view flag, bool by_flag,
                    double needed, double allowed, const std::string& where, const Fits& fits) {
  std::vector<std::string> ways = Suggestions(input, fits);
  ways.push_back(absl::StrCat(flag, " ", absl::StrFormat("%.1fGB", needed / 1e9 + 0.05),
                              by_flag ? "" : " on a machine that has as much"));
  return absl::ResourceExhaustedError(absl::StrFormat(
      "calibration needs %s of %s%s, %s; it would fit with %s", FormatBytes(needed), what, where,
      by_flag
          ? absl::StrCat(flag, " is ", FormatBytes(allowed))
          : absl::StrCat("this machine has ", FormatBytes(allowed), " free (", flag, " sets another bound)"),
      absl::StrJoin(ways, ", or ")));
}

}  // namespace

std::string CalibrationPlan::Needs() const {
  std::string text = absl::StrCat("needs ", FormatBytes(memory), " of memory, ");
  if (device > 0) absl::StrAppend(&text, FormatBytes(device), " of the device's, ");
  absl::StrAppend(&text, FormatBytes(disk), " of disk");
  if (most_seconds > 0) absl::StrAppend(&text, ", about ", Interval(least_seconds, most_seconds));
  return text;
}

std::string CalibrationPlan::Table() const {
  const bool timed = most_seconds > 0;
  const auto of_device = [this](const std::string& text) {
    return device > 0 ? absl::StrFormat(" %10s", text) : std::string();
  };
  std::string table = absl::StrFormat("%-18s %20s %10s %10s%s %12s\n", "stage", timed ? "time" : "", "TFLOP",
                                      "memory", of_device("device"), "disk");
  for (const PlannedStage& stage : stages) {
    double flops = 0;
    for (const Work work :
         {Work::kPrefill, Work::kDecode, Work::kTail, Work::kNetwork, Work::kMoments, Work::kSolver}) {
      flops += stage.work.once[work];
    }
    std::string name(Name(stage.work.stage));
    if (stage.work.most > 1) absl::StrAppend(&name, " x", stage.work.least, "..", stage.work.most);
    absl::StrAppendFormat(&table, "%-18s %20s %10.3f %10s%s %12s\n", name,
                          timed ? Interval(stage.least_seconds, stage.most_seconds) : "", flops / 1e12,
                          FormatBytes(stage.work.memory), of_device(FormatBytes(stage.work.device)),
                          FormatBytes(stage.work.disk));
  }
  return table;
}

CalibrationPlan MakePlan(const std::vector<StageWork>& stages, const WorkRates* rates) {
  CalibrationPlan plan;
  for (const StageWork& work : stages) {
    const double once = rates == nullptr ? 0 : rates->Seconds(work.once);
    plan.stages.push_back(
        {work, static_cast<double>(work.least) * once, static_cast<double>(work.most) * once});
    plan.least_seconds += plan.stages.back().least_seconds;
    plan.most_seconds += plan.stages.back().most_seconds;
    plan.disk += work.disk;
    plan.device = std::max(plan.device, work.device);
    if (work.memory > plan.memory) {
      plan.memory = work.memory;
      plan.peak = work.stage;
    }
  }
  return plan;
}

absl::Status CheckRoom(const PlanInput& input, const Room& room) {
  const CalibrationPlan plan = PlanOf(input);
  if (room.memory.has_value() && plan.memory > *room.memory) {
    return Refuse(input, "memory", "--max-memory", room.memory_by_flag, plan.memory, *room.memory,
                  absl::StrCat(" at its peak (", Name(plan.peak), ", ",
                               FormatBytes(plan.stages.front().work.memory), " of it the models)"),
                  [&](const PlanInput& trial) { return PlanOf(trial).memory <= *room.memory; });
  }
  if (room.device.has_value() && plan.device > *room.device) {
    return Refuse(input, "the device's memory", "--max-device-memory", room.device_by_flag, plan.device,
                  *room.device,
                  absl::StrCat(", ", FormatBytes(plan.stages.front().work.device), " of it the models"),
                  [&](const PlanInput& trial) { return PlanOf(trial).device <= *room.device; });
  }
  if (room.disk.has_value() && plan.disk > *room.disk) {
    return Refuse(input, "disk", "--max-disk", room.disk_by_flag, plan.disk, *room.disk, "",
                  [&](const PlanInput& trial) { return PlanOf(trial).disk <= *room.disk; });
  }
  return absl::OkStatus();
}

int GroupLayersWithin(const PlanInput& input, const Room& room) {
  AludelJob job = input.job;
  int& layers = job.options.group_layers;
  if (layers > 0 || input.extended.has_value() || !room.memory.has_value()) return layers;
  const auto fits = [&] { return PlanOf(Changed(input, job)).memory <= *room.memory; };
  if (fits()) return 0;
  for (layers = input.config.layers / 2; layers >= 1; layers /= 2) {
    if (fits()) return layers;
  }
  return 0;
}

}  // namespace aludel
