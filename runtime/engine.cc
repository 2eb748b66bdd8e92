#include "runtime/engine.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "absl/strings/str_format.h"
#include "runtime/codec/coverage.h"
#include "runtime/codec/hand_over.h"
#include "runtime/scheduler.h"
#include "runtime/sequence.h"
#include "runtime/status_macros.h"
#include "runtime/token_emitter.h"

namespace aludel {
namespace {

// Frames reconstructed between two steps. A hand-over may delay running decodes by this much and no more.
constexpr int kFramesPerStep = 8;

// The idle thread looks up this often, so that a stale `last_progress` always means a wedged one.
constexpr std::chrono::milliseconds kHeartbeat(500);

SteadyClock::time_point ToSteady(absl::Time deadline) {
  // Nobody waits a year; the steady clock's type cannot hold much more.
  if (deadline - absl::Now() > absl::Hours(24 * 365)) return SteadyClock::time_point::max();
  return SteadyClock::now() + absl::ToChronoNanoseconds(deadline - absl::Now());
}

// Feeds an encoder from the forward pass and keeps its time apart from the forward's.
class EncodingObserver final : public LayerObserver {
 public:
  EncodingObserver(int64_t token_begin, std::unique_ptr<KvEncoder> encoder, FrameSink* sink)
      : token_begin_(token_begin), encoder_(std::move(encoder)), sink_(sink) {}
  absl::Status OnLayer(const LayerSlice& slice) override {
    const SteadyClock::time_point begin = SteadyClock::now();
    const auto part = ClipSlice(slice, token_begin_, std::numeric_limits<int64_t>::max());
    absl::Status status = part.has_value() ? encoder_->Encode(*part, *sink_) : absl::OkStatus();
    seconds_ += std::chrono::duration<double>(SteadyClock::now() - begin).count();
    return status;
  }
  // Seconds since the last call.
  double TakeSeconds() { return std::exchange(seconds_, 0.0); }

 private:
  const int64_t token_begin_;
  std::unique_ptr<KvEncoder> encoder_;
  FrameSink* sink_;
  double seconds_ = 0;
};

struct PendingFrame {
  SequenceId id;
  FrameHeader header;
  std::vector<uint8_t> header_bytes;
  absl::Span<const uint8_t> payload;
  std::function<void()> release;
};

int64_t DefaultBlocks(const Transformer& model, const EngineOptions& options) {
  const KvLayout one = model.MakeKvLayout(1, options.block_tokens, options.kv_dtype);
  const int64_t wanted = options.max_sequences * one.BlocksFor(options.max_context);
  const int64_t host = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  return std::max<int64_t>(1, std::min<int64_t>(wanted, host / 4 / static_cast<int64_t>(one.total_bytes())));
}

}  // namespace

class Engine::Impl {
 public:
  Impl(Transformer* model, const Tokenizer* tokenizer, const EngineOptions& options,
       std::unique_ptr<BlockPool> pool)
      : model_(model),
        tokenizer_(tokenizer),
        options_(options),
        pool_(std::move(pool)),
        emitter_(model->config().eos_ids, model->config().vocab) {
    stats_.kv_blocks_total = options_.kv_blocks;
    stats_.last_progress = absl::Now();
    thread_ = std::thread([this] { Loop(); });
  }

  ~Impl() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  absl::StatusOr<SequenceId> Generate(GenerateSpec spec, std::shared_ptr<SequenceListener> listener);
  absl::StatusOr<SequenceId> Prefill(PrefillSpec spec, std::shared_ptr<SequenceListener> listener);

