#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "aludel/v1/handoff.pb.h"
#include "runtime/engine/engine.h"
#include "server/config/prefill_options.h"
#include "server/handoff/cache_epoch.h"
#include "server/handoff/frame_arena.h"
#include "server/host/model_host.h"
#include "server/observe/otlp_exporter.h"
#include "server/prefill/connection_cache.h"
#include "server/prefill/frame_producer.h"
#include "server/prefill/kv_sender.h"
#include "server/prefill/prefill_load.h"
#include "server/prefill/prefill_metrics.h"
#include "server/prefill/receiver_policy.h"
#include "server/prefill/run_registry.h"
#include "server/prefill/run_spec.h"
#include "server/prefill/run_timeline.h"
#include "server/prefill/send_window.h"
#include "server/prefill/upgrade_queue.h"
#include "server/process/timer.h"
#include "server/process/work_clock.h"
#include "server/rpc/event_stream.h"
#include "server/store/flights.h"
#include "server/store/prefix_store.h"

namespace aludel {

// What every run of a prefill server uses. Outlives all runs.
struct PrefillContext {
  const PrefillOptions* options = nullptr;
  PrefillHost* model = nullptr;
  FrameArena* arena = nullptr;
  ConnectionCache* connections = nullptr;
  const ReceiverPolicy* receivers = nullptr;
  PrefixStore* store = nullptr;
  Flights* flights = nullptr;
  CacheEpoch* cache_epoch = nullptr;
  Timer* timer = nullptr;
  const PrefillMetrics* metrics = nullptr;
  OtlpExporter* traces = nullptr;  // may be null
  std::atomic<int64_t>* runs_open = nullptr;
  RunRegistry* runs = nullptr;
  PrefillLoad* load = nullptr;
  WorkClock* handlers = nullptr;         // of gRPC's threads, in methods of the service
  std::function<absl::Status()> health;  // reported to peers by Describe
};

// One Prefill.Run call, from its request to the end of its stream:
//   waiting (for a window of send memory) -> connecting -> producing (stored frames leave as there is room, and beside
//   that the engine has what is not stored, see FrameProducer) -> sending (frames on their way, and second parts of frames that
//   come in two, see UpgradeQueue) -> ended
// Stop (client gone, deadline) leads from each of them to ended: a computation is cancelled, and sends that
// do not end by themselves soon after are ended by closing their connection. The stream ends exactly once,
// after the last send. What it decides is here; what is observed of it, and exported, is the RunTimeline's.
// Thread-safe; owned by the component that calls it next (connection cache, producer or sender).
class PrefillRun : public std::enable_shared_from_this<PrefillRun> {
 public:
  using Stream = EventStream<v1::RunEvent>;

  // `stream` shall call Stop when the client goes.
  PrefillRun(const PrefillContext& context, std::shared_ptr<Stream> stream, absl::Time deadline,
             const std::optional<TraceContext>& caller);
  ~PrefillRun();

  // `receiver` is where frames go, once the policy has admitted it.
  void Start(const v1::RunRequest& request, absl::StatusOr<std::string> receiver);
  void Stop(const absl::Status& reason);
  // The receiver has room for more frames (proto GrantRequest).
  void Grant(uint64_t credit);

 private:
  // Sets spec_, and counts the run's load unless it is hopeless.
  absl::Status Admit(const v1::RunRequest& request);
  // Reserves its window and connects; false where there is no room.
  bool ReserveWindow();
  // Does so when there is.
  void AwaitWindow();
  void OnConnected(absl::StatusOr<std::shared_ptr<PeerConnection>> connection);
  // How long to wait for another run that encodes this prompt.
  absl::Duration Patience() const;
  void Produce(const std::shared_ptr<KvSender>& sender);
  void OnRoom();
  // Has the engine compute a part of the prompt. Its steps wait for room in the lane.
  absl::StatusOr<SequenceId> Compute(const FrameProducer::Part& part, FrameSink* sink,
                                     const std::shared_ptr<KvSender::Lane>& lane,
                                     std::shared_ptr<SequenceListener> listener);
  // Sets how many tokens of the prompt still wait to be computed.
  void SetLoad(int64_t tokens);
  // Every frame is made, or none will be any more.
  void OnProduced(const absl::Status& status, const FrameProducer::Produced& produced);
  // No frame is sent any more.
  void Finish(KvSender& sender);
  void OnSent(const KvSender::Outcome& outcome);
  // Closes the connection of a stopped run whose sends do not end, where no other run uses it, or its progress is what it was `before`,
  // or at `until`; else looks again.
  void CloseUnlessItMoves(std::optional<uint64_t> before, absl::Time until);
  void ExportSpan(const absl::Status& status, const KvSender::Outcome& outcome);
  void End(const absl::Status& status, const KvSender::Outcome& outcome);

  const PrefillContext& context_;
  const std::shared_ptr<Stream> stream_;
  const absl::Time deadline_;
  const std::optional<TraceContext> caller_;
  std::atomic<int64_t> load_{0};  // what this run adds to context_.load

  // Set by Start before others see the run, then constant but for what the sender takes.
  RunSpec spec_;
  std::string salt_;  // of the engine's prefix cache
  std::string receiver_address_;
  SendWindow window_;
  FrameExtent extent_;  // until the sender takes it, as is the spec's cipher

  absl::Mutex mutex_;
  RunTimeline timeline_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<FrameProducer> producer_
      ABSL_GUARDED_BY(mutex_);  // null before there is a connection, and after it
  // Of frames in two parts; null before there is a connection.
  std::shared_ptr<UpgradeQueue> upgrades_ ABSL_GUARDED_BY(mutex_);
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);   // why Stop was called
  absl::Status produced_ ABSL_GUARDED_BY(mutex_);  // how producing ended
  std::shared_ptr<PeerConnection> connection_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const void> connection_use_ ABSL_GUARDED_BY(mutex_);  // until it is stopped
  std::shared_ptr<KvSender> sender_ ABSL_GUARDED_BY(mutex_);
  Timer::Id deadline_timer_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace aludel
