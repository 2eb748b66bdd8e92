#include "server/decode/constraint_cache.h"

#include "runtime/status_macros.h"

namespace aludel {

std::shared_ptr<const TokenTable> ConstraintCache::Table() {
  absl::MutexLock lock(&mutex_);
  if (table_ == nullptr) table_ = std::make_shared<const TokenTable>(*tokenizer_, eos_ids_, vocab_);
  return table_;
}

ConstraintCache::Cache::Result ConstraintCache::Compile(const TextConstraint& constraint) {
  ALUDEL_ASSIGN_OR_RETURN(Grammar grammar, CompileConstraint(constraint));
  auto automaton = std::make_shared<TokenAutomaton>(std::move(grammar), Table());
  ALUDEL_RETURN_IF_ERROR(automaton->CheckStart());
  return automaton;
}

}  // namespace aludel