  void Post(std::function<void()> command) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      commands_.push_back(std::move(command));
    }
    wake_.notify_one();
  }
  void PostFrame(PendingFrame frame) {
    Post([this, frame = std::make_shared<PendingFrame>(std::move(frame))] {
      frames_.push_back(std::move(*frame));
    });
  }
  void FallBack(SequenceId id, const absl::Status& reason);
  void Cancel(SequenceId id, const absl::Status& status);

  EngineStats stats() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }
  const EngineOptions& options() const { return options_; }

 private:
  absl::Status CheckPrompt(const std::vector<int32_t>& prompt) const;
  absl::Status CheckSampling(const SamplingParams& sampling) const;
  absl::StatusOr<SequenceId> Admit(std::unique_ptr<Sequence> sequence, int64_t tokens);

  // Engine thread only from here on.
  void Loop();
  void Begin(std::unique_ptr<Sequence> sequence);
  void ApplyFrames();
  absl::Status Apply(Sequence& sequence, const PendingFrame& frame);
  bool Step();
  void AfterStep(Sequence& sequence, BatchItem& item, absl::Span<const float> logits);
  void Emit(Sequence& sequence, absl::Span<const float> logits);
  void Fork(Sequence& sequence);
  static void Constrain(Sequence& sequence);
  void Expire();
  void Finish(SequenceId id, const absl::Status& status, FinishReason reason);
  void PublishStats();
  KvTarget Target(const Sequence& sequence) const;

  Transformer* const model_;
  const Tokenizer* const tokenizer_;
  const EngineOptions options_;
  const std::unique_ptr<BlockPool> pool_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::function<void()>> commands_;  // guarded by mutex_
  bool stopping_ = false;                        // guarded by mutex_
  int admitted_ = 0;                             // guarded by mutex_
  SequenceId next_id_ = 1;                       // guarded by mutex_
  EngineStats stats_;                            // guarded by mutex_

  std::map<SequenceId, std::unique_ptr<Sequence>> sequences_;  // in order of admission
  std::deque<PendingFrame> frames_;
  EngineStats counters_;  // the engine thread's own copy of the counting fields
  std::vector<float> logits_;
  TokenEmitter emitter_;
  std::thread thread_;
};

absl::Status Engine::Impl::CheckPrompt(const std::vector<int32_t>& prompt) const {
  if (prompt.empty()) return absl::InvalidArgumentError("the prompt is empty");
  const auto tokens = static_cast<int64_t>(prompt.size());
  if (tokens >= options_.max_context) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the prompt has %d tokens, this model's maximum context length is %d tokens", tokens,
                        options_.max_context));
  }
  for (const int32_t id : prompt) {
    if (id < 0 || id >= model_->config().vocab) {
      return absl::InvalidArgumentError(
          absl::StrFormat("token id %d, the vocabulary has %d", id, model_->config().vocab));
    }
  }
  return absl::OkStatus();
}

absl::Status Engine::Impl::CheckSampling(const SamplingParams& sampling) const {
  if (sampling.choices < 1 || sampling.choices > options_.max_sequences) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d choices asked for, this engine runs 1 to %d at once", sampling.choices, options_.max_sequences));
  }
  for (const LogitBias& bias : sampling.logit_bias) {
    if (bias.id < 0 || bias.id >= model_->config().vocab) {
      return absl::InvalidArgumentError(absl::StrFormat("logit_bias holds token id %d, the vocabulary has %d",
                                                        bias.id, model_->config().vocab));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<SequenceId> Engine::Impl::Generate(GenerateSpec spec,
                                                  std::shared_ptr<SequenceListener> listener) {
  ALUDEL_RETURN_IF_ERROR(CheckPrompt(spec.prompt));
  ALUDEL_RETURN_IF_ERROR(CheckSampling(spec.sampling));
  const int64_t room = options_.max_context - static_cast<int64_t>(spec.prompt.size());
  const int64_t max_completion =
      spec.sampling.max_tokens > 0 ? std::min(spec.sampling.max_tokens, room) : room;
  auto group = std::make_shared<ChoiceGroup>();
  std::random_device random;
  group->seed = uint64_t{random()} << 32 | random();
  group->sampling = std::move(spec.sampling);
  group->constraint = std::move(spec.constraint);
  group->open = group->sampling.choices;
  group->unforked = group->open - 1;
  auto sequence = std::make_unique<Sequence>(std::move(spec.prompt), max_completion, std::move(listener),
                                             std::move(group), /*choice=*/0, tokenizer_);
  if (spec.codec != nullptr) {
    const int64_t head = spec.codec->native_head_tokens();
    if (spec.handed_over_tokens <= head || spec.handed_over_tokens >= sequence->prompt_tokens) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "tokens [%d, %d) of a prompt of %d handed over, want an end of %d to %d", head,
          spec.handed_over_tokens, sequence->prompt_tokens, head + 1, sequence->prompt_tokens - 1));
    }
    ALUDEL_ASSIGN_OR_RETURN(auto decoder, spec.codec->NewDecoder());
    sequence->landing.emplace(Landing{spec.codec, std::move(decoder),
                                      FrameLedger(spec.codec->shipped_layers(), static_cast<uint32_t>(head),
                                                  static_cast<uint32_t>(spec.handed_over_tokens))});
    sequence->handed_over = spec.handed_over_tokens;
  }
  sequence->prompt_end = sequence->prompt_tokens;
  sequence->deadline = ToSteady(spec.deadline);
  const int64_t tokens = sequence->prompt_tokens + sequence->max_completion;
  return Admit(std::move(sequence), tokens);
}

