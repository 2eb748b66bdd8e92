#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "aludel/v1/config.pb.h"
#include "server/config/common_options.h"
#include "server/config/config_file.h"
#include "server/rpc/call_limit.h"
#include "server/rpc/grpc_credentials.h"

namespace aludel {

// Sections of a configuration that more than one kind of server has. Each reader reports what is wrong to its
// ConfigSection and returns values all the same.

constexpr uint64_t kMaxMs = 24ull * 60 * 60 * 1000;
constexpr uint64_t kMaxBytes = 1ull << 44;
// Ids travel as int32 and positions as uint32; nothing of today is longer.
constexpr uint64_t kMaxTokens = 1ull << 24;

LogOptions ReadLog(const ConfigSection& section, const v1::LogConfig& log);
GrpcTlsOptions ReadGrpcTls(const ConfigSection& section, const v1::GrpcTlsConfig& tls);
GrpcLimits ReadGrpcLimits(const ConfigSection& section, const v1::GrpcLimitsConfig& limits);
TracingOptions ReadTracing(const ConfigSection& section, const v1::TracingConfig& tracing);
void CheckListen(const ConfigSection& root, const std::string& admin_listen);
std::vector<std::string> ReadTargets(const ConfigSection& section, absl::string_view field,
                                     const google::protobuf::RepeatedPtrField<std::string>& targets);

}  // namespace aludel
