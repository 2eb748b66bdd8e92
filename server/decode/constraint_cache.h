#pragma once

#include <list>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "runtime/constrain/json_schema.h"
#include "runtime/constrain/token_automaton.h"
#include "runtime/model/tokenizer.h"

namespace aludel {

// The constraints asked for last, compiled: requests with the same schema share one automaton, and with it
// its masks. Holds at most kMaxEntries. Thread-safe.
class ConstraintCache {
 public:
  static constexpr size_t kMaxEntries = 16;

  // The tokenizer must outlive the cache. `vocab` is the model's.
  ConstraintCache(const Tokenizer* tokenizer, std::vector<int> eos_ids, int vocab)
      : tokenizer_(tokenizer), eos_ids_(std::move(eos_ids)), vocab_(vocab) {}

  // InvalidArgument says what of the schema is not supported, FailedPrecondition what is too large.
  absl::StatusOr<std::shared_ptr<TokenAutomaton>> Get(const TextConstraint& constraint);

 private:
  using Entry = std::pair<TextConstraint, std::shared_ptr<TokenAutomaton>>;
  // The newest first. Null if there is none.
  std::shared_ptr<TokenAutomaton> Find(const TextConstraint& constraint)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Tokenizer* const tokenizer_;
  const std::vector<int> eos_ids_;
  const int vocab_;
  absl::Mutex mutex_;
  std::shared_ptr<const TokenTable> table_ ABSL_GUARDED_BY(mutex_);  // made for the first constraint
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
