#include "server/prefill/prefill_run.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/codec/video/video_coder.h"
#include "runtime/status_macros.h"
#include "server/handoff/frame_cipher.h"
#include "server/handoff/frame_ring.h"
#include "server/host/shedding.h"
#include "server/rpc/deadline.h"
#include "server/rpc/rpc_status.h"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

// How long the sends of a stopped run may take to end by themselves before their connection is closed; and where only second parts of
// frames were left to send: most runs are stopped there, by the end of an answer, over a link that is slow.
constexpr absl::Duration kSendGrace = absl::Seconds(1);
constexpr absl::Duration kUpgradeGrace = absl::Seconds(10);
// Where other runs use the connection, too, how long it may make no progress: a hanging peer makes none, but a kernel whose buffer is
// full takes nothing either until a third of that has left, which takes seconds over a slow link. And how long these sends may
// take in all, as a peer that takes byte by byte holds the run's memory.
constexpr absl::Duration kStillGrace = absl::Seconds(10);
constexpr absl::Duration kMostGrace = absl::Seconds(60);
// Interval of retries for a window in a full arena.
constexpr absl::Duration kArenaLook = absl::Milliseconds(5);
// How long a run waits for another that encodes the same: a few times what computing all that waits here would take.
// That one may be held up by its receiver, which is no business of this one's.
constexpr double kPatienceFactor = 2;
constexpr absl::Duration kPatienceSlack = absl::Milliseconds(100);
constexpr absl::Duration kPatienceUnknown = absl::Seconds(1);  // while the speed of this server is not known

}  // namespace

PrefillRun::PrefillRun(const PrefillContext& context, std::shared_ptr<Stream> stream, absl::Time deadline,
                       const std::optional<TraceContext>& caller)
    : context_(context),
      stream_(std::move(stream)),
      deadline_(deadline),
      caller_(caller),
      timeline_(MonotonicNow()) {
  context_.runs_open->fetch_add(1);
}

PrefillRun::~PrefillRun() {
  context_.runs->Remove(spec_.ticket, this);
  SetLoad(0);
  // What these hold is the context's: memory of its arena, a place in its flights, codecs on its device.
  producer_.reset();
  upgrades_.reset();
  sender_.reset();
  extent_ = {};
  spec_.codec.reset();
  context_.runs_open->fetch_sub(1);  // last: the context may go
}

void PrefillRun::SetLoad(int64_t tokens) { context_.load->Change(tokens - load_.exchange(tokens)); }

absl::Status PrefillRun::Admit(const v1::RunRequest& request) {
  ALUDEL_ASSIGN_OR_RETURN(
      spec_, ReadRunRequest(request, [this](absl::string_view name, absl::string_view artifact_hash) {
        return context_.model->sets().Find(name, artifact_hash, MonotonicNow());
      }));
  salt_ = context_.cache_epoch->Salt(spec_.cache_salt);
  const PrefillLoad& load = *context_.load;
  const int64_t waiting = load.waiting_tokens();
  SetLoad(static_cast<int64_t>(spec_.prompt.size()));
  if (load.tokens_per_second() == 0) return absl::OkStatus();
  return ShedIfHopeless(static_cast<double>(waiting) / load.tokens_per_second(), waiting > 0, MonotonicNow(),
                        deadline_);
}

void PrefillRun::Start(const v1::RunRequest& request, absl::StatusOr<std::string> receiver) {
  absl::Status status = Admit(request);
  if (status.ok()) status = receiver.status();
  if (status.ok()) {
    absl::StatusOr<SendWindow> window = ChooseSendWindow(
        spec_, *context_.model, context_.options->handoff_window_bytes, context_.arena->bytes_total());
    status = window.status();
    if (window.ok()) window_ = *window;
  }
  if (status.ok()) status = context_.runs->Add(spec_.ticket, shared_from_this());
  if (!status.ok()) return End(status, {});
  if (spec_.workflow) context_.store->Expect(*spec_.workflow, SaltTag(spec_.cache_salt));
  receiver_address_ = *std::move(receiver);
  {
    absl::MutexLock lock(&mutex_);
    deadline_timer_ = context_.timer->At(deadline_, [weak = weak_from_this()] {
      if (const auto run = weak.lock())
        run->Stop(absl::DeadlineExceededError("the run's deadline has passed"));
    });
  }
  if (ReserveWindow()) return;
  context_.metrics->CountStall(Stall::kArena);
  AwaitWindow();
}

