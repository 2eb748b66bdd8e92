#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "aludel/v1/handoff.pb.h"
#include "runtime/engine.h"
#include "server/config.h"
#include "server/decode/constraint_cache.h"
#include "server/decode/kv_receiver.h"
#include "server/decode/planner.h"
#include "server/decode/prefill_pool.h"
#include "server/decode/run_call.h"
#include "server/decode/shadow_checker.h"
#include "server/decode/stages.h"
#include "server/event_stream.h"
#include "server/frame_arena.h"
#include "server/metrics.h"
#include "server/model_host.h"
#include "server/otlp_exporter.h"
#include "server/timer.h"

namespace aludel {

// What every request of a decode server uses. Outlives all sessions.
struct DecodeContext {
  const DecodeOptions* options = nullptr;
  ModelHost* model = nullptr;
  KvReceiver* receiver = nullptr;
  FrameArena* arena = nullptr;
  std::string receiver_address;
  PrefillPool* prefill_pool = nullptr;
  ConstraintCache* constraints = nullptr;
  Timer* timer = nullptr;
  Metrics* metrics = nullptr;
  OtlpExporter* traces = nullptr;   // may be null
  ShadowChecker* shadow = nullptr;  // may be null
  std::atomic<int64_t>* sessions_open = nullptr;
};

// One Decode.Generate call. The engine owns the request's fate: it ends every admitted sequence exactly once,
// and with that the session ends. Beside it a remote plan has a ticket (at the receiver) and a run (at the
// prefill server); whichever of these fails first, or the hand-over's deadline, abandons the hand-over: the
// ticket is closed, the run cancelled, and the engine told to prefill the prompt itself.
//
//   handing over --all frames landed--> generating --stop, length--> ended
//        |  run failed, frame lost, deadline        ^
//        '--------------> own prefill --------------'      Stop (client gone) leads to ended from anywhere.
//
// Thread-safe; calls into the engine, the receiver and gRPC are made without the lock.
class GenerateSession : public SequenceListener, public std::enable_shared_from_this<GenerateSession> {
 public:
  using Stream = EventStream<v1::GenerateEvent>;

  // `stream` shall call Stop when the client goes.
  GenerateSession(const DecodeContext& context, std::shared_ptr<Stream> stream, absl::Time deadline,
                  const std::optional<TraceContext>& caller);
  ~GenerateSession() override;

  void Start(const v1::GenerateRequest& request);
  void Stop(const absl::Status& reason);

 private:
  absl::StatusOr<Plan> ChoosePlan(const v1::GenerateRequest& request) const;
  absl::Status Admit(const v1::GenerateRequest& request, const Plan& plan);
  void StartHandover(const Plan& plan, FrameExtent extent, SequenceId sequence, std::vector<int32_t> prompt);
  void OnRunEvent(const v1::RunEvent& event);
  void OnRunEnd(const absl::Status& status);
  // The hand-over cannot complete: the prompt is prefilled here.
  void Abandon(const absl::Status& reason);
  // Closes the ticket and ends the run if there are any.
  void EndHandover();
  void ReportTarget(size_t target, const absl::Status& status);
  void OnToken(const TokenEvent& event) override;
  void OnDone(const absl::Status& status, const SequenceResult& result) override;
  void SendStarted(const SequenceTimes& times, bool fell_back, const absl::Status& fallback_reason);
  void End(const absl::Status& status);
  void ExportSpans(const absl::Status& status, const RequestLabels& labels);

  const DecodeContext context_;
  const std::shared_ptr<Stream> stream_;
  const absl::Time start_;
  const absl::Time deadline_;
  const std::optional<TraceContext> caller_;
  const std::optional<TraceContext> trace_;           // this session's operation, where its caller has one
  const std::optional<TraceContext> handover_trace_;  // and the hand-over's, within it
  std::string request_id_;                            // set by Start before others see the session
  std::optional<uint64_t> max_staleness_ms_;          // likewise
  TicketId ticket_ = {};                              // set before the ticket is opened
  bool started_ = false;                              // engine thread: Started was sent
  absl::Status lost_;                                 // engine thread: why a choice failed

  // Set before the engine has the sequence, then its thread's.
  std::optional<ShadowAnswer> shadow_;
  size_t shown_logprobs_ = 0;  // entries of a token's that the client asked for

  absl::Mutex mutex_;
  RequestLabels labels_ ABSL_GUARDED_BY(mutex_);
  absl::Time admitted_ ABSL_GUARDED_BY(mutex_);
  SequenceId sequence_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: not yet with the engine
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool handing_over_ ABSL_GUARDED_BY(mutex_) = false;
  bool ticket_open_ ABSL_GUARDED_BY(mutex_) = false;
  size_t target_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t handed_over_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<RunCall> run_ ABSL_GUARDED_BY(mutex_);
  Timer::Id handover_timer_ ABSL_GUARDED_BY(mutex_) = 0;
  KvReceiver::Usage usage_ ABSL_GUARDED_BY(mutex_);  // of the ticket when it was closed
  std::optional<ProducerSeconds> producer_ ABSL_GUARDED_BY(mutex_);
  // For the trace; the end is the epoch where no hand-over has ended.
  absl::Time handover_start_ ABSL_GUARDED_BY(mutex_);
  absl::Time handover_end_ ABSL_GUARDED_BY(mutex_) = absl::UnixEpoch();
  StageSeconds stages_ ABSL_GUARDED_BY(mutex_);                 // once the first token is out
  std::vector<absl::Time> last_token_ ABSL_GUARDED_BY(mutex_);  // by choice
  int open_choices_ ABSL_GUARDED_BY(mutex_) = 1;
  int64_t prompt_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t completion_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace aludel
