#pragma once

#include "aludel/v1/config.pb.h"
#include "server/config/common_options.h"
#include "server/config/config_file.h"
#include "server/rpc/call_limit.h"
#include "server/rpc/grpc_credentials.h"

namespace aludel {

// Sections of a configuration that more than one kind of server has. Each reader reports to its ConfigSection
// what is wrong beyond single fields, and returns values all the same.

LogOptions ReadLog(const v1::LogConfig& log);
GrpcTlsOptions ReadGrpcTls(const ConfigSection& section, const v1::GrpcTlsConfig& tls);
GrpcLimits ReadGrpcLimits(const v1::GrpcLimitsConfig& limits);
TracingOptions ReadTracing(const ConfigSection& section, const v1::TracingConfig& tracing);

}  // namespace aludel