bool PrefillRun::ReserveWindow() {
  absl::StatusOr<FrameExtent> extent = context_.arena->Reserve(window_.bytes);
  if (!extent.ok()) return false;
  extent_ = *std::move(extent);
  context_.connections->Get(receiver_address_, deadline_, [self = shared_from_this()](auto connection) {
    self->OnConnected(std::move(connection));
  });
  return true;
}

void PrefillRun::AwaitWindow() {
  // Other runs free memory by their deadlines at the latest, and this one waits until its own.
  context_.timer->At(MonotonicNow() + kArenaLook, [self = shared_from_this()] {
    absl::Status stopped;
    {
      absl::MutexLock lock(&self->mutex_);
      stopped = self->stopped_;
    }
    if (!stopped.ok()) return self->End(stopped, {});
    if (!self->ReserveWindow()) self->AwaitWindow();
  });
}

void PrefillRun::OnConnected(absl::StatusOr<std::shared_ptr<PeerConnection>> connection) {
  if (!connection.ok()) return End(connection.status(), {});
  std::shared_ptr<KvSender> sender = KvSender::Create({.connection = *connection,
                                                       .window = std::move(extent_),
                                                       .ticket = spec_.ticket,
                                                       .epoch = spec_.epoch,
                                                       .codec = &spec_.codec->spec(),
                                                       .cipher = std::move(spec_.cipher),
                                                       .credit = spec_.credit,
                                                       .record_times = spec_.frame_times,
                                                       .on_room =
                                                           [weak = weak_from_this()] {
                                                             if (const auto run = weak.lock()) run->OnRoom();
                                                           }},
                                                      context_.metrics);
  absl::Status stopped;
  {
    absl::MutexLock lock(&mutex_);
    stopped = stopped_;
    connection_ = *std::move(connection);
    if (stopped_.ok()) connection_use_ = connection_->Use();
    sender_ = sender;
  }
  if (!stopped.ok()) return End(stopped, {});

  // Admitted goes first: the engine may be done before its call returns.
  v1::RunEvent admitted;
  admitted.mutable_admitted();
  stream_->Push(std::move(admitted));
  {
    absl::MutexLock lock(&mutex_);
    timeline_.SendingBegan(MonotonicNow());
  }
  Produce(sender);
}

void PrefillRun::Produce(const std::shared_ptr<KvSender>& sender) {
  const auto stored = std::make_shared<KvSender::Lane>(sender);
  const auto computed = std::make_shared<KvSender::Lane>(sender);
  const int base_planes = spec_.codec->spec().base_planes;
  const auto upgrades =
      base_planes == 0 ? nullptr : std::make_shared<UpgradeQueue>(base_planes, context_.timer);
  const auto sink = [&upgrades](const std::shared_ptr<KvSender::Lane>& lane) -> std::shared_ptr<FrameSink> {
    if (upgrades == nullptr) return lane;
    return upgrades->FirstParts(lane);
  };
  const size_t frame = context_.model->StepFrameBound(spec_.codec->spec());
  // What another run stores meanwhile is in that one's load; Compute counts what is left after all.
  const auto on_wait = [weak = weak_from_this()](int64_t tokens) {
    if (const auto run = weak.lock()) run->SetLoad(tokens);
  };
  // `done` keeps the run until the producer needs it no longer.
  const auto producer = std::make_shared<FrameProducer>(FrameProducer::Spec{
      .feeding = {context_.store, context_.flights, context_.timer},
      .prompt = {.codec = &spec_.codec->spec(),
                 .salt = spec_.cache_salt,
                 .tokens = spec_.prompt,
                 .max_age = spec_.max_staleness,
                 .patience = Patience(),
                 .tokens_per_second = context_.load->tokens_per_second(),
                 .on_wait = on_wait,
                 .stores = !spec_.no_store},
      .store = spec_.no_store ? nullptr : context_.store,
      .stored = sink(stored),
      .has_room =
          [windowed = window_.limits, frame, stored](size_t payload_bytes) {
            return !windowed ||
                   stored->HasRoom(FrameRing::Weight(payload_bytes + FrameCipher::kTagBytes), frame);
          },
      .computed = sink(computed),
      .begin =
          [this, computed](const FrameProducer::Part& part, FrameSink* sink,
                           std::shared_ptr<SequenceListener> listener) {
            return Compute(part, sink, computed, std::move(listener));
          },
      .cancel = [this](SequenceId id,
                       const absl::Status& reason) { context_.model->engine().Cancel(id, reason); },
      .part_ended =
          [this, computed] {
            SetLoad(0);
            computed->GiveBack();
          },
      .nudge = [this] { context_.model->engine().Nudge(); },
      .done = [self = shared_from_this()](
                  const absl::Status& status,
                  const FrameProducer::Produced& produced) { self->OnProduced(status, produced); }});
  absl::Status stopped;
  {
    absl::MutexLock lock(&mutex_);
    producer_ = producer;
    upgrades_ = upgrades;
    stopped = stopped_;
  }
  if (!stopped.ok()) producer->Stop(stopped);
  producer->Start();
}

