#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aludel/v1/config.pb.h"
#include "server/config/config_file.h"
#include "server/config/model_options.h"
#include "server/config/store_options.h"
#include "server/rpc/grpc_credentials.h"
#include "transport/transport_options.h"

namespace aludel {

// Sections that prefill and decode servers have: see common_sections.h.

ModelOptions ReadEngine(const ConfigSection& section, const v1::EngineConfig& engine);
// Of memory that frames wait in: `said`, or, where a file does not say it, what a GPU's larger steps need beyond that default.
uint64_t ReadArenaBytes(const ModelOptions& model, bool is_said, uint64_t said);
CodecOptions ReadCodec(const v1::CodecConfig& codec);
StoreOptions ReadStore(const ConfigSection& section, const v1::StoreConfig& store);
TransportOptions ReadTransport(const ConfigSection& section, const v1::TransportConfig& transport,
                               const std::string& grpc_listen);
// The data plane shows and asks for the certificates of gRPC.
TransportTls DataPlaneTls(const GrpcTlsOptions& tls, std::vector<std::string> peer_identities);
// Names of peers' certificates.
std::vector<std::string> ReadIdentities(const ConfigSection& section, const char* field,
                                        const google::protobuf::RepeatedPtrField<std::string>& names,
                                        const GrpcTlsOptions& tls);

}  // namespace aludel
