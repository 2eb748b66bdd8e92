#include "runtime/engine/engine_front.h"

#include <chrono>
#include <utility>

#include "runtime/status_macros.h"

namespace aludel {

EngineFront::EngineFront(const KvLayout& layout, int64_t max_num_seqs) : admission_(layout, max_num_seqs) {
  stats_.kv_blocks_total = layout.blocks;
  stats_.last_progress = std::chrono::steady_clock::now();
}

absl::StatusOr<SequenceId> EngineFront::Admit(std::unique_ptr<Sequence> sequence, const RequestSize& size,
                                              std::function<void(std::unique_ptr<Sequence>)> begin) {
  SequenceId id = 0;
  {
    absl::MutexLock lock(&mutex_);
    id = next_id_;
    ALUDEL_RETURN_IF_ERROR(admission_.Admit(id, size));
    next_id_ += size.choices;
    sequence->id = id;
    sequence->group->request = id;
    commands_.push_back([begin = std::move(begin), shared = std::make_shared<std::unique_ptr<Sequence>>(
                                                       std::move(sequence))] { begin(std::move(*shared)); });
  }
  wake_.Signal();
  return id;
}

SequenceId EngineFront::NewId() {
  absl::MutexLock lock(&mutex_);
  return next_id_++;
}

int64_t EngineFront::promised_blocks() const {
  absl::MutexLock lock(&mutex_);
  return admission_.promised_blocks();
}

void EngineFront::FallBack(SequenceId request) {
  absl::MutexLock lock(&mutex_);
  admission_.FallBack(request);
}

void EngineFront::End(SequenceId request, int choices) {
  absl::MutexLock lock(&mutex_);
  admission_.End(request, choices);
}

void EngineFront::Post(Command command) {
  {
    absl::MutexLock lock(&mutex_);
    commands_.push_back(std::move(command));
  }
  wake_.Signal();
}

void EngineFront::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  wake_.Signal();
}

bool EngineFront::Take(absl::Duration patience, std::vector<Command>* commands) {
  commands->clear();
  absl::MutexLock lock(&mutex_);
  if (commands_.empty() && !stopping_ && patience > absl::ZeroDuration()) {
    wake_.WaitWithTimeout(&mutex_, patience);
  }
  if (stopping_) return false;
  commands->swap(commands_);
  return true;
}

std::vector<EngineFront::Command> EngineFront::TakeRest() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(commands_, {});
}

void EngineFront::Publish(EngineStats stats) {
  absl::MutexLock lock(&mutex_);
  stats_ = stats;
  stats_.kv_blocks_reserved = admission_.promised_blocks();
  stats_.last_progress = std::chrono::steady_clock::now();
}

EngineStats EngineFront::stats() const {
  absl::MutexLock lock(&mutex_);
  return stats_;
}

}  // namespace aludel
