#include "server/prefill/prefill_service.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/handoff/caller_identity.h"
#include "server/rpc/deadline.h"
#include "server/rpc/rpc_status.h"
#include "server/rpc/rpc_trace.h"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

// A run has three events.
constexpr size_t kMaxBacklog = 4;

}  // namespace

grpc::ServerUnaryReactor* PrefillService::Describe(grpc::CallbackServerContext* call,
                                                   const v1::DescribeRequest* request,
                                                   v1::PrefillDescription* response) {
  const WorkClock::Work work(context_.handlers);
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  if (const absl::Status allowed = CheckCaller(*call, context_.options->decode_identities); !allowed.ok()) {
    reactor->Finish(ToGrpc(allowed));
    return reactor;
  }
  if (request->protocol_version() != kHandoffVersion) {
    reactor->Finish(ToGrpc(absl::FailedPreconditionError(absl::StrCat(
        "protocol version: found ", request->protocol_version(), ", this server speaks ", kHandoffVersion))));
    return reactor;
  }
  if (const absl::Status health = context_.health(); !health.ok()) {
    reactor->Finish(ToGrpc(health));
    return reactor;
  }
  absl::StatusOr<std::string> receiver = "";
  if (!request->receiver_address().empty()) {
    receiver = context_.receivers->Admit(request->receiver_address(), call->peer());
  }
  if (!receiver.ok()) {
    reactor->Finish(ToGrpc(receiver.status()));
    return reactor;
  }
  response->set_protocol_version(kHandoffVersion);
  response->set_waiting_tokens(static_cast<uint64_t>(context_.load->waiting_tokens()));
  response->set_prefill_tokens_per_second(context_.load->tokens_per_second());
  *response->mutable_model() = context_.model->Identity();
  response->set_epoch(epoch_);
  response->set_age_seconds(absl::ToDoubleSeconds(MonotonicNow() - began_));
  response->set_site(context_.options->site);
  std::set<std::pair<std::string, std::string>> offered;
  for (const auto& set : context_.model->sets().offered()) {
    for (const auto& codec : set->codecs) {
      const CodecSpec& spec = codec->spec();
      if (!offered.emplace(spec.name, spec.artifact_hash).second) continue;
      v1::WireFormat* format = response->add_formats();
      format->set_name(spec.name);
      format->set_artifact_hash(spec.artifact_hash);
    }
  }
  if (!receiver->empty()) {
    context_.connections->Get(*receiver, MonotonicNow() + context_.options->connect_timeout,
                              [](const auto&) {});
  }
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* PrefillService::Grant(grpc::CallbackServerContext* call,
                                                const v1::GrantRequest* request, v1::GrantResponse*) {
  const WorkClock::Work work(context_.handlers);
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  if (const absl::Status allowed = CheckCaller(*call, context_.options->decode_identities); !allowed.ok()) {
    reactor->Finish(ToGrpc(allowed));
    return reactor;
  }
  TicketId ticket = {};
  std::shared_ptr<PrefillRun> run;
  if (request->ticket_id().size() == ticket.size()) {
    std::copy(request->ticket_id().begin(), request->ticket_id().end(), ticket.begin());
    run = context_.runs->Find(ticket);
  }
  if (run != nullptr) run->Grant(request->credit_bytes());
  reactor->Finish(run != nullptr ? grpc::Status::OK : ToGrpc(absl::NotFoundError("no such run")));
  return reactor;
}

grpc::ServerUnaryReactor* PrefillService::ResetCache(grpc::CallbackServerContext* call,
                                                     const v1::ResetCacheRequest*, v1::ResetCacheResponse*) {
  const WorkClock::Work work(context_.handlers);
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const absl::Status allowed = CheckCaller(*call, context_.options->decode_identities);
  if (!allowed.ok()) {
    reactor->Finish(ToGrpc(allowed));
    return reactor;
  }
  context_.cache_epoch->Reset();
  // The call lives until it is finished, which may be on the thread that removes files.
  context_.store->Clear([reactor, peer = call->peer()](const absl::Status& cleared) {
    if (cleared.ok()) spdlog::info("the caches of frames and prefixes were reset for {}", peer);
    reactor->Finish(ToGrpc(cleared));
  });
  return reactor;
}

grpc::ServerWriteReactor<v1::RunEvent>* PrefillService::Run(grpc::CallbackServerContext* call,
                                                            const v1::RunRequest* request) {
  const WorkClock::Work work(context_.handlers);
  const absl::Time deadline = DeadlineOf(*call, context_.options->run_timeout);
  // The stream tells the run when its client goes; the run holds the stream.
  auto target = std::make_shared<std::weak_ptr<PrefillRun>>();
  auto stream = PrefillRun::Stream::Create(call, kMaxBacklog, [target] {
    if (const auto run = target->lock()) run->Stop(absl::CancelledError("the caller has gone"));
  });
  if (const absl::Status allowed = CheckCaller(*call, context_.options->decode_identities); !allowed.ok()) {
    stream->End(ToGrpc(allowed));
    return stream.get();
  }
  std::shared_ptr<const CallLimit::Place> place = calls_.Take();
  if (place == nullptr) {
    stream->End(ToGrpc(calls_.Full()));
    return stream.get();
  }
  stream->Hold(std::move(place));
  const auto run = std::make_shared<PrefillRun>(context_, stream, deadline, CallerTrace(*call));
  *target = run;  // gRPC reports a cancel only after this function has returned
  run->Start(*request, context_.receivers->Admit(request->ticket().receiver_address(), call->peer()));
  return stream.get();
}

}  // namespace aludel
