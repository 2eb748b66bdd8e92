#include "runtime/engine/engine_core.h"

#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"

namespace aludel {
namespace {

// Until the device is asked again whether it has read the frames that it was given.
constexpr absl::Duration kDeviceReads = absl::Milliseconds(1);

}  // namespace

EngineCore::EngineCore(Transformer* model, const Tokenizer* tokenizer, const EngineOptions& options,
                       BlockPool* pool, EngineFront* front)
    : tokenizer_(tokenizer),
      pool_(pool),
      front_(front),
      blocks_(model->hash(), options, pool, &counters_),
      hedges_(pool->layout(), options.max_hedges, tokenizer, &blocks_, &counters_),
      intake_(model, pool, &blocks_, &counters_, [front] { front->Post([] {}); }),
      runner_(model, pool, &blocks_),
      pace_(options.max_num_batched_tokens),
      emitter_(model->config().eos_ids, model->config().vocab) {}

void EngineCore::Begin(std::unique_ptr<Sequence> owned) {
  Sequence& sequence = *owned;
  blocks_.Begin(sequence, sequences_);
  sequences_.emplace(sequence.id, std::move(owned));
  if (TokenAutomaton* const automaton = sequence.group->constraint.get()) {
    sequence.constraint = std::make_unique<TokenAutomaton::Cursor>(automaton);
  }
  if (sequence.computed < sequence.cached_wanted) {
    // Other sequences took the blocks since the caller looked. Over fewer blocks the answer would be neither
    // the format's nor exact.
    FallBack(sequence,
             absl::NotFoundError(absl::StrFormat("%d tokens were in the prefix cache, %d are left in it",
                                                 sequence.cached_wanted, sequence.computed)));
  }
  if (!sequence.awaiting()) return;
  const absl::Status begun = intake_.Begin(sequence);
  if (!begun.ok()) FallBack(sequence.id, begun);
}

void EngineCore::FallBack(SequenceId id, const absl::Status& reason) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || !found->second->awaiting()) return;
  FallBack(*found->second, reason);
}

void EngineCore::FallBack(Sequence& sequence, const absl::Status& reason) {
  intake_.FallBack(sequence, reason);
  hedges_.Adopt(sequence, sequences_);
  front_->FallBack(sequence.group->request);
}

void EngineCore::Hedge(SequenceId id, const absl::Status& reason) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || !found->second->awaiting() || found->second->hedge != 0) return;
  hedges_.Begin(*found->second, front_->NewId(), reason, front_->promised_blocks(), sequences_);
}

void EngineCore::RestartHandoff(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  const absl::Status restarted = intake_.Restart(*found->second);
  if (!restarted.ok()) FallBack(id, restarted);
}

void EngineCore::EndUpgrade(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found != sequences_.end() && found->second->upgrading) intake_.EndUpgrade(*found->second);
}

void EngineCore::Cancel(SequenceId id, const absl::Status& status) {
  for (auto next = sequences_.lower_bound(id); next != sequences_.end() && next->second->group->request == id;
       next = sequences_.lower_bound(id)) {
    Finish(next->first, status, FinishReason::kStop);
  }
}

absl::Duration EngineCore::Turn() {
  Expire();
  if (const auto failed = intake_.ApplySome(sequences_, step_seconds_))
    FallBack(failed->first, failed->second);
  hedges_.DropNeedless(sequences_);
  masks_.Prepare(sequences_);
  const bool busy = Step() || !intake_.empty() || masks_.pending();
  PublishStats();
  if (busy) return absl::ZeroDuration();
  return intake_.settled() ? absl::InfiniteDuration() : kDeviceReads;
}

void EngineCore::EndAll(const absl::Status& status) {
  intake_.ReleaseAll();
  while (!sequences_.empty()) Finish(sequences_.begin()->first, status, FinishReason::kStop);
}

bool EngineCore::Step() {
  const std::vector<StepItem> plan = blocks_.Plan(sequences_);
  if (plan.empty()) return false;
  std::vector<StepResult> results;
  const SteadyClock::time_point begun = SteadyClock::now();
  const absl::Status status = runner_.Run(plan, sequences_, &results);
  intake_.Settle();  // the step's work came behind its frames'
  ++counters_.steps;
  if (!status.ok()) {
    for (const StepItem& item : plan) Finish(item.id, status, FinishReason::kStop);
  }
  int64_t rows = 0;
  for (const StepResult& result : results) rows += result.rows;
  step_seconds_ = std::chrono::duration<double>(SteadyClock::now() - begun).count();
  pace_.Observe(rows, step_seconds_, sequences_.size() > 1);
  blocks_.SetTokenBudget(pace_.budget());
  for (const StepResult& result : results) AfterStep(*sequences_.at(result.id), result, rows);
  return true;
}

