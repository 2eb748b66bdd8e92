#include "runtime/engine/engine.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "runtime/engine/admission.h"
#include "runtime/engine/engine_blocks.h"
#include "runtime/engine/engine_hedges.h"
#include "runtime/engine/engine_intake.h"
#include "runtime/engine/engine_masks.h"
#include "runtime/engine/engine_request.h"
#include "runtime/engine/engine_step.h"
#include "runtime/engine/scheduler.h"
#include "runtime/engine/sequence.h"
#include "runtime/engine/step_pace.h"
#include "runtime/engine/token_emitter.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// The idle thread turns this often, so that a stale `last_progress` always means a wedged thread.
constexpr absl::Duration kHeartbeat = absl::Milliseconds(500);

int64_t DefaultBlocks(const Transformer& model, const EngineOptions& options) {
  const KvLayout one = model.MakeKvLayout(1, options.block_tokens, options.kv_dtype);
  const int64_t wanted = options.max_num_seqs * one.BlocksFor(options.max_context);
  const int64_t host = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  return std::max<int64_t>(1, std::min<int64_t>(wanted, host / 4 / static_cast<int64_t>(one.total_bytes())));
}

}  // namespace

class Engine::Impl {
 public:
  Impl(Transformer* model, const Tokenizer* tokenizer, const EngineOptions& options,
       std::unique_ptr<BlockPool> pool)
      : tokenizer_(tokenizer),
        options_(options),
        pool_(std::move(pool)),
        reader_(model->config(), options, tokenizer),
        admission_(pool_->layout(), options.max_num_seqs),
        blocks_(model->hash(), options, pool_.get(), &counters_),
        hedges_(pool_->layout(), options.max_hedges, tokenizer, &blocks_, &counters_),
        intake_(model, pool_.get(), &blocks_, &counters_),
        runner_(model, pool_.get(), &blocks_),
        pace_(options.max_num_batched_tokens),
        emitter_(model->config().eos_ids, model->config().vocab) {
    stats_.kv_blocks_total = options_.kv_blocks;
    stats_.last_progress = std::chrono::steady_clock::now();
    thread_ = std::thread([this] { Loop(); });
  }

  ~Impl() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    wake_.Signal();
    thread_.join();
  }

  absl::StatusOr<SequenceId> Generate(GenerateSpec spec, std::shared_ptr<SequenceListener> listener);
  absl::StatusOr<SequenceId> Prefill(PrefillSpec spec, std::shared_ptr<SequenceListener> listener);

  void Post(std::function<void()> command) {
    {
      absl::MutexLock lock(&mutex_);
      commands_.push_back(std::move(command));
    }
    wake_.Signal();
  }
  void PostFrame(PendingFrame frame) {
    Post([this, frame = std::make_shared<PendingFrame>(std::move(frame))] {
      intake_.Push(std::move(*frame));
    });
  }
  void FallBack(SequenceId id, const absl::Status& reason);
  void FallBack(Sequence& sequence, const absl::Status& reason);
  void Hedge(SequenceId id, const absl::Status& reason);
  void RestartHandoff(SequenceId id);
  void Cancel(SequenceId id, const absl::Status& status);

  EngineStats stats() const {
    absl::MutexLock lock(&mutex_);
    return stats_;
  }
  const EngineOptions& options() const { return options_; }
  int64_t CachedTokens(absl::Span<const int32_t> prompt, const CodecSpec* codec,
                       const std::string& cache_salt) const {
    return blocks_.MatchedTokens(prompt, codec, cache_salt);
  }

 private:
  absl::StatusOr<SequenceId> Admit(std::unique_ptr<Sequence> sequence, const RequestSize& size);

  // Engine thread only from here on.
  void Loop();
  void Begin(std::unique_ptr<Sequence> sequence);
  bool Step();
  void AfterStep(Sequence& sequence, const StepResult& result, int64_t step_tokens);
  void Emit(Sequence& sequence, const StepResult& result);
  void Fork(Sequence& sequence);
  void Expire();
  void Finish(SequenceId id, const absl::Status& status, FinishReason reason);
  void PublishStats();

  const Tokenizer* const tokenizer_;
  const EngineOptions options_;
  const std::unique_ptr<BlockPool> pool_;
  const RequestReader reader_;

  mutable absl::Mutex mutex_;
  absl::CondVar wake_;
  std::vector<std::function<void()>> commands_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  SequenceId next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  Admission admission_ ABSL_GUARDED_BY(mutex_);
  EngineStats stats_ ABSL_GUARDED_BY(mutex_);

  SequenceMap sequences_;  // in order of admission
  EngineStats counters_;   // the engine thread's own copy of the counting fields
  EngineBlocks blocks_;
  EngineHedges hedges_;
  EngineIntake intake_;
  EngineMasks masks_;
  StepRunner runner_;
  StepPace pace_;
  TokenEmitter emitter_;
  std::thread thread_;
};

