#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "aludel/v1/handoff.grpc.pb.h"
#include "server/gateway/routing/decode_target.h"
#include "server/observe/trace_context.h"
#include "server/process/work_clock.h"
#include "server/rpc/deadline.h"

namespace aludel {

// One Decode.Generate call to one server, which counts as outstanding there while it lives. Deletes itself when gRPC is
// done with it.
class GenerateAttempt : public grpc::ClientReadReactor<v1::GenerateEvent> {
 public:
  // Called on gRPC's threads, one call at a time, OnAttemptDone once and last.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void OnEvent(const v1::GenerateEvent& event) = 0;
    virtual void OnAttemptDone(DecodeTarget* target, grpc::Status status) = 0;
  };

  // To a server that Pick has chosen. `deadline` is one of MonotonicNow(); `events` counts the time in OnEvent and must
  // outlive it.
  GenerateAttempt(std::shared_ptr<Owner> owner, std::shared_ptr<DecodeTarget> target, absl::Time deadline,
                  const std::string& traceparent, WorkClock* events)
      : owner_(std::move(owner)), target_(std::move(target)), events_(events) {
    context_.set_deadline(ToGrpcDeadline(deadline));
    if (!traceparent.empty()) context_.AddMetadata(kTraceparent, traceparent);
    target_->outstanding.fetch_add(1, std::memory_order_relaxed);
  }
  // `request` must stay until OnAttemptDone.
  void Start(const v1::GenerateRequest* request) {
    prompt_tokens_ = request->prompt_size();
    places_ = static_cast<int>(std::max<uint32_t>(1, request->sampling().choices()));
    sent_ = MonotonicNow();
    target_->stub()->async()->Generate(&context_, request, this);
    StartRead(&event_);
    StartCall();
  }
  // Before OnAttemptDone.
  void Cancel() { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    const WorkClock::Work work(events_);
    target_->Heard();
    if (event_.has_started()) target_->Started(sent_, event_.started(), prompt_tokens_);
    owner_->OnEvent(event_);
    StartRead(&event_);
  }
  void OnDone(const grpc::Status& status) override {
    target_->outstanding.fetch_sub(1, std::memory_order_relaxed);
    target_->Ended(status, places_);
    owner_->OnAttemptDone(target_.get(), status);
    delete this;
  }

  const std::shared_ptr<Owner> owner_;
  const std::shared_ptr<DecodeTarget> target_;
  WorkClock* const events_;
  grpc::ClientContext context_;
  v1::GenerateEvent event_;
  int64_t prompt_tokens_ = 0;
  int places_ = 1;
  absl::Time sent_;
};

}  // namespace aludel