absl::Duration PrefillRun::Patience() const {
  const double rate = context_.load->tokens_per_second();
  // That one may be last in the queue, of which this prompt is a part.
  const auto tokens = static_cast<double>(context_.load->waiting_tokens());
  return rate > 0 ? kPatienceSlack + absl::Seconds(kPatienceFactor * tokens / rate) : kPatienceUnknown;
}

// On the transport's, gRPC's or the engine's thread.
void PrefillRun::OnRoom() {
  std::shared_ptr<FrameProducer> producer;
  std::shared_ptr<UpgradeQueue> upgrades;
  {
    absl::MutexLock lock(&mutex_);
    producer = producer_;
    upgrades = upgrades_;
  }
  if (producer != nullptr) producer->OnRoom();
  if (upgrades != nullptr) upgrades->OnRoom();
}

void PrefillRun::Grant(uint64_t credit) {
  std::shared_ptr<KvSender> sender;
  {
    absl::MutexLock lock(&mutex_);
    sender = sender_;
  }
  if (sender != nullptr) sender->Grant(credit);
}

absl::StatusOr<SequenceId> PrefillRun::Compute(const FrameProducer::Part& part, FrameSink* sink,
                                               const std::shared_ptr<KvSender::Lane>& lane,
                                               std::shared_ptr<SequenceListener> listener) {
  SetLoad(part.end - part.begin);
  std::function<bool()> has_room;
  if (window_.limits) {
    has_room = [lane, step = context_.model->StepBytesBound(spec_.codec->spec(), window_.step_tokens),
                frame = context_.model->StepFrameBound(spec_.codec->spec())] {
      return lane->HasRoom(step, frame);
    };
  }
  return context_.model->engine().Prefill({.prompt = spec_.prompt,
                                           .token_end = part.end,
                                           .deadline = ToSteadyTime(deadline_),
                                           .codec = spec_.codec.get(),
                                           .sink = sink,
                                           .encode_begin = part.begin,
                                           .has_room = std::move(has_room),
                                           .step_tokens = window_.step_tokens,
                                           .cache_salt = salt_,
                                           .keep_prefix = !spec_.no_store,
                                           .codec_owner = spec_.codec},
                                          std::move(listener));
}

void PrefillRun::OnProduced(const absl::Status& status, const FrameProducer::Produced& produced) {
  SetLoad(0);
  // Of a workflow, where what the agent was sent is stored.
  if (status.ok() && spec_.workflow && !spec_.no_store) {
    context_.store->Remember(*spec_.workflow, produced.end);
  }
  if (status.ok() && produced.computed) {
    context_.load->Computed(produced.computed_tokens, produced.times.prefill + produced.times.encode);
  }
  std::shared_ptr<KvSender> sender;
  std::shared_ptr<UpgradeQueue> upgrades;
  SequenceTimes times = produced.times;
  absl::Time received;
  {
    absl::MutexLock lock(&mutex_);
    produced_ = status;
    producer_ = nullptr;
    if (status.ok() && !produced.computed) {
      timeline_.SentFromCache(MonotonicNow());
      times = timeline_.times();
    }
    timeline_.Computed(times);
    received = timeline_.received();
    sender = sender_;
    upgrades = upgrades_;
  }
  if (status.ok()) {
    v1::RunEvent event;
    v1::RunComputed* computed = event.mutable_computed();
    computed->set_queue_seconds(times.queue);
    computed->set_prefill_seconds(times.prefill);
    computed->set_encode_seconds(times.encode);
    computed->set_waiting_tokens(static_cast<uint64_t>(context_.load->waiting_tokens()));
    computed->set_prefill_tokens_per_second(context_.load->tokens_per_second());
    // What stands before a part that is encoded is computed again, where the engine does not have it.
    computed->set_cached_tokens(
        static_cast<uint64_t>(produced.computed ? produced.cached_tokens : produced.stored.tokens));
    computed->set_stored_tokens(static_cast<uint64_t>(produced.stored.tokens));
    if (spec_.frame_times) {
      for (v1::FrameTimes& frame : sender->TakeTimes(received)) *computed->add_frames() = std::move(frame);
    }
    stream_->Push(std::move(event));
  }
  if (!status.ok() || upgrades == nullptr) return Finish(*sender);
  upgrades->Send(sender, [self = shared_from_this(), sender] { self->Finish(*sender); });
}

