#include "runtime/calibrate/plan/stage_meter.h"

#include <algorithm>

#include "runtime/calibrate/plan/machine_room.h"

namespace aludel {

StageMeter::StageMeter() : watcher_([this] { Watch(); }) {}

StageMeter::~StageMeter() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  watcher_.join();
}

void StageMeter::Begin(Stage stage) {
  End();
  const std::lock_guard lock(mutex_);
  stage_ = stage;
  begun_ = Clock::now();
  ++figures_[static_cast<size_t>(stage)].times;
}

void StageMeter::End() {
  const std::lock_guard lock(mutex_);
  if (!stage_.has_value()) return;
  Look();
  figures_[static_cast<size_t>(*stage_)].seconds +=
      std::chrono::duration<double>(Clock::now() - begun_).count();
  stage_.reset();
}

double StageMeter::Seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

void StageMeter::Watch() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    Look();
    wake_.wait_for(lock, std::chrono::milliseconds(100));
  }
}

void StageMeter::Look() {
  if (!stage_.has_value()) return;
  int64_t& most = figures_[static_cast<size_t>(*stage_)].memory;
  most = std::max(most, HeldMemory());
}

}  // namespace aludel