void EngineCore::AfterStep(Sequence& sequence, const StepResult& result, int64_t step_rows) {
  if (sequence.prompt_left() > 0) counters_.prompt_tokens += result.tokens;
  sequence.ChargeStep(result.rows, step_rows);
  if (sequence.encoder != nullptr) {
    if (!result.observer_status.ok()) {
      return Finish(sequence.id, result.observer_status, FinishReason::kStop);
    }
    sequence.encoder->Encoded(sequence.computed + result.tokens);
  }
  blocks_.Advance(sequence, result.tokens);
  if (sequence.scorer != nullptr) {
    const absl::Status told = sequence.scorer->Tell(*sequence.listener);
    if (!told.ok()) return Finish(sequence.id, told, FinishReason::kStop);
  }
  if (sequence.hedge_of != 0 && sequence.prompt_left() == 0) {
    const absl::Status reason = sequences_.at(sequence.hedge_of)->hedge_reason;
    return FallBack(sequence.hedge_of, reason);
  }
  if (!result.logits.empty() || result.drawn.has_value()) return Emit(sequence, result);
  if (sequence.max_completion == 0 && sequence.prompt_left() == 0) {
    Finish(sequence.id, absl::OkStatus(), FinishReason::kLength);
  }
}

void EngineCore::Emit(Sequence& sequence, const StepResult& result) {
  if (sequence.group->unforked > 0) Fork(sequence);
  // The first tokens of all choices come from one row of logits.
  const bool first = sequence.choice == 0 && sequence.completion_tokens() == 0;
  const SequenceId begin = sequence.id;
  const SequenceId end = begin + (first ? sequence.group->sampling.choices : 1);
  for (SequenceId id = begin; id < end; ++id) {
    Sequence& choice = *sequences_.at(id);
    const int64_t before = choice.completion_tokens();
    const absl::StatusOr<std::optional<FinishReason>> end =
        emitter_.Emit(choice, result.logits, result.drawn);
    counters_.generated_tokens += choice.completion_tokens() - before;
    if (!end.ok()) {
      Finish(id, end.status(), FinishReason::kStop);
    } else if (end->has_value()) {
      Finish(id, absl::OkStatus(), **end);
    }
  }
}

void EngineCore::Fork(Sequence& sequence) {
  ChoiceGroup& group = *sequence.group;
  for (int choice = 1; choice < group.sampling.choices; ++choice, --group.unforked) {
    std::unique_ptr<Sequence> fork = ForkChoice(sequence, choice, tokenizer_);
    EngineBlocks::Fork(sequence, *fork);
    sequences_.emplace(fork->id, std::move(fork));
  }
}

void EngineCore::Expire() {
  const SteadyClock::time_point now = SteadyClock::now();
  std::vector<SequenceId> expired;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->deadline <= now) expired.push_back(id);
  }
  for (const SequenceId id : expired) {
    Finish(id, absl::DeadlineExceededError("the request's deadline has passed"), FinishReason::kStop);
  }
}

void EngineCore::Finish(SequenceId id, const absl::Status& status, FinishReason reason) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  // A hedge that ends alone leaves its sequence waiting as before.
  if (const SequenceId late = found->second->hedge_of; late != 0) {
    return hedges_.Drop(*sequences_.at(late), sequences_);
  }
  hedges_.Drop(*found->second, sequences_);
  const std::unique_ptr<Sequence> sequence = std::move(found->second);
  sequences_.erase(found);
  SequenceResult result = EndSequence(*sequence, status.ok(), reason);
  // Frees the blocks before the callback: a caller may submit again from it.
  sequence->blocks.Clear();
  // Choices that were not forked yet end with choice 0.
  ChoiceGroup& group = *sequence->group;
  const int ended = 1 + std::exchange(group.unforked, 0);
  group.open -= ended;
  front_->End(group.request, ended);
  PublishStats();
  for (int i = 0; i < ended; ++i, ++result.choice) sequence->listener->OnDone(status, result);
}

void EngineCore::PublishStats() {
  counters_.replays = runner_.replays();
  int64_t awaiting = 0;
  for (const auto& [id, sequence] : sequences_) awaiting += sequence->awaiting() ? 1 : 0;
  EngineStats stats = counters_;
  stats.running = static_cast<int64_t>(sequences_.size()) - awaiting - hedges_.running();
  stats.waiting = awaiting;
  stats.kv_blocks_total = pool_->layout().blocks;
  stats.kv_blocks_used = pool_->layout().blocks - pool_->free_blocks();
  stats.kv_blocks_cached = pool_->idle_blocks();
  front_->Publish(stats);
}

}  // namespace aludel