absl::StatusOr<SequenceId> Engine::Impl::Prefill(PrefillSpec spec,
                                                 std::shared_ptr<SequenceListener> listener) {
  ALUDEL_RETURN_IF_ERROR(CheckPrompt(spec.prompt));
  auto sequence =
      std::make_unique<Sequence>(std::move(spec.prompt), /*max_completion=*/0, std::move(listener),
                                 std::make_shared<ChoiceGroup>(), /*choice=*/0, tokenizer_);
  if (spec.token_end <= 0 || spec.token_end > sequence->prompt_tokens) {
    return absl::InvalidArgumentError(absl::StrFormat("token_end is %d, want 1 to the prompt's %d tokens",
                                                      spec.token_end, sequence->prompt_tokens));
  }
  ALUDEL_ASSIGN_OR_RETURN(auto encoder, spec.codec->NewEncoder());
  sequence->encoder = std::make_unique<EncodingObserver>(
      std::max(spec.encode_begin, spec.codec->native_head_tokens()), std::move(encoder), spec.sink);
  sequence->prompt_end = spec.token_end;
  sequence->deadline = ToSteady(spec.deadline);
  return Admit(std::move(sequence), spec.token_end);
}

absl::StatusOr<SequenceId> Engine::Impl::Admit(std::unique_ptr<Sequence> sequence, int64_t tokens) {
  ChoiceGroup& group = *sequence->group;
  const int choices = group.open;
  // Only full blocks are shared for good; each choice needs its own copy of the one that it goes on writing.
  group.shared_blocks = choices > 1 ? sequence->prompt_tokens / options_.block_tokens : 0;
  group.choice_blocks = pool_->layout().BlocksFor(tokens) - group.shared_blocks;
  const int64_t blocks = group.shared_blocks + choices * group.choice_blocks;
  SequenceId id = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (admitted_ + choices > options_.max_sequences) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("%d sequences are admitted already and this request needs %d, the limit is %d",
                          admitted_, choices, options_.max_sequences));
    }
    if (stats_.kv_blocks_reserved + blocks > stats_.kv_blocks_total) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "%d tokens in %d choices need %d KV blocks, %d of %d are free", tokens, choices, blocks,
          stats_.kv_blocks_total - stats_.kv_blocks_reserved, stats_.kv_blocks_total));
    }
    admitted_ += choices;
    stats_.kv_blocks_reserved += blocks;
    id = next_id_;
    next_id_ += choices;
    sequence->id = id;
    group.request = id;
    commands_.push_back([this, shared = std::make_shared<std::unique_ptr<Sequence>>(std::move(sequence))] {
      Begin(std::move(*shared));
    });
  }
  wake_.notify_one();
  return id;
}