absl::StatusOr<SequenceId> Engine::Impl::Generate(GenerateSpec spec,
                                                  std::shared_ptr<SequenceListener> listener) {
  RequestSize size{.prompt_tokens = static_cast<int64_t>(spec.prompt.size()),
                   .handed_over = spec.codec == nullptr          ? 0
                                  : spec.handed_over_tokens == 0 ? static_cast<int64_t>(spec.prompt.size())
                                                                 : spec.handed_over_tokens,
                   .choices = spec.sampling.choices};
  ALUDEL_ASSIGN_OR_RETURN(auto sequence, reader_.ReadGenerate(std::move(spec), std::move(listener)));
  size.max_completion = sequence->max_completion;
  return Admit(std::move(sequence), size);
}

absl::StatusOr<SequenceId> Engine::Impl::Prefill(PrefillSpec spec,
                                                 std::shared_ptr<SequenceListener> listener) {
  ALUDEL_ASSIGN_OR_RETURN(auto sequence, reader_.ReadPrefill(std::move(spec), std::move(listener)));
  const RequestSize size{.prompt_tokens = sequence->prompt_end};
  return Admit(std::move(sequence), size);
}

absl::StatusOr<SequenceId> Engine::Impl::Admit(std::unique_ptr<Sequence> sequence, const RequestSize& size) {
  SequenceId id = 0;
  {
    absl::MutexLock lock(&mutex_);
    id = next_id_;
    ALUDEL_RETURN_IF_ERROR(admission_.Admit(id, size));
    next_id_ += size.choices;
    sequence->id = id;
    sequence->group->request = id;
    commands_.push_back([this, shared = std::make_shared<std::unique_ptr<Sequence>>(std::move(sequence))] {
      Begin(std::move(*shared));
    });
  }
  wake_.Signal();
  return id;
}

void Engine::Impl::Loop() {
  pthread_setname_np(pthread_self(), "aludel-engine");  // shown by debuggers and top
  bool busy = false;
  while (true) {
    std::vector<std::function<void()>> commands;
    {
      absl::MutexLock lock(&mutex_);
      if (!busy && commands_.empty() && !stopping_) wake_.WaitWithTimeout(&mutex_, kHeartbeat);
      if (stopping_) break;
      commands.swap(commands_);
    }
    for (const auto& command : commands) command();
    Expire();
    if (const auto failed = intake_.ApplySome(sequences_)) FallBack(failed->first, failed->second);
    hedges_.DropNeedless(sequences_);
    masks_.Prepare(sequences_);
    busy = Step() || !intake_.empty() || masks_.pending();
    PublishStats();
  }
  intake_.ReleaseAll();
  while (!sequences_.empty()) {
    Finish(sequences_.begin()->first, absl::UnavailableError("the engine is stopping"), FinishReason::kStop);
  }
  // Late commands still hold obligations: sequences to end, frames to release.
  std::vector<std::function<void()>> late;
  {
    absl::MutexLock lock(&mutex_);
    late.swap(commands_);
  }
  for (const auto& command : late) command();
  intake_.ReleaseAll();
  while (!sequences_.empty()) {
    Finish(sequences_.begin()->first, absl::UnavailableError("the engine is stopping"), FinishReason::kStop);
  }
}

void Engine::Impl::Begin(std::unique_ptr<Sequence> owned) {
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

void Engine::Impl::FallBack(SequenceId id, const absl::Status& reason) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || !found->second->awaiting()) return;
  FallBack(*found->second, reason);
}

void Engine::Impl::FallBack(Sequence& sequence, const absl::Status& reason) {
  intake_.FallBack(sequence, reason);
  hedges_.Adopt(sequence, sequences_);
  absl::MutexLock lock(&mutex_);
  admission_.FallBack(sequence.group->request);
}

void Engine::Impl::Hedge(SequenceId id, const absl::Status& reason) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || !found->second->awaiting() || found->second->hedge != 0) return;
  SequenceId hedge = 0;
  int64_t promised = 0;
  {
    absl::MutexLock lock(&mutex_);
    hedge = next_id_++;
    promised = admission_.promised_blocks();
  }
  hedges_.Begin(*found->second, hedge, reason, promised, sequences_);
}

void Engine::Impl::RestartHandoff(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  const absl::Status restarted = intake_.Restart(*found->second);
  if (!restarted.ok()) FallBack(id, restarted);
}

