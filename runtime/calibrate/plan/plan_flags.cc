#include "runtime/calibrate/plan/plan_flags.h"

#include "absl/strings/str_format.h"
#include "runtime/status_macros.h"
#include "runtime/tool/byte_size.h"

namespace aludel {

void AddPlanFlags(FlagSet* flags, AludelJob* job, PlanFlags* raw) {
  flags->Add("dry-run", &job->dry_run,
             "aludel: measure this machine for some seconds, print the plan, and write nothing");
  flags->Add("max-memory", "SIZE", &raw->max_memory,
             "aludel: end before the start where more is needed, as 8GB or 7.5GiB; default: what is free");
  flags->Add("max-disk", "SIZE", &raw->max_disk, "aludel: the same of the disk that holds --work");
  flags->Add("max-device-memory", "SIZE", &raw->max_device_memory,
             "aludel: the same of the memory of a GPU that --device names");
  flags->Add(
      "budget", "TIME", &raw->budget,
      "aludel: as 20m or 1h30m: takes as many prompts, the first of each file, steps and passes as fit "
      "into it, by the plan");
  flags->Add(
      "training-tokens", "N", &raw->training_tokens,
      "aludel: tokens that a decoder is fitted to, spread over all prompts; they are held in memory, in "
      "bf16; 0: all");
  flags->Add("patience", "N", &raw->patience,
             "aludel: end the training of a network after N looks at held-out tokens, of 20, that found no "
             "lower error, and keep the best; 0: never; -1: with --budget 4, else never");
  flags->Add(
      "device-flops", "X", &raw->device_flops,
      "aludel: with --dry-run, plan for a device that is not here: FLOP a second of its data sheet, as "
      "990e12");
  flags->Add(
      "device-f32-flops", "X", &raw->device_f32_flops,
      "aludel: the same of f32 products, which fits and training are made of, as 67e12; 0: a sixteenth");
  flags->Add("device-bandwidth", "X", &raw->device_bandwidth,
             "aludel: bytes a second of its memory, as 4.8e12");
  flags->Add("device-share", "X", &raw->device_share,
             "aludel: the share of these that is expected of it; 0: 0.4");
}

absl::Status CheckIsPlanned(const PlanFlags& raw, const AludelJob& job, bool planned) {
  const bool asked = job.dry_run || !raw.max_memory.empty() || !raw.max_disk.empty() ||
                     !raw.max_device_memory.empty() || !raw.budget.empty() || raw.device_flops != 0 ||
                     raw.device_f32_flops != 0 || raw.device_bandwidth != 0 || raw.device_share != 0 ||
                     raw.patience != -1 || raw.training_tokens != 0;
  if (planned || !asked) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--dry-run, --max-memory, --max-disk, --max-device-memory, --budget, --device-flops, "
      "--device-f32-flops, --device-bandwidth, --device-share, --patience and --training-tokens are for "
      "fits and --retune of preset aludel");
}

absl::Status ReadPlanFlags(const PlanFlags& raw, AludelJob* job) {
  if (!raw.max_memory.empty()) {
    ALUDEL_ASSIGN_OR_RETURN(job->max_memory, ParseBytes("--max-memory", raw.max_memory));
  }
  if (!raw.max_disk.empty()) {
    ALUDEL_ASSIGN_OR_RETURN(job->max_disk, ParseBytes("--max-disk", raw.max_disk));
  }
  if (!raw.max_device_memory.empty()) {
    ALUDEL_ASSIGN_OR_RETURN(job->max_device_memory, ParseBytes("--max-device-memory", raw.max_device_memory));
  }
  if (!raw.budget.empty()) {
    ALUDEL_ASSIGN_OR_RETURN(job->budget, ParseSeconds("--budget", raw.budget));
  }
  if (raw.patience < -1 || raw.training_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--patience is %d and --training-tokens is %d, want 0 or more, or --patience -1",
                        raw.patience, raw.training_tokens));
  }
  if (raw.patience >= 0 && (job->options.linear || job->retune)) {
    return absl::InvalidArgumentError(
        "--patience ends the training of networks: it goes without --linear and --retune");
  }
  if (raw.training_tokens > 0 && job->retune) {
    return absl::InvalidArgumentError(
        "--training-tokens is of fits: --retune goes without it and reads all of --data");
  }
  if (raw.patience >= 0) job->patience = raw.patience;
  job->options.training_tokens = raw.training_tokens;
  const bool device = raw.device_flops > 0 && raw.device_bandwidth > 0;
  if (!(raw.device_flops >= 0 && raw.device_f32_flops >= 0 && raw.device_bandwidth >= 0 &&
        raw.device_share >= 0 && raw.device_share <= 1) ||
      (raw.device_flops > 0) != (raw.device_bandwidth > 0) || (device && !job->dry_run) ||
      ((raw.device_share > 0 || raw.device_f32_flops > 0) && !device)) {
    return absl::InvalidArgumentError(
        "--device-flops and --device-bandwidth go together, above 0, with --dry-run, and "
        "--device-f32-flops and --device-share, at most 1, with them");
  }
  if (device && job->budget > 0) {
    return absl::InvalidArgumentError(
        "--budget is spent by rates that are measured here: it goes without --device-flops");
  }
  if (raw.device_share > 0) job->device_share = raw.device_share;
  job->device_flops = raw.device_flops;
  job->device_f32_flops = raw.device_f32_flops > 0 ? raw.device_f32_flops : raw.device_flops / 16;
  job->device_bandwidth = raw.device_bandwidth;
  return absl::OkStatus();
}

}  // namespace aludel