void Engine::Impl::Loop() {
  bool busy = false;
  while (true) {
    std::vector<std::function<void()>> commands;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (!busy && commands_.empty() && !stopping_) wake_.wait_for(lock, kHeartbeat);
      if (stopping_) break;
      commands.swap(commands_);
    }
    for (const auto& command : commands) command();
    Expire();
    ApplyFrames();
    busy = Step() || !frames_.empty();
    PublishStats();
  }
  for (auto& frame : frames_) frame.release();
  while (!sequences_.empty()) {
    Finish(sequences_.begin()->first, absl::UnavailableError("the engine is stopping"), FinishReason::kStop);
  }
  // Commands that came too late still own promises: sequences to end, frames to release.
  std::vector<std::function<void()>> late;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    late.swap(commands_);
  }
  for (const auto& command : late) command();
  for (auto& frame : frames_) frame.release();
  while (!sequences_.empty()) {
    Finish(sequences_.begin()->first, absl::UnavailableError("the engine is stopping"), FinishReason::kStop);
  }
}

KvTarget Engine::Impl::Target(const Sequence& sequence) const {
  return {model_,
          pool_.get(),
          sequence.blocks.ids(),
          absl::MakeConstSpan(sequence.tokens).subspan(0, sequence.prompt_tokens),
          sequence.handed_over,
          sequence.landing->codec->native_head_tokens()};
}

void Engine::Impl::Begin(std::unique_ptr<Sequence> owned) {
  Sequence& sequence = *owned;
  sequences_.emplace(sequence.id, std::move(owned));
  Constrain(sequence);
  // Admission has promised these blocks.
  const absl::Status grown = sequence.blocks.Grow(*pool_, sequence.prompt_end);
  ALUDEL_CHECK(grown.ok());
  if (!sequence.awaiting()) return;
  sequence.clock.Charge(&sequence.times.queue);
  const absl::Status begun = BeginHandOver(*sequence.landing->decoder, Target(sequence));
  sequence.clock.Charge(&sequence.times.native);
  if (!begun.ok()) FallBack(sequence.id, begun);
}

void Engine::Impl::FallBack(SequenceId id, const absl::Status& reason) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || !found->second->awaiting()) return;
  Sequence& sequence = *found->second;
  sequence.clock.Charge(&sequence.times.await);
  sequence.landing.reset();
  sequence.handed_over = 0;
  sequence.computed = 0;
  sequence.fell_back = true;
  sequence.fallback_reason = reason;
  ++counters_.fallbacks;
}

void Engine::Impl::Cancel(SequenceId id, const absl::Status& status) {
  for (auto next = sequences_.lower_bound(id);
       next != sequences_.end() && next->second->group->request == id;) {
    const SequenceId choice = (next++)->first;
    Finish(choice, status, FinishReason::kStop);
  }
}

void Engine::Impl::ApplyFrames() {
  for (int i = 0; i < kFramesPerStep && !frames_.empty(); ++i) {
    const PendingFrame frame = std::move(frames_.front());
    frames_.pop_front();
    const auto found = sequences_.find(frame.id);
    if (found == sequences_.end() || !found->second->awaiting()) {
      ++counters_.frames_rejected;
      frame.release();
      continue;
    }
    Sequence& sequence = *found->second;
    sequence.clock.Charge(&sequence.times.await);
    const absl::Status status = Apply(sequence, frame);
    sequence.clock.Charge(&sequence.times.reconstruct);
    frame.release();
    if (absl::IsAlreadyExists(status)) {
      ++counters_.frames_rejected;  // a duplicate: what landed first stays
    } else if (!status.ok()) {
      ++counters_.frames_rejected;
      FallBack(sequence.id, status);
    } else {
      ++counters_.frames_applied;
      if (sequence.landing->ledger.complete()) {
        sequence.landing.reset();
        sequence.computed = sequence.handed_over;
      }
    }
  }
}

