#pragma once

#include <string>

#include "absl/debugging/failure_signal_handler.h"
#include "absl/debugging/symbolize.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/tool/version.h"
#include "server/config/command_line.h"
#include "server/observe/logging.h"
#include "server/process/last_words.h"
#include "server/process/stop_signal.h"
#include "spdlog/spdlog.h"

namespace aludel {

// The main function of a server called `name`, configured by a message of config.proto (`settings`): crash reports,
// stop signals, command line, configuration (`load`), logging, last words, then `serve`, which returns when the server has
// stopped. The result is the process's exit code. Options has a member `log` (LogOptions). The binary links aludel_version.
template <typename Options>
int RunServer(int argc, char** argv, const char* name, const char* usage,
              const google::protobuf::Descriptor* settings,
              absl::StatusOr<Options> (*load)(const std::string& path),
              absl::Status (*serve)(const Options& options, StopSignal& stop)) {
  absl::InitializeSymbolizer(argv[0]);
  absl::InstallFailureSignalHandler({});
  StopSignal stop;  // behind the failure handler, which takes SIGTERM too
  const CommandLine command_line =
      ParseCommandLine(argc, argv, usage, std::string(name) + " " + kVersion, settings);
  const absl::StatusOr<Options> options = load(command_line.config);
  if (!options.ok() || command_line.check_config) return ReportConfig(command_line, options.status());
  StartLogging(options->log, name);
  GiveReasonWhenEnded();
  const absl::Status status = serve(*options, stop);
  if (!status.ok()) spdlog::critical("{}", status.ToString());
  return status.ok() ? 0 : 1;
}

}  // namespace aludel
