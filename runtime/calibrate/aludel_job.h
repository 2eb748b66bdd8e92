#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/device.h"
#include "runtime/calibrate/calibrate_aludel.h"
#include "runtime/calibrate/calibrate_job.h"

namespace aludel {

// Attention sinks at a prompt's head are its first token and, in most models, the first delimiter behind it:
// in TinyLlama's chat template token 5. Their keys and values resemble no other token's.
inline constexpr int64_t kHeadTokens = 8;

// Of a training under a budget: a net that gets no better leaves its time to tuning.
inline constexpr int64_t kBudgetPatience = 4;

// aludel-calibrate --preset aludel without its command line. The user states a rate or a loss; the job finds
// the structure and the step that meet it.
struct AludelJob {
  CalibrateJob base;  // models, data, destination; `scd` is not looked at but for max_answer_tokens
  AludelOptions options;
  std::string format;  // name to give; "": aludel-pN
  std::optional<double> bytes_per_token;
  std::optional<double> max_kl;  // nats, mean over held-out answers of the worst consumer
  // Recomputed layers: one number, or the fewest up to a quarter of the model that meet max_kl.
  std::optional<int> recomputed_layers;
  // Recomputed ones, see CodecSpec; -1: as many as the preset wants, for aludel kHeadTokens and none.
  int64_t head_tokens = -1;
  int64_t tail_tokens = -1;
  // Prompts whose answers show where errors hurt; 0: every layer and token counts the same.
  int64_t sensitivity_prompts = 800;
  std::string tuning_data;  // question file for tuning alone, see AludelTuning; may be empty
  bool retune = false;      // tune decoders of a format that is there
  std::string work;         // directory of intermediate files; "": beside `out`
  bool keep_work = false;   // leave them there

  // A plan is printed before the start. `dry_run` ends there.
  bool dry_run = false;
  int64_t max_memory = 0, max_disk = 0, max_device_memory = 0;  // bytes; 0: what the machine has free
  // Seconds, models and all: prompts, steps and passes are chosen so that the plan fits. 0: as long as it takes.
  double budget = 0;
  // See DecoderTraining, whose is not looked at; none: with a budget kBudgetPatience, else 0.
  std::optional<int64_t> patience;
  // Of a device to plan for, which is not at hand: see DeviceSheet. With `dry_run` alone.
  double device_flops = 0, device_f32_flops = 0, device_bandwidth = 0, device_share = 0.4;
};

// Adds the format to the artifact in `base.out`, or replaces it there; other formats stay. With `base.add`
// the format's encoder stays and only decoders are fitted; with `retune` they are not fitted either but tuned
// further. As CheckPacking, before anything is read, where a library of the packing is missing; OutOfRange, with the
// measured floor, where max_kl cannot be met; ResourceExhausted, before models are
// loaded, where memory, a GPU's memory or disk do not suffice; DeadlineExceeded where a budget buys nothing, or was over before anything
// met max_kl. An interrupted job leaves `out` as it was and finds its intermediate files again. What it did is written to
// OUT.report/FORMAT.json and .txt.
absl::Status RunAludelJob(const AludelJob& job, Device* device);

}  // namespace aludel
