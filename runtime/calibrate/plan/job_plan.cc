#include "runtime/calibrate/plan/job_plan.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/device_health.h"
#include "runtime/calibrate/aludel_format.h"
#include "runtime/calibrate/calibration_setup.h"
#include "runtime/calibrate/fit/dense.h"
#include "runtime/calibrate/plan/machine_room.h"
#include "runtime/calibrate/plan/work_rates.h"
#include "runtime/calibrate/tune_passages_job.h"
#include "runtime/status_macros.h"
#include "runtime/tool/byte_size.h"

namespace aludel {
namespace {

// Of measuring solvers for a device that is not here: they take most of its time.
constexpr double kSolverSeconds = 2;

// Files that a run finds again; those of a user in the same directory are not.
bool IsIntermediate(const std::filesystem::path& file) {
  const std::string kind = file.extension().string();
  for (const char* known :
       {".states", ".sensitivity", ".answers", ".training", ".tuned", ".tuning", ".groups"}) {
    if (kind == known) return true;
  }
  return false;
}

double BytesUnder(const std::string& directory, bool intermediate_alone) {
  double bytes = 0;
  std::error_code error;
  for (auto it = std::filesystem::recursive_directory_iterator(directory, error);
       !error && it != std::filesystem::recursive_directory_iterator(); it.increment(error)) {
    std::error_code skipped;
    const auto size = it->is_regular_file(skipped) ? it->file_size(skipped) : 0;
    if (skipped || (intermediate_alone && !IsIntermediate(it->path()))) continue;
    bytes += static_cast<double>(size);
  }
  return bytes;
}

// At its end, of the directories on the way to `path` that are not there yet those that are empty.
auto RemovesEmpty(const std::string& path) {
  std::vector<std::filesystem::path> missing;
  std::error_code error;
  for (auto at = std::filesystem::absolute(path, error); !at.empty() && !std::filesystem::exists(at, error);
       at = at.parent_path()) {
    missing.push_back(at);
  }
  return absl::MakeCleanup([missing = std::move(missing)] {
    std::error_code ignored;
    for (const std::filesystem::path& directory : missing) std::filesystem::remove(directory, ignored);
  });
}

// As a fit that made linear decoders has noted.
bool IsLinear(const ArtifactFormat& format) {
  const auto note = format.notes.find("decoder");
  return note != format.notes.end() && absl::StartsWith(note->second, "linear");
}

// What a job is computed by and with.
std::string MachineKey(const AludelInputs& inputs) {
  std::string key = absl::StrCat(inputs.producer->device()->name(), " ", ProductThreads(), " ",
                                 Name(inputs.producer->options().compute), " ", inputs.producer->hash());
  for (const auto& consumer : inputs.consumers) absl::StrAppend(&key, " ", consumer->hash());
  return key;
}

void Print(const CalibrationPlan& plan) {
  std::printf("%s", plan.Table().c_str());
  PrintLine(plan.Needs());
  std::fflush(stdout);
}

// What the job may take. `gpu` as AludelInputs::gpu.
Room RoomOfJob(const PlanInput& input, const std::string& work, const std::string& gpu) {
  const AludelJob& job = input.job;
  Room room;
  room.memory_by_flag = job.max_memory > 0;
  room.disk_by_flag = job.max_disk > 0;
  const bool here = job.device_flops <= 0;
  if (room.memory_by_flag) {
    room.memory = static_cast<double>(job.max_memory);
  } else if (const std::optional<int64_t> free = FreeMemory(); here && free.has_value()) {
    room.memory = static_cast<double>(*free) + input.process_bytes;  // which the plan counts, too
  }
  room.device_by_flag = job.max_device_memory > 0;
  if (room.device_by_flag) {
    room.device = static_cast<double>(job.max_device_memory);
  } else if (const std::optional<int64_t> free = FreeDeviceMemory(gpu); here && free.has_value()) {
    room.device = static_cast<double>(*free);
  }
  if (room.disk_by_flag) {
    room.disk = static_cast<double>(job.max_disk);
  } else if (const std::optional<int64_t> free = FreeDisk(work); here && free.has_value()) {
    room.disk = static_cast<double>(*free) + BytesUnder(work, /*intermediate_alone=*/true);
  }
  return room;
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
    if (format->kind != ArtifactKind::kAludel) {
      return absl::FailedPreconditionError(
          absl::StrCat("format \"", format->name, "\" is of another preset"));
    }
    input.extended = format->aludel;
    linear = linear || (job.retune && IsLinear(*format));
    input.linear = linear;
  }
  input.by_passages = !inputs.more_prompts.empty() && job.options.passages.rank > 0 &&
                      job.options.tuning.passes <= 0 && linear;
  if (input.by_passages) {
    ALUDEL_RETURN_IF_ERROR(CheckTuningPassages(input.more, RecomputedOf(input)));
  }
  // Of a directory of versions the current one: it alone is copied.
  if (old.has_value()) input.artifact_bytes = BytesUnder(old->directory, /*intermediate_alone=*/false);
  input.process_bytes = inputs.process_bytes;
  input.on_gpu = !inputs.gpu.empty() || job.device_flops > 0;
  return input;
}

absl::Status CheckRoomOfJob(const PlanInput& input, const AludelInputs& inputs) {
  return CheckRoom(input, RoomOfJob(input, inputs.work, inputs.gpu));
}

std::string GroupLayersPath(const PlanInput& input, const AludelInputs& inputs) {
  return absl::StrCat(inputs.work, "/", WorkKey("groups 1", input), ".groups");
}

absl::Status KeepGroupLayers(const std::string& path, int layers) {
  int kept = -1;
  if (std::ifstream known(path); known >> kept && kept == layers) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  std::ofstream file(path + ".partial");
  file << layers << "\n";
  file.close();
  if (!file || std::rename((path + ".partial").c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot write ", path));
  }
  return absl::OkStatus();
}

int GroupLayersOfJob(const PlanInput& input, const AludelInputs& inputs) {
  int kept = 0;
  if (std::ifstream known(GroupLayersPath(input, inputs)); known >> kept) {
    if (kept >= 0 && kept <= input.config.layers) return kept;
  }
  const Room room = RoomOfJob(input, inputs.work, inputs.gpu);
  const int layers = GroupLayersWithin(input, room);
  if (layers != input.job.options.group_layers) {
    PrintLine(absl::StrFormat("--group-layers %d: larger groups need more memory than the %s that %s", layers,
                              FormatBytes(*room.memory),
                              room.memory_by_flag ? "--max-memory allows" : "this machine has free"));
  }
  return layers;
}

absl::StatusOr<TimedPlan> PlanOnMachine(const std::optional<ArtifactManifest>& old, AludelJob* job,
                                        AludelInputs* inputs) {
  TimedPlan timed;
  const auto tidy = RemovesEmpty(inputs->work);
  ALUDEL_ASSIGN_OR_RETURN(const PlanInput full, PlanOfJob(*job, *inputs, old));
  PrintLine("measuring what this machine does a second");
  std::fflush(stdout);
  ALUDEL_ASSIGN_OR_RETURN(const WorkRates rates,
                          MeasureRates(full, *inputs->consumers.front(), inputs->work));
  timed.plan = MakePlan(CountWork(full, rates.answer_tokens), &rates);
  if (job->budget > 0) {
    bool known = true;
    const auto choose = [&] {
      known = false;
      return ChooseForBudget(full, rates, job->budget);
    };
    absl::StatusOr<BudgetChoice> choice =
        job->dry_run ? choose() : OpenBudget(inputs->work, full, MachineKey(*inputs), job->budget, choose);
    ALUDEL_RETURN_IF_ERROR(choice.status());
    if (known) {
      PrintLine(absl::StrCat("--budget is spent as the interrupted run chose that left its files in ",
                             inputs->work));
    }
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
  return timed;
}

absl::Status PrintPlanOfDevice(const PlanInput& input) {
  const AludelJob& job = input.job;
  const double answer = job.base.scd.max_answer_tokens;
  const DeviceSheet device{.flops = job.device_flops,
                           .f32_flops = job.device_f32_flops,
                           .bandwidth = job.device_bandwidth,
                           .share = job.device_share};
  ALUDEL_ASSIGN_OR_RETURN(const double solver_rate, MeasureSolverRate(input, kSolverSeconds));
  const WorkRates rates = RatesOfDevice(input.config, device, job.base.compute, solver_rate, answer);
  PrintLine(
      absl::StrFormat("on a device of %.3g FLOP/s (f32: %.3g) and %.3g bytes/s of which %.0f %% are reached; "
                      "solvers at the %.3g FLOP/s of this "
                      "machine's CPU (%d threads), weight files at %.3g bytes/s, what goes to the device and "
                      "back at no cost; answers of %.0f tokens:",
                      device.flops, device.f32_flops, device.bandwidth, 100 * device.share, solver_rate,
                      ProductThreads(), kReadBytes, answer));
  Print(MakePlan(CountWork(input, answer), &rates));
  return absl::OkStatus();
}

}  // namespace aludel
