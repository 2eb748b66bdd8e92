#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/calibrate/plan/stage_work.h"
#include "runtime/calibrate/plan/work_rates.h"

namespace aludel {

// A stage's work and the time that it will take.
struct PlannedStage {
  StageWork work;
  double least_seconds = 0, most_seconds = 0;
};

// What a job is going to take, before it starts. Bytes and seconds.
struct CalibrationPlan {
  std::vector<PlannedStage> stages;
  double least_seconds = 0, most_seconds = 0;
  double memory = 0;  // at the peak
  Stage peak = Stage::kLoading;
  double device = 0;  // of a GPU, at the peak; 0: none is used
  double disk = 0;    // all that is there at the same time

  // "needs 9.1 GB of memory, 6.0 GB of disk, about 11.0 min"; on a GPU "20.3 GB of the device's", too.
  std::string Needs() const;
  // A row for each stage.
  std::string Table() const;
};

// Times are 0 without rates.
CalibrationPlan MakePlan(const std::vector<StageWork>& stages, const WorkRates* rates);

// What a job may take. Bytes, where they are known; the flags' names are for errors.
struct Room {
  std::optional<double> memory, disk;
  bool memory_by_flag = false, disk_by_flag = false;  // else it is what the machine has free
  std::optional<double> device;
  bool device_by_flag = false;
};

// ResourceExhausted where memory, a GPU's memory or disk do not suffice for what `input` says, with the flag, the figures, and
// settings of the job that would make it fit. An answer is taken to be as long as it may be.
absl::Status CheckRoom(const PlanInput& input, const Room& room);

// AludelOptions::group_layers for that room: the job's own where it names any, or extends a format. Else 0, or, where memory does
// not suffice for groups of that size, the largest of a half, a quarter, ... of the model's layers for which it does; 0, too,
// where it does for none.
int GroupLayersWithin(const PlanInput& input, const Room& room);

}  // namespace aludel
