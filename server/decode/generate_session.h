#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "aludel/v1/handoff.pb.h"
#include "runtime/engine/engine.h"
#include "server/decode/answer_stream.h"
#include "server/decode/decode_context.h"
#include "server/decode/handoff/handoff.h"
#include "server/decode/plan/planner.h"
#include "server/decode/request_planner.h"
#include "server/decode/request_timeline.h"
#include "server/decode/shadow_checker.h"
#include "server/observe/trace_context.h"

namespace aludel {

// One Decode.Generate call. The engine ends every admitted sequence exactly once, and the session ends with
// it. Beside it a remote or stored plan has a Handoff, which feeds the engine frames or, where it cannot, tells it to
// prefill the prompt itself; with the first token it is over.
//
//   handoff --all frames received--> generating --stop, length--> ended
//      |  given up, or late               ^
//      '---------> local prefill ---------'               Stop (client gone) leads to ended from anywhere.
//
// Beside a late handoff local prefill begins (the engine's hedge), and the first to be complete goes on.
//
// How it goes is here; what is planned, and learnt from it, is RequestPlanner's; what the engine and the handoff are
// asked for is made in generate_setup.h; what is observed and exported is the concern of RequestTimeline.
// Thread-safe; calls into the engine, the handoff and gRPC are made without the lock.
class GenerateSession : public SequenceListener, public std::enable_shared_from_this<GenerateSession> {
 public:
  // `stream` shall call Stop when the client goes; `prefixes` are the prompt's, as the gateway knows them.
  GenerateSession(const DecodeContext& context, std::shared_ptr<AnswerStream::Stream> stream,
                  absl::Time deadline, const std::optional<TraceContext>& caller,
                  v1::PromptPrefixes prefixes);
  ~GenerateSession() override;

  void Start(const v1::GenerateRequest& request);
  void Stop(const absl::Status& reason);

 private:
  // With its adapter on the device, where it names one.
  void Constrain(const v1::GenerateRequest& request);
  // With its constraint compiled, where it has one.
  void Begin(const v1::GenerateRequest& request, std::shared_ptr<TokenAutomaton> constraint);
  absl::Status Admit(const v1::GenerateRequest& request, const PlanRequest& wanted, const Plan& plan,
                     std::shared_ptr<TokenAutomaton> constraint);
  void EndHandoff(TicketState end);
  void OnToken(const TokenEvent& event) override;
  void OnPromptScores(const PromptScores& scores) override;
  void OnUpgraded(const absl::Status& status, int64_t completion_tokens) override;
  void OnDone(const absl::Status& status, const SequenceResult& result) override;
  // A trace is asked for, and all but the prefill server's account of the handoff is here.
  bool LacksAccount();
  void AwaitAccount(const SequenceResult& result, absl::Time until);
  // Of a choice that is over: its last events.
  void Conclude(const absl::Status& status, const SequenceResult& result);
  // Before the end of the last choice.
  absl::Status DeliverTrace();
  // Of the first token, or of an answer without one: ends the handoff, sends Started. Later calls
  // do nothing.
  void SendStarted(const SequenceTimes& times, int64_t cached_tokens, bool fell_back,
                   const absl::Status& fallback_reason);
  void CountHandoff(const std::optional<RequestTimeline::HandoffOutcome>& handoff);
  void End(const absl::Status& status);
  void ExportSpans(const absl::Status& status);

  const DecodeContext& context_;
  AnswerStream answer_;
  const absl::Time deadline_;
  const std::optional<RequestTrace> trace_;  // where the caller has one
  RequestPlanner planner_;
  v1::PromptPrefixes prefixes_;  // until the engine has the sequence

  // Set by Start before others see the session, then constant.
  std::string request_id_;
  std::string cache_salt_;  // of what is cached here: the request's since the last reset
  RequestAdapter adapter_;  // the engine's, once it has the sequence

  // Set before the engine has the sequence, then constant.
  std::shared_ptr<Handoff> handoff_;  // of a plan with frames
  std::string local_reason_;          // why an adapter's prompt cannot come as codes; "": it can
  size_t shown_logprobs_ = 0;         // entries of a token's that the client asked for
  std::unique_ptr<v1::RequestTrace> answer_trace_;  // where it was asked for; frames come into it at the end

  // The engine thread's, once it has the sequence.
  std::optional<ShadowAnswer> shadow_;

  // Choices are concluded one by one: by the engine's thread, or the timer's where one waited for its account. Taken before
  // mutex_.
  absl::Mutex conclude_mutex_;
  absl::Status lost_ ABSL_GUARDED_BY(conclude_mutex_);  // why a choice failed

  absl::Mutex mutex_;
  RequestTimeline timeline_ ABSL_GUARDED_BY(mutex_);
  uint64_t adapter_wait_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: none
  std::weak_ptr<ConstraintCache::Wait> constraint_wait_ ABSL_GUARDED_BY(mutex_);
  SequenceId sequence_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: not yet with the engine
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  int open_choices_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace aludel
