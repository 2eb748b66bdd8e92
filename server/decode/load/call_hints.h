#pragma once

#include "aludel/v1/handoff.pb.h"
#include "grpcpp/server_context.h"
#include "server/decode/load/load_reporter.h"
#include "server/rpc/event_stream.h"

namespace aludel {

// The part of Decode.Generate that is metadata (server/rpc/load_metadata.h).

// The beginnings of the call's prompt, where the gateway tells them; else without keys. Their place is the load
// reporter's log, once the prompt has been taken.
v1::PromptPrefixes PrefixesOf(const grpc::CallbackServerContext& call);

// Has the answer report this server's load. False where the gateway would rather have the request back than wait as long as
// it has to here: then the call has ended.
bool ExchangeHints(grpc::CallbackServerContext* call, LoadReporter* reporter,
                   EventStream<v1::GenerateEvent>* stream);

}  // namespace aludel