absl::Status Engine::Impl::Apply(Sequence& sequence, const PendingFrame& frame) {
  Landing& landing = *sequence.landing;
  ALUDEL_RETURN_IF_ERROR(VerifyFrame(frame.header_bytes, frame.payload));
  if (frame.header.kind != landing.codec->kind()) {
    return absl::DataLossError(absl::StrFormat("frame kind is %d, the ticket's format %s has %d",
                                               static_cast<int>(frame.header.kind), landing.codec->name(),
                                               static_cast<int>(landing.codec->kind())));
  }
  ALUDEL_RETURN_IF_ERROR(landing.ledger.Add(frame.header.coverage));
  return landing.decoder->Apply(frame.header.coverage, frame.payload, Target(sequence));
}

bool Engine::Impl::Step() {
  std::vector<SchedulerSequence> runnable;
  for (const auto& [id, sequence] : sequences_) {
    if (!sequence->awaiting()) runnable.push_back({id, sequence->prompt_left()});
  }
  if (runnable.empty()) return false;
  const std::vector<StepItem> plan = PlanStep(runnable, options_.chunk_tokens, counters_.steps);

  std::vector<BatchItem> items;
  for (const StepItem& step : plan) {
    Sequence& sequence = *sequences_.at(step.id);
    sequence.clock.Charge(&sequence.times.queue);
    const absl::Status grown = sequence.blocks.Grow(*pool_, sequence.computed + step.tokens);
    ALUDEL_CHECK(grown.ok());
    const absl::Status writable = sequence.blocks.MakeWritable(*pool_, sequence.computed, model_->stream());
    ALUDEL_CHECK(writable.ok());
    const absl::Span<const int32_t> ids =
        absl::MakeConstSpan(sequence.tokens).subspan(sequence.computed, step.tokens);
    const bool last = sequence.computed + step.tokens == static_cast<int64_t>(sequence.tokens.size());
    items.push_back({ids, sequence.computed, sequence.blocks.ids(), last && sequence.max_completion > 0,
                     sequence.encoder.get(), absl::OkStatus()});
  }
  const absl::Status status = model_->Forward(absl::MakeSpan(items), *pool_, &logits_);
  ++counters_.steps;
  size_t next_logits = 0;
  const size_t vocab = model_->config().vocab;
  for (size_t i = 0; i < plan.size(); ++i) {
    Sequence& sequence = *sequences_.at(plan[i].id);
    if (!status.ok()) {
      Finish(sequence.id, status, FinishReason::kStop);
      continue;
    }
    absl::Span<const float> logits;
    if (items[i].wants_logits) logits = absl::MakeConstSpan(logits_).subspan(vocab * next_logits++, vocab);
    AfterStep(sequence, items[i], logits);
  }
  return true;
}

void Engine::Impl::AfterStep(Sequence& sequence, BatchItem& item, absl::Span<const float> logits) {
  const auto tokens = static_cast<int64_t>(item.ids.size());
  if (sequence.prompt_left() > 0) counters_.prompt_tokens += tokens;
  sequence.clock.Charge(sequence.handed_over > 0 ? &sequence.times.native : &sequence.times.prefill);
  if (sequence.encoder != nullptr) {
    const double encode = static_cast<EncodingObserver&>(*sequence.encoder).TakeSeconds();
    sequence.times.prefill -= encode;
    sequence.times.encode += encode;
    if (!item.observer_status.ok()) return Finish(sequence.id, item.observer_status, FinishReason::kStop);
  }
  sequence.computed += tokens;
  if (!logits.empty()) return Emit(sequence, logits);
  if (sequence.max_completion == 0 && sequence.prompt_left() == 0) {
    Finish(sequence.id, absl::OkStatus(), FinishReason::kStop);
  }
}

