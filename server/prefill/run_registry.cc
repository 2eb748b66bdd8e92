#include "server/prefill/run_registry.h"

namespace aludel {

absl::Status RunRegistry::Add(const TicketId& ticket, const std::shared_ptr<PrefillRun>& run) {
  absl::MutexLock lock(&mutex_);
  if (runs_.size() >= kMaxRuns) return absl::ResourceExhaustedError("too many runs are open");
  if (runs_.try_emplace(ticket, Entry{run.get(), run}).second) return absl::OkStatus();
  return absl::AlreadyExistsError("ticket: it has a run already");
}

void RunRegistry::Remove(const TicketId& ticket, const PrefillRun* run) {
  absl::MutexLock lock(&mutex_);
  const auto found = runs_.find(ticket);
  if (found != runs_.end() && found->second.run == run) runs_.erase(found);
}

std::shared_ptr<PrefillRun> RunRegistry::Find(const TicketId& ticket) const {
  absl::MutexLock lock(&mutex_);
  const auto found = runs_.find(ticket);
  return found == runs_.end() ? nullptr : found->second.alive.lock();
}

}  // namespace aludel
