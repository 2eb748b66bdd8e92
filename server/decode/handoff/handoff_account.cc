#include "server/decode/handoff/handoff_account.h"

#include <utility>

namespace aludel {

void HandoffAccount::Begin(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  report_.begin = now;
}

int HandoffAccount::BeginAttempt(bool asks_server) {
  absl::MutexLock lock(&mutex_);
  // What a server that failed has said is not of this attempt.
  report_.producer.reset();
  report_.cached_tokens = report_.stored_tokens = 0;
  report_.asked_server |= asks_server;
  return ++report_.attempts;
}

bool HandoffAccount::Computed(int attempt, const ProducerSeconds& producer, int64_t cached_tokens,
                              int64_t stored_tokens) {
  Listener then;
  HandoffReport report;
  {
    absl::MutexLock lock(&mutex_);
    if (report_.attempts != attempt) return false;
    report_.producer = producer;
    report_.cached_tokens = cached_tokens;
    report_.stored_tokens = stored_tokens;
    then = std::exchange(when_computed_, nullptr);
    report = report_;
  }
  if (then) then(report);
  return true;
}

void HandoffAccount::Closed(const TicketUsage& usage, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  report_.usage = usage;
  report_.end = now;
}

void HandoffAccount::WhenComputed(Listener then) {
  HandoffReport report;
  {
    absl::MutexLock lock(&mutex_);
    if (!report_.producer) {
      when_computed_ = std::move(then);
      return;
    }
    report = report_;
  }
  then(report);
}

HandoffReport HandoffAccount::report() const {
  absl::MutexLock lock(&mutex_);
  return report_;
}

}  // namespace aludel
