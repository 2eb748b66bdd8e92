#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "aludel/v1/handoff.grpc.pb.h"
#include "server/gateway/routing/decode_target.h"
#include "server/gateway/routing/decode_targets.h"
#include "server/observe/trace_context.h"
#include "server/process/work_clock.h"
#include "server/rpc/deadline.h"
#include "server/rpc/load_metadata.h"

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

  // To a server that Pick has chosen. `deadline` is one of MonotonicNow(); `prefixes` is PromptPrefixes, or nothing where the
  // server need not hear of them; `events` counts the time in OnEvent and must outlive it.
  GenerateAttempt(std::shared_ptr<Owner> owner, const DecodeTargets::Picked& picked, absl::Time deadline,
                  const std::string& traceparent, const std::string& prefixes, WorkClock* events)
      : owner_(std::move(owner)),
        target_(picked.target),
        cached_tokens_(picked.cached_tokens),
        events_(events) {
    context_.set_deadline(ToGrpcDeadline(deadline));
    if (!traceparent.empty()) context_.AddMetadata(kTraceparent, traceparent);
    if (!prefixes.empty()) context_.AddMetadata(kPrefixesKey, prefixes);
    if (picked.wait_limit) {
      const auto limit_ms = static_cast<uint32_t>(std::clamp(1e3 * *picked.wait_limit, 0.0, 1e9));
      context_.AddMetadata(kWaitLimitKey, std::to_string(limit_ms));
    }
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
  void OnReadInitialMetadataDone(bool ok) override {
    if (ok) Hint(context_.GetServerInitialMetadata());
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    const WorkClock::Work work(events_);
    target_->Heard();
    if (event_.has_started()) target_->Started(sent_, event_.started(), {prompt_tokens_, cached_tokens_});
    owner_->OnEvent(event_);
    StartRead(&event_);
  }
  void OnDone(const grpc::Status& status) override {
    target_->outstanding.fetch_sub(1, std::memory_order_relaxed);
    target_->Ended(status, places_);
    Hint(context_.GetServerTrailingMetadata());
    owner_->OnAttemptDone(target_.get(), status);
    delete this;
  }

  // A reply's report of its server's load.
  void Hint(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata) {
    const auto found = metadata.find(kLoadReportKey);
    if (found != metadata.end()) target_->Hinted({found->second.data(), found->second.size()});
  }

  const std::shared_ptr<Owner> owner_;
  const std::shared_ptr<DecodeTarget> target_;
  const int64_t cached_tokens_;  // as is believed
  WorkClock* const events_;
  grpc::ClientContext context_;
  v1::GenerateEvent event_;
  int64_t prompt_tokens_ = 0;
  int places_ = 1;
  absl::Time sent_;
};

}  // namespace aludel
