#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "runtime/engine/admission.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/engine_stats.h"
#include "runtime/engine/sequence.h"
#include "runtime/kv/kv_layout.h"

namespace aludel {

// What callers of an engine and its thread share: admission, ids, the commands that the thread has not run yet, and the
// statistics it has published. The commands are bounded by what was admitted and by the frames and calls of those sequences.
// Thread-safe.
class EngineFront {
 public:
  using Command = std::function<void()>;

  // `layout` must outlive it.
  EngineFront(const KvLayout& layout, int64_t max_num_seqs);

  // Admits at once or fails as Admission::Admit does. Gives the sequence its ids, one for each choice, and posts a command
  // that calls `begin` with it.
  absl::StatusOr<SequenceId> Admit(std::unique_ptr<Sequence> sequence, const RequestSize& size,
                                   std::function<void(std::unique_ptr<Sequence>)> begin);
  // Of a sequence beside the admitted ones, which nothing is promised to.
  SequenceId NewId();
  int64_t promised_blocks() const;
  // As Admission's of the same names.
  void FallBack(SequenceId request);
  void End(SequenceId request, int choices);

  void Post(Command command);
  void Stop();
  // The commands since the last call, in order. Waits for one, for `patience` at most. False, and none taken, after Stop.
  bool Take(absl::Duration patience, std::vector<Command>* commands);
  // After Stop: those that are left.
  std::vector<Command> TakeRest();

  // Fills in what is known here: the reserved blocks, and the time.
  void Publish(EngineStats stats);
  EngineStats stats() const;

 private:
  mutable absl::Mutex mutex_;
  absl::CondVar wake_;
  std::vector<Command> commands_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  SequenceId next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  Admission admission_ ABSL_GUARDED_BY(mutex_);
  EngineStats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
