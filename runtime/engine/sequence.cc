#include "runtime/engine/sequence.h"

#include <utility>

namespace aludel {

void Sequence::ChargeStep(int64_t own_rows, int64_t step_rows) {
  const double encode = encoder == nullptr ? 0 : encoder->TakeSeconds();
  const double computing = clock.Take() - encode;
  const double own = computing * static_cast<double>(own_rows) / static_cast<double>(step_rows);
  (handed_over > 0 ? times.recompute : times.prefill) += own;
  times.encode += encode;
  times.queue += computing - own;
}

std::unique_ptr<Sequence> ForkChoice(const Sequence& first, int choice, const Tokenizer* tokenizer) {
  auto fork = std::make_unique<Sequence>(first.tokens, first.max_completion, first.listener, first.group,
                                         choice, tokenizer);
  fork->id = first.id + choice;
  fork->prompt_end = first.prompt_end;
  fork->priority = first.priority;
  fork->deadline = first.deadline;
  fork->fell_back = first.fell_back;
  fork->fallback_reason = first.fallback_reason;
  if (first.constraint != nullptr) {
    fork->constraint = std::make_unique<TokenAutomaton::Cursor>(*first.constraint);
  }
  fork->clock = first.clock;
  fork->times = first.times;
  return fork;
}

SequenceResult EndSequence(Sequence& sequence, bool ok, FinishReason reason) {
  if (!sequence.started) {
    sequence.clock.Charge(sequence.awaiting() ? &sequence.times.await : &sequence.times.sample);
    sequence.times.ttft = sequence.clock.total();
  }
  SequenceResult result{sequence.choice, reason, sequence.prompt_tokens, sequence.completion_tokens()};
  if (ok && !sequence.stops.matched()) {
    result.tail_text = sequence.stops.Push(sequence.text.Flush()) + sequence.stops.Flush();
  }
  result.stop = sequence.stops.match();
  result.stop_id = sequence.stop_id;
  result.times = sequence.times;
  result.cached_tokens = sequence.cached_tokens;
  result.fell_back = sequence.fell_back;
  result.fallback_reason = sequence.fallback_reason;
  return result;
}

}  // namespace aludel