void Engine::Impl::Emit(Sequence& sequence, absl::Span<const float> logits) {
  if (sequence.group->unforked > 0) Fork(sequence);
  // The first tokens of all choices come from one row of logits.
  const bool first = sequence.choice == 0 && sequence.completion_tokens() == 0;
  const SequenceId begin = sequence.id;
  const SequenceId end = begin + (first ? sequence.group->sampling.choices : 1);
  for (SequenceId id = begin; id < end; ++id) {
    Sequence& choice = *sequences_.at(id);
    const int64_t before = choice.completion_tokens();
    const absl::StatusOr<std::optional<FinishReason>> end = emitter_.Emit(choice, logits);
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
    fork->computed = sequence.computed;
    fork->handed_over = sequence.handed_over;
    fork->deadline = sequence.deadline;
    fork->fell_back = sequence.fell_back;
    fork->fallback_reason = sequence.fallback_reason;
    Constrain(*fork);
    fork->clock = sequence.clock;
    fork->times = sequence.times;
    for (const BlockRef& block : sequence.blocks.blocks()) fork->blocks.Append(block);
    sequences_.emplace(fork->id, std::move(fork));
    --group.unforked;
  }
}

void Engine::Impl::Constrain(Sequence& sequence) {
  TokenAutomaton* automaton = sequence.group->constraint.get();
  if (automaton != nullptr) sequence.constraint = std::make_unique<TokenAutomaton::Cursor>(automaton);
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
  result.times = sequence->times;
  result.fell_back = sequence->fell_back;
  result.fallback_reason = sequence->fallback_reason;
  // Blocks first, word after: who hears the end may count on the room.
  sequence->blocks.Clear();
  // Choices that never came to be end with choice 0, which carried them.
  ChoiceGroup& group = *sequence->group;
  const int ended = 1 + std::exchange(group.unforked, 0);
  group.open -= ended;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    admitted_ -= ended;
    stats_.kv_blocks_reserved -= ended * group.choice_blocks + (group.open == 0 ? group.shared_blocks : 0);
  }
  PublishStats();
  for (int i = 0; i < ended; ++i, ++result.choice) sequence->listener->OnDone(status, result);
}

void Engine::Impl::PublishStats() {
  int64_t awaiting = 0;
  for (const auto& [id, sequence] : sequences_) awaiting += sequence->awaiting() ? 1 : 0;
  std::lock_guard<std::mutex> lock(mutex_);
  const int64_t reserved = stats_.kv_blocks_reserved;
  stats_ = counters_;
  stats_.running = static_cast<int64_t>(sequences_.size()) - awaiting;
  stats_.waiting = awaiting;
  stats_.kv_blocks_total = pool_->layout().blocks;
  stats_.kv_blocks_used = pool_->layout().blocks - pool_->free_blocks();
  stats_.kv_blocks_reserved = reserved;
  stats_.last_progress = absl::Now();
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Start(Transformer* model, const Tokenizer* tokenizer,
                                                      const EngineOptions& requested) {
  EngineOptions options = requested;
  if (options.max_context == 0) options.max_context = model->context();
  if (options.max_context < 2 || options.max_context > model->context()) {
    return absl::InvalidArgumentError(absl::StrFormat("max_context is %d, the model allows 2 to %d",
                                                      options.max_context, model->context()));
  }
  if (options.chunk_tokens < 1 || options.chunk_tokens > model->options().max_rows) {
    return absl::InvalidArgumentError(absl::StrFormat("chunk_tokens is %d, want 1 to the model's max_rows %d",
                                                      options.chunk_tokens, model->options().max_rows));
  }
  if (options.max_sequences < 1 || options.block_tokens < 1 || options.kv_blocks < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("max_sequences is %d, block_tokens %d, kv_blocks %d: the first two must be positive, "
                        "the last 0 or more",
                        options.max_sequences, options.block_tokens, options.kv_blocks));
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
void Engine::FallBack(SequenceId id, absl::Status reason) {
  impl_->Post([impl = impl_.get(), id, reason = std::move(reason)] { impl->FallBack(id, reason); });
}
void Engine::Cancel(SequenceId id, absl::Status status) {
  impl_->Post([impl = impl_.get(), id, status = std::move(status)] { impl->Cancel(id, status); });
}
EngineStats Engine::stats() const { return impl_->stats(); }
const EngineOptions& Engine::options() const { return impl_->options(); }

}  // namespace aludel
