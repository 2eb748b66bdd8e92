#include "server/decode/decode_service.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/decode/load/call_hints.h"
#include "server/decode/reset_order.h"
#include "server/decode/run_time_adapters.h"
#include "server/handoff/caller_identity.h"
#include "server/rpc/deadline.h"
#include "server/rpc/reset_caches.h"
#include "server/rpc/rpc_status.h"
#include "server/rpc/rpc_trace.h"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

// For prefill servers to confirm it.
constexpr absl::Duration kResetTimeout = absl::Seconds(5);

}  // namespace

grpc::ServerUnaryReactor* DecodeService::Describe(grpc::CallbackServerContext* call,
                                                  const v1::DescribeRequest* request,
                                                  v1::DecodeDescription* response) {
  const WorkClock::Work work(context_.handlers);
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  if (const absl::Status allowed = CheckCaller(*call, context_.options->gateway_identities); !allowed.ok()) {
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
  response->set_protocol_version(kHandoffVersion);
  *response->mutable_model() = context_.model->Identity();
  response->set_served_model_name(context_.options->served_model_name);
  response->set_epoch(context_.receiver->epoch());
  response->set_max_context(context_.model->engine().options().max_context);
  std::set<std::string> named;
  for (FormatOffer& format : ServerFormats(*context_.model, *context_.adapters)) {
    if (named.insert(format.name).second) response->add_formats(std::move(format.name));
  }
  const auto current = context_.model->sets().offered().front();
  response->set_producer(current->origin.producer_hash);
  const auto coded = std::find_if(current->codecs.begin(), current->codecs.end(),
                                  [](const auto& codec) { return !codec->spec().artifact_hash.empty(); });
  if (coded != current->codecs.end()) response->set_encoder((*coded)->spec().artifact_hash);
  response->set_max_choices(static_cast<uint32_t>(context_.model->engine().options().max_num_seqs));
  response->set_numerics(context_.model->Numerics());
  AdapterPool::Known adapters = context_.adapters->known();
  for (AdapterPool::About& about : adapters.adapters) {
    response->add_adapters(about.name);
    v1::AdapterDescription* const description = response->add_adapter_descriptions();
    description->set_name(std::move(about.name));
    description->set_hash(std::move(about.hash));
    description->set_cache_of(std::string(Name(about.cache)));
    description->set_begins_as_base(about.activated);
  }
  response->set_adapter_changes(adapters.changes);
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* DecodeService::LoadAdapter(grpc::CallbackServerContext* call,
                                                     const v1::LoadAdapterRequest* request,
                                                     v1::LoadAdapterResponse* response) {
  const WorkClock::Work work(context_.handlers);
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  absl::Status status = CheckCaller(*call, context_.options->gateway_identities);
  if (status.ok()) status = AddAdapter(context_, request->name(), request->directory(), request->cache_of());
  if (status.ok()) response->set_cache_of(request->cache_of().empty() ? "adapter" : request->cache_of());
  reactor->Finish(ToGrpc(status));
  return reactor;
}

grpc::ServerUnaryReactor* DecodeService::UnloadAdapter(grpc::CallbackServerContext* call,
                                                       const v1::UnloadAdapterRequest* request,
                                                       v1::UnloadAdapterResponse* /*response*/) {
  const WorkClock::Work work(context_.handlers);
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  absl::Status status = CheckCaller(*call, context_.options->gateway_identities);
  if (status.ok()) status = RemoveAdapter(context_, request->name());
  reactor->Finish(ToGrpc(status));
  return reactor;
}

grpc::ServerWriteReactor<v1::GenerateEvent>* DecodeService::Generate(grpc::CallbackServerContext* call,
                                                                     const v1::GenerateRequest* request) {
  const WorkClock::Work work(context_.handlers);
  const absl::Time deadline = DeadlineOf(*call, context_.options->request_timeout);
  // The stream tells the session when its client goes; the session holds the stream.
  auto target = std::make_shared<std::weak_ptr<GenerateSession>>();
  auto stream = AnswerStream::Stream::Create(call, context_.options->max_stream_backlog, [target] {
    if (const auto session = target->lock()) session->Stop(absl::CancelledError("the client has gone"));
  });
  if (const absl::Status allowed = CheckCaller(*call, context_.options->gateway_identities); !allowed.ok()) {
    stream->End(ToGrpc(allowed));
    return stream.get();
  }
  if (!ExchangeHints(call, context_.load, stream.get())) return stream.get();
  std::shared_ptr<const CallLimit::Place> place = calls_.Take();
  if (place == nullptr) {
    stream->End(ToGrpc(calls_.Full()));
    return stream.get();
  }
  stream->Hold(std::move(place));
  const auto session =
      std::make_shared<GenerateSession>(context_, stream, deadline, CallerTrace(*call), PrefixesOf(*call));
  *target = session;  // gRPC reports a cancel only after this function has returned
  session->Start(*request);
  return stream.get();
}

grpc::ServerUnaryReactor* DecodeService::ResetCache(grpc::CallbackServerContext* call,
                                                    const v1::ResetCacheRequest*, v1::ResetCacheResponse*) {
  const WorkClock::Work work(context_.handlers);
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  if (const absl::Status allowed = CheckCaller(*call, context_.options->gateway_identities); !allowed.ok()) {
    reactor->Finish(ToGrpc(allowed));
    return reactor;
  }
  std::shared_ptr<const CallLimit::Place> place = calls_.Take();
  if (place == nullptr) {
    reactor->Finish(ToGrpc(calls_.Full()));
    return reactor;
  }
  spdlog::info("the prefix cache was reset for {}", call->peer());
  const absl::Time deadline = std::min(DeadlineOf(*call, kResetTimeout), MonotonicNow() + kResetTimeout);
  const auto clear_here = [this](WhenReset cleared) {
    context_.cached_prompts->Clear([this] { context_.cache_epoch->Reset(); });
    context_.load->CacheWasReset();
    if (context_.codes == nullptr) return cleared(absl::OkStatus());
    context_.codes->store().Clear(std::move(cleared));
  };
  const auto reset_servers = [this, deadline](WhenReset reset) {
    ResetCaches(context_.prefill_pool->Servers(), deadline, std::move(reset));
  };
  // The call lives until it is finished, which may be on the thread that removes files.
  ResetInOrder(clear_here, reset_servers, [reactor, place = std::move(place)](const absl::Status& status) {
    reactor->Finish(ToGrpc(status));
  });
  return reactor;
}

}  // namespace aludel
