#include "server/decode/constraint_cache.h"

#include <algorithm>

#include "runtime/status_macros.h"

namespace aludel {

absl::StatusOr<std::shared_ptr<TokenAutomaton>> ConstraintCache::Get(const TextConstraint& constraint) {
  std::shared_ptr<const TokenTable> table;
  {
    absl::MutexLock lock(&mutex_);
    if (auto known = Find(constraint)) return known;
    if (table_ == nullptr) table_ = std::make_shared<const TokenTable>(*tokenizer_, eos_ids_, vocab_);
    table = table_;
  }
  ALUDEL_ASSIGN_OR_RETURN(Grammar grammar, CompileConstraint(constraint));
  auto automaton = std::make_shared<TokenAutomaton>(std::move(grammar), std::move(table));
  absl::MutexLock lock(&mutex_);
  if (auto known = Find(constraint)) return known;  // of a request that came meanwhile
  entries_.emplace_front(constraint, automaton);
  if (entries_.size() > kMaxEntries) entries_.pop_back();
  return automaton;
}

std::shared_ptr<TokenAutomaton> ConstraintCache::Find(const TextConstraint& constraint) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&constraint](const Entry& entry) { return entry.first == constraint; });
  if (found == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found);
  return entries_.front().second;
}

}  // namespace aludel
