#pragma once

#include <string>

#include "absl/status/status.h"
#include "google/protobuf/descriptor.h"

namespace aludel {

// What every server binary understands: --config FILE, --check-config, --settings, --help, --version.
struct CommandLine {
  std::string config;
  bool check_config = false;
};

// Parses argv; `usage` is the text that --help prints above the flags (what the program is, and an example), `version` the
// line that --version prints. --help, --version and --settings (`settings`, by reflection) print and exit 0; a mistake
// prints what was expected and exits 2.
CommandLine ParseCommandLine(int argc, char** argv, const char* usage, const std::string& version,
                             const google::protobuf::Descriptor* settings);

// For --check-config and for failed starts: prints "FILE: ok" or the error, and returns the exit code.
int ReportConfig(const CommandLine& command_line, const absl::Status& status);

}  // namespace aludel
