#include "runtime/engine/engine.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "kernels/device_health.h"
#include "runtime/engine/engine_core.h"
#include "runtime/engine/engine_front.h"
#include "runtime/engine/engine_request.h"
#include "runtime/engine/sequence.h"
#include "runtime/model/decode_warm_up.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// The idle thread turns this often, so that a stale `last_progress` always means a wedged thread.
constexpr absl::Duration kHeartbeat = absl::Milliseconds(500);

int64_t DefaultBlocks(const Transformer& model, const EngineOptions& options) {
  const KvLayout one = model.MakeKvLayout(1, options.block_tokens, options.kv_dtype);
  const int64_t wanted = options.max_num_seqs * one.BlocksFor(options.max_context);
  // A device's own memory has the weights by now, and wants room for staging, codecs and graphs.
  // What they were read through is free.
  model.device()->ReleaseFreed();
  const std::optional<int64_t> free = FreeDeviceMemory(model.device()->name());
  const int64_t host = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  const int64_t bytes = free.has_value() ? *free / 10 * 8 : host / 4;
  const int64_t room =
      bytes / static_cast<int64_t>(one.total_bytes()) - BlockPool::PaddingBlocks(model.device());
  return std::max<int64_t>(1, std::min(wanted, room));
}

}  // namespace

class Engine::Impl {
 public:
  Impl(Transformer* model, const Tokenizer* tokenizer, const EngineOptions& options,
       std::unique_ptr<BlockPool> pool)
      : options_(options),
        pool_(std::move(pool)),
        reader_(model->config(), options, tokenizer),
        front_(pool_->layout(), options.max_num_seqs),
        core_(model, tokenizer, options, pool_.get(), &front_),
        thread_([this] { Loop(); }) {}

  ~Impl() {
    front_.Stop();
    thread_.join();
  }

  absl::StatusOr<SequenceId> Generate(GenerateSpec spec, std::shared_ptr<SequenceListener> listener);
  absl::StatusOr<SequenceId> Prefill(PrefillSpec spec, std::shared_ptr<SequenceListener> listener);
  // The command runs on the engine's thread.
  void Post(std::function<void(EngineCore&)> command) {
    front_.Post([this, command = std::move(command)] { command(core_); });
  }

  EngineStats stats() const { return front_.stats(); }
  const EngineOptions& options() const { return options_; }
  int64_t CachedTokens(absl::Span<const int32_t> prompt, const CodecSpec* codec,
                       const std::string& cache_salt, const LoraWeights* adapter,
                       int64_t adapter_begin) const {
    return core_.CachedTokens(prompt, codec, cache_salt, adapter, adapter_begin);
  }
  void WatchPrefixes(PrefixWatcher* watcher) { core_.WatchPrefixes(watcher); }

 private:
  absl::StatusOr<SequenceId> Admit(std::unique_ptr<Sequence> sequence, const RequestSize& size) {
    return front_.Admit(std::move(sequence), size,
                        [this](std::unique_ptr<Sequence> begun) { core_.Begin(std::move(begun)); });
  }
  void Loop();

  const EngineOptions options_;
  const std::unique_ptr<BlockPool> pool_;
  const RequestReader reader_;
  EngineFront front_;
  EngineCore core_;  // the thread's
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

void Engine::Impl::Loop() {
  pthread_setname_np(pthread_self(), "aludel-engine");  // shown by debuggers and top
  absl::Duration rest = kHeartbeat;
  std::vector<EngineFront::Command> commands;
  while (front_.Take(rest, &commands)) {
    for (const auto& command : commands) command();
    rest = std::min(core_.Turn(), kHeartbeat);
  }
  const absl::Status stopping = absl::UnavailableError("the engine is stopping");
  core_.EndAll(stopping);
  // Late commands still hold obligations: sequences to end, frames to release.
  for (const auto& command : front_.TakeRest()) command();
  core_.EndAll(stopping);
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
  if (options.warm_up_decoding) {
    ALUDEL_RETURN_IF_ERROR(ReserveForDecoding(*model, options.max_num_seqs));
  }
  if (options.kv_blocks == 0) options.kv_blocks = DefaultBlocks(*model, options);
  ALUDEL_ASSIGN_OR_RETURN(
      auto pool,
      BlockPool::Create(model->device(),
                        model->MakeKvLayout(options.kv_blocks, options.block_tokens, options.kv_dtype)));
  if (options.warm_up_decoding) {
    // Hedges add no row: the late sequence of each waits for frames meanwhile.
    ALUDEL_RETURN_IF_ERROR(WarmUpDecoding(*model, *pool, options.max_num_seqs, options.max_context));
  }
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
  impl_->Post([frame = std::make_shared<PendingFrame>(PendingFrame{
                   id, header, std::move(header_bytes), payload, std::move(release)})](EngineCore& core) {
    core.PushFrame(std::move(*frame));
  });
}
void Engine::Nudge() {
  impl_->Post([](EngineCore& /*core*/) {});
}
void Engine::RestartHandoff(SequenceId id) {
  impl_->Post([id](EngineCore& core) { core.RestartHandoff(id); });
}

void Engine::EndUpgrade(SequenceId id) {
  impl_->Post([id](EngineCore& core) { core.EndUpgrade(id); });
}
void Engine::FallBack(SequenceId id, absl::Status reason) {
  impl_->Post([id, reason = std::move(reason)](EngineCore& core) { core.FallBack(id, reason); });
}
void Engine::Hedge(SequenceId id, absl::Status reason) {
  impl_->Post([id, reason = std::move(reason)](EngineCore& core) { core.Hedge(id, reason); });
}
void Engine::Cancel(SequenceId id, absl::Status status) {
  impl_->Post([id, status = std::move(status)](EngineCore& core) { core.Cancel(id, status); });
}
int64_t Engine::CachedTokens(absl::Span<const int32_t> prompt, const CodecSpec* codec,
                             const std::string& cache_salt, const LoraWeights* adapter,
                             int64_t adapter_begin) const {
  return impl_->CachedTokens(prompt, codec, cache_salt, adapter, adapter_begin);
}
void Engine::WatchPrefixes(PrefixWatcher* watcher) { impl_->WatchPrefixes(watcher); }
EngineStats Engine::stats() const { return impl_->stats(); }
const EngineOptions& Engine::options() const { return impl_->options(); }

}  // namespace aludel
