#pragma once

#include <grpcpp/alarm.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/gateway/routing/answer_relay.h"
#include "server/gateway/routing/decode_prober.h"
#include "server/gateway/routing/decode_targets.h"
#include "server/gateway/routing/generate_attempt.h"
#include "server/gateway/routing/generate_call.h"
#include "server/gateway/routing/running_calls.h"
#include "server/gateway/routing/waiting_room.h"
#include "server/observe/metrics.h"
#include "server/process/work_clock.h"

namespace aludel {

// One request over its attempts: waits for a place, asks one server after the other, ends once. Owned by the running
// attempt, the room or the alarm; the exchange holds a weak reference to cancel it. Calls on gRPC's and the room's threads
// follow each other; only Cancel comes beside them.
//
//   waiting --admitted--> attempt --refused, not reached, turned away--> attempt ... --> ended
//      ^                     |  '--lost in the midst--> attempt that repeats, perhaps after a wait --> ended
//      '----every server is full
class RoutedCall : public GenerateCall,
                   public WaitingRoom::Guest,
                   public GenerateAttempt::Owner,
                   public std::enable_shared_from_this<RoutedCall> {
 public:
  // Router's, which outlives its calls.
  struct Routing {
    const DecodeTargets* targets = nullptr;
    WaitingRoom* room = nullptr;
    DecodeProber* prober = nullptr;
    WorkClock* events = nullptr;
    // Answers whose decode server was lost: "restarted" or "continued" on another one, or "lost".
    const CounterFamily* cut_answers = nullptr;
    absl::Duration rescue;  // how long an answer that was cut waits for another server
    RunningCalls* calls = nullptr;
    bool by_prefix = false;  // servers hear of prompts' beginnings, and tell other gateways
  };

  // `keys`: of the prompt.
  RoutedCall(const Routing& routing, RoutedRequest request, PrefixKeys keys,
             std::shared_ptr<GenerateObserver> observer);

  void Start() {
    routing_.calls->Begin();
    routing_.room->Enter(&visit_, shared_from_this());
  }
  void Cancel() override;

 private:
  void Admitted() override;
  void Refused(const grpc::Status& status) override { End(status); }
  void OnEvent(const v1::GenerateEvent& event) override;
  void OnAttemptDone(DecodeTarget* target, grpc::Status status) override;

  bool cancelled();
  bool TurnedAwayOften() const { return turned_away_by_.size() >= kMaxTurnAways; }
  // Starts the next attempt; if there is no server left to try, the request ends with `otherwise`.
  void Try(const grpc::Status& otherwise);
  // A server was lost in the midst of the answer.
  bool IsCut() const { return rescue_until_ != absl::InfinitePast(); }
  void GoOnElsewhere(const DecodeTarget& target, const grpc::Status& status);
  // No server can take the request now. One whose answer was cut may wait for that.
  void TryLater(const grpc::Status& otherwise);
  void TryAgain(const grpc::Status& otherwise);
  // Whether the request waits for a place again, as a server was full. One that is refused because its deadline is lost
  // does not.
  bool WaitsAgain(const grpc::Status& refusal);
  void End(const grpc::Status& status);

  const Routing& routing_;
  const std::string model_;
  v1::GenerateRequest request_;  // of the running attempt, or the next one
  const absl::Time deadline_;
  AnswerRelay relay_;
  const std::string traceparent_;
  std::vector<DecodeTarget*> tried_;
  std::vector<DecodeTarget*> gone_;  // of them, that could not be reached, or not to the end
  std::set<std::shared_ptr<DecodeTarget>>
      asked_;  // all of them, so that no other one takes their place in memory
  const PrefixKeys keys_;
  const std::string prefixes_;                 // of keys_, for the server
  bool picked_ = false;                        // a server was, once
  int64_t cached_tokens_ = 0;                  // that the last one picked is believed to have
  bool heard_ = false;                         // something of the attempt's answer
  std::vector<DecodeTarget*> turned_away_by_;  // kMaxTurnAways at most
  // Since a server was lost in the midst of the answer:
  absl::Time rescue_until_ = absl::InfinitePast();  // when others are no longer waited for
  grpc::Status lost_;
  std::string numerics_;  // that another server must have to go on; "": any
  const char* outcome_ = "lost";
  std::unique_ptr<grpc::Alarm> alarm_;  // of TryLater
  WaitingRoom::Visit visit_;
  bool admitted_ = false;
  bool found_full_ = false;  // a server, since the request was admitted
  absl::Mutex mutex_;
  GenerateAttempt* attempt_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace aludel
