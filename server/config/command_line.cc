#include "server/config/command_line.h"

#include <cstdio>
#include <cstdlib>

#include "runtime/tool/flag_set.h"
#include "server/config/setting_rules.h"

namespace aludel {

CommandLine ParseCommandLine(int argc, char** argv, const char* usage, const std::string& version,
                             const google::protobuf::Descriptor* settings) {
  CommandLine result;
  bool list_settings = false;
  FlagSet flags(usage);
  flags.Add("config", "FILE", &result.config,
            "configuration file, protobuf text format; see configs/ for examples");
  flags.Add("check-config", &result.check_config,
            "read and check --config, say what is wrong with it, and exit");
  flags.Add("settings", &list_settings,
            "print every setting of --config with its default and allowed values, and exit");
  flags.AddVersion(version);
  absl::Status status = flags.Parse(argc, argv);
  if (const auto answer = flags.Answer()) {
    std::fputs(answer->c_str(), stdout);
    std::exit(0);
  }
  if (status.ok() && list_settings) {
    std::fputs(SettingsTable(settings).c_str(), stdout);
    std::exit(0);
  }
  if (status.ok() && result.config.empty()) {
    status = absl::InvalidArgumentError("--config FILE is missing (see --help)");
  }
  if (!status.ok()) {
    std::fprintf(stderr, "%s: %s\n", argv[0], std::string(status.message()).c_str());
    std::exit(2);
  }
  return result;
}

int ReportConfig(const CommandLine& command_line, const absl::Status& status) {
  if (status.ok()) {
    std::printf("%s: ok\n", command_line.config.c_str());
    return 0;
  }
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 2;
}

}  // namespace aludel