void Engine::Impl::Cancel(SequenceId id, const absl::Status& status) {
  for (auto next = sequences_.lower_bound(id); next != sequences_.end() && next->second->group->request == id;
       next = sequences_.lower_bound(id)) {
    Finish(next->first, status, FinishReason::kStop);
  }
}

bool Engine::Impl::Step() {
  const std::vector<StepItem> plan = blocks_.Plan(sequences_);
  if (plan.empty()) return false;
  std::vector<StepResult> results;
  const SteadyClock::time_point begun = SteadyClock::now();
  const absl::Status status = runner_.Run(plan, sequences_, &results);
  ++counters_.steps;
  if (!status.ok()) {
    for (const StepItem& item : plan) Finish(item.id, status, FinishReason::kStop);
  }
  int64_t tokens = 0;
  for (const StepResult& result : results) tokens += result.tokens;
  pace_.Observe(tokens, std::chrono::duration<double>(SteadyClock::now() - begun).count(),
                sequences_.size() > 1);
  blocks_.SetTokenBudget(pace_.budget());
  for (const StepResult& result : results) AfterStep(*sequences_.at(result.id), result, tokens);
  return true;
}

void Engine::Impl::AfterStep(Sequence& sequence, const StepResult& result, int64_t step_tokens) {
  if (sequence.prompt_left() > 0) counters_.prompt_tokens += result.tokens;
  const double encode = sequence.encoder == nullptr ? 0 : sequence.encoder->TakeSeconds();
  const double computing = sequence.clock.Take() - encode;
  // Its own share of the step; the rest counts as waiting for others.
  const double own = computing * static_cast<double>(result.tokens) / static_cast<double>(step_tokens);
  (sequence.handed_over > 0 ? sequence.times.recompute : sequence.times.prefill) += own;
  sequence.times.encode += encode;
  sequence.times.queue += computing - own;
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

void Engine::Impl::Emit(Sequence& sequence, const StepResult& result) {
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

// The prompt is in the cache: every choice becomes a sequence of its own over the same blocks.
void Engine::Impl::Fork(Sequence& sequence) {
  ChoiceGroup& group = *sequence.group;
  for (int choice = 1; choice < group.sampling.choices; ++choice) {
    auto fork = std::make_unique<Sequence>(sequence.tokens, sequence.max_completion, sequence.listener,
                                           sequence.group, choice, tokenizer_);
    fork->id = sequence.id + choice;
    fork->prompt_end = sequence.prompt_end;
    fork->priority = sequence.priority;
    EngineBlocks::Fork(sequence, *fork);
    fork->deadline = sequence.deadline;
    fork->fell_back = sequence.fell_back;
    fork->fallback_reason = sequence.fallback_reason;
    // The mask for its first token comes along.
    if (sequence.constraint != nullptr) {
      fork->constraint = std::make_unique<TokenAutomaton::Cursor>(*sequence.constraint);
    }
    fork->clock = sequence.clock;
    fork->times = sequence.times;
    sequences_.emplace(fork->id, std::move(fork));
    --group.unforked;
  }
}

void Engine::Impl::Expire() {
  const SteadyClock::time_point now = SteadyClock::now();
  std::vector<SequenceId> expired;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->deadline <= now) expired.push_back(id);
  }
  for (const SequenceId id : expired) {
    Finish(id, absl::DeadlineExceededError("the request's deadline has passed"), FinishReason::kStop);
  }
}

void Engine::Impl::Finish(SequenceId id, const absl::Status& status, FinishReason reason) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  // A hedge that ends alone leaves its sequence waiting as before.
  if (const SequenceId late = found->second->hedge_of; late != 0) {
    return hedges_.Drop(*sequences_.at(late), sequences_);
  }
  hedges_.Drop(*found->second, sequences_);
  const std::unique_ptr<Sequence> sequence = std::move(found->second);
  sequences_.erase(found);
  if (!sequence->started) {
    sequence->clock.Charge(sequence->awaiting() ? &sequence->times.await : &sequence->times.sample);
    sequence->times.ttft = sequence->clock.total();
  }
  SequenceResult result{sequence->choice, reason, sequence->prompt_tokens, sequence->completion_tokens()};
  if (status.ok() && !sequence->stops.matched()) {
    result.tail_text = sequence->stops.Push(sequence->text.Flush()) + sequence->stops.Flush();
  }
  result.stop = sequence->stops.match();
  result.stop_id = sequence->stop_id;
  result.times = sequence->times;
  result.cached_tokens = sequence->cached_tokens;
  result.fell_back = sequence->fell_back;
  result.fallback_reason = sequence->fallback_reason;
  // Frees the blocks before the callback: a caller may submit again from it.
  sequence->blocks.Clear();
  // Choices that were not forked yet end with choice 0.
  ChoiceGroup& group = *sequence->group;
  const int ended = 1 + std::exchange(group.unforked, 0);
  group.open -= ended;
  {
    absl::MutexLock lock(&mutex_);
    admission_.End(group.request, ended);
  }
  PublishStats();
  for (int i = 0; i < ended; ++i, ++result.choice) sequence->listener->OnDone(status, result);
}