void PrefillRun::Finish(KvSender& sender) {
  sender.Finish([self = shared_from_this()](const KvSender::Outcome& outcome) { self->OnSent(outcome); });
}

void PrefillRun::OnSent(const KvSender::Outcome& outcome) {
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    status = !stopped_.ok() ? stopped_ : !produced_.ok() ? produced_ : outcome.status;
  }
  End(status, outcome);
}

void PrefillRun::Stop(const absl::Status& reason) {
  std::shared_ptr<FrameProducer> producer;
  std::shared_ptr<UpgradeQueue> upgrades;
  {
    absl::MutexLock lock(&mutex_);
    if (ended_ || !stopped_.ok()) return;
    stopped_ = reason;
    connection_use_ = nullptr;
    producer = producer_;
    upgrades = upgrades_;
  }
  if (producer != nullptr) producer->Stop(reason);
  if (upgrades != nullptr) upgrades->Stop();
  const bool produced = producer == nullptr && upgrades != nullptr;
  const absl::Time now = MonotonicNow();
  context_.timer->At(now + (produced ? kUpgradeGrace : kSendGrace),
                     [weak = weak_from_this(), until = now + kMostGrace] {
                       if (const auto run = weak.lock()) run->CloseUnlessItMoves(std::nullopt, until);
                     });
}

void PrefillRun::CloseUnlessItMoves(std::optional<uint64_t> before, absl::Time until) {
  std::shared_ptr<PeerConnection> connection;
  {
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    connection = connection_;
  }
  if (connection == nullptr) return;
  const uint64_t progress = connection->progress();
  if (connection->used() && progress != before && MonotonicNow() < until) {
    context_.timer->At(MonotonicNow() + kStillGrace, [weak = weak_from_this(), progress, until] {
      if (const auto run = weak.lock()) run->CloseUnlessItMoves(progress, until);
    });
    return;
  }
  spdlog::warn("request={} its receiver takes no frames: closing the connection", spec_.request_id);
  context_.connections->Close(std::move(connection));
}

void PrefillRun::End(const absl::Status& status, const KvSender::Outcome& outcome) {
  std::shared_ptr<PeerConnection> connection;
  std::shared_ptr<KvSender> sender;
  Timer::Id timer = 0;
  RunTimeline::Ended ended;
  {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    ended = timeline_.End(status.code(), MonotonicNow());
    std::swap(connection, connection_);
    connection_use_ = nullptr;
    std::swap(sender, sender_);
    timer = deadline_timer_;
  }
  context_.timer->Cancel(timer);
  if (status.ok()) {
    v1::RunEvent event;
    event.mutable_finished()->set_frames(outcome.frames);
    event.mutable_finished()->set_frame_bytes(outcome.frame_bytes);
    stream_->Push(std::move(event));
  }
  context_.metrics->handoffs.CountHandoff("sent", StatusName(ended.code), ended.seconds);
  context_.metrics->SetVideoFailures(GetVideoFailures());
  spdlog::log(status.ok() ? spdlog::level::debug : spdlog::level::info,
              "request={} run ended: {} ({} frames, {} bytes, {:.3f} s)", spec_.request_id, status.ToString(),
              outcome.frames, outcome.frame_bytes, ended.seconds);
  if (context_.traces != nullptr && caller_ && caller_->sampled) ExportSpan(status, outcome);
  stream_->End(ToGrpc(status));
}

void PrefillRun::ExportSpan(const absl::Status& status, const KvSender::Outcome& outcome) {
  Span span;
  {
    absl::MutexLock lock(&mutex_);
    span = timeline_.ToSpan(caller_->NewChild(), *caller_, context_.options->model_name, spec_.request_id,
                            {outcome.frames, outcome.frame_bytes}, status, MonotonicNow(), absl::Now());
  }
  context_.traces->Export(std::move(span));
}

}  // namespace aludel