void Engine::Impl::PublishStats() {
  counters_.replays = runner_.replays();
  int64_t awaiting = 0;
  for (const auto& [id, sequence] : sequences_) awaiting += sequence->awaiting() ? 1 : 0;
  absl::MutexLock lock(&mutex_);
  stats_ = counters_;
  stats_.running = static_cast<int64_t>(sequences_.size()) - awaiting - hedges_.running();
  stats_.waiting = awaiting;
  stats_.kv_blocks_total = pool_->layout().blocks;
  stats_.kv_blocks_used = pool_->layout().blocks - pool_->free_blocks();
  stats_.kv_blocks_cached = pool_->idle_blocks();
  stats_.kv_blocks_reserved = admission_.promised_blocks();
  stats_.last_progress = std::chrono::steady_clock::now();
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Start(Transformer* model, const Tokenizer* tokenizer,
                                                      const EngineOptions& requested) {
  EngineOptions options = requested;
  if (options.max_context == 0) options.max_context = model->context();
  if (options.max_context < 2 || options.max_context > model->context()) {
    return absl::InvalidArgumentError(absl::StrFormat("max_context is %d, the model allows 2 to %d",
                                                      options.max_context, model->context()));
  }
  if (options.max_num_batched_tokens < 1 || options.max_num_batched_tokens > model->options().max_rows) {
    return absl::InvalidArgumentError(
        absl::StrFormat("max_num_batched_tokens is %d, want 1 to the model's max_rows %d",
                        options.max_num_batched_tokens, model->options().max_rows));
  }
  if (options.max_num_seqs < 1 || options.block_tokens < 1 || options.kv_blocks < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("max_num_seqs is %d, block_tokens %d, kv_blocks %d: the first two must be positive, "
                        "the last 0 or more",
                        options.max_num_seqs, options.block_tokens, options.kv_blocks));
  }
  if (options.kv_blocks == 0) options.kv_blocks = DefaultBlocks(*model, options);
  ALUDEL_ASSIGN_OR_RETURN(
      auto pool,
      BlockPool::Create(model->device(),
                        model->MakeKvLayout(options.kv_blocks, options.block_tokens, options.kv_dtype)));
  return std::unique_ptr<Engine>(
      new Engine(std::make_unique<Impl>(model, tokenizer, options, std::move(pool))));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

absl::StatusOr<SequenceId> Engine::Generate(GenerateSpec spec, std::shared_ptr<SequenceListener> listener) {
  return impl_->Generate(std::move(spec), std::move(listener));
}
absl::StatusOr<SequenceId> Engine::Prefill(PrefillSpec spec, std::shared_ptr<SequenceListener> listener) {
  return impl_->Prefill(std::move(spec), std::move(listener));
}
void Engine::ApplyFrame(SequenceId id, const FrameHeader& header, std::vector<uint8_t> header_bytes,
                        absl::Span<const uint8_t> payload, std::function<void()> release) {
  impl_->PostFrame({id, header, std::move(header_bytes), payload, std::move(release)});
}
void Engine::Nudge() {
  impl_->Post([] {});
}
void Engine::RestartHandoff(SequenceId id) {
  impl_->Post([impl = impl_.get(), id] { impl->RestartHandoff(id); });
}

void Engine::FallBack(SequenceId id, absl::Status reason) {
  impl_->Post([impl = impl_.get(), id, reason = std::move(reason)] { impl->FallBack(id, reason); });
}
void Engine::Hedge(SequenceId id, absl::Status reason) {
  impl_->Post([impl = impl_.get(), id, reason = std::move(reason)] { impl->Hedge(id, reason); });
}
void Engine::Cancel(SequenceId id, absl::Status status) {
  impl_->Post([impl = impl_.get(), id, status = std::move(status)] { impl->Cancel(id, status); });
}
int64_t Engine::CachedTokens(absl::Span<const int32_t> prompt, const CodecSpec* codec,
                             const std::string& cache_salt) const {
  return impl_->CachedTokens(prompt, codec, cache_salt);
}
EngineStats Engine::stats() const { return impl_->stats(); }
const EngineOptions& Engine::options() const { return impl_->options(); }

}  // namespace aludel
