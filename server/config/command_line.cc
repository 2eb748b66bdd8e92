#include "server/config/command_line.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/config/setting_rules.h"

ABSL_FLAG(std::string, config, "", "configuration file, protobuf text format; see configs/ for examples");
ABSL_FLAG(bool, check_config, false, "read and check --config, say what is wrong with it, and exit");
ABSL_FLAG(bool, settings, false,
          "print every setting of --config with its default and allowed values, and exit");

namespace aludel {
namespace {

bool IsOurFlag(absl::string_view file) { return absl::EndsWith(file, "server/config/command_line.cc"); }

// Abseil spells flags with underscores; people type dashes.
std::string WithUnderscores(const char* argument) {
  std::string text = argument;
  if (!absl::StartsWith(text, "--")) return text;
  for (size_t i = 2; i < text.size() && text[i] != '='; ++i) {
    if (text[i] == '-') text[i] = '_';
  }
  return text;
}

}  // namespace

CommandLine ParseCommandLine(int argc, char** argv, const char* usage,
                             const google::protobuf::Descriptor* settings) {
  static std::vector<std::string>* arguments = new std::vector<std::string>;  // absl keeps pointers into it
  std::vector<char*> pointers;
  arguments->reserve(argc);
  for (int i = 0; i < argc; ++i) {
    arguments->push_back(i == 0 ? argv[i] : WithUnderscores(argv[i]));
    pointers.push_back(arguments->back().data());
  }
  absl::FlagsUsageConfig config;
  config.contains_help_flags = IsOurFlag;
  config.contains_helpshort_flags = IsOurFlag;
  config.version_string = [] { return absl::StrCat("aludel ", ALUDEL_VERSION, "\n"); };
  absl::SetFlagsUsageConfig(config);
  absl::SetProgramUsageMessage(usage);
  const std::vector<char*> rest = absl::ParseCommandLine(argc, pointers.data());
  if (rest.size() > 1) {
    std::fprintf(stderr, "%s: found argument \"%s\", want only flags (see --help)\n", argv[0], rest[1]);
    std::exit(2);
  }
  if (absl::GetFlag(FLAGS_settings)) {
    std::fputs(SettingsTable(settings).c_str(), stdout);
    std::exit(0);
  }
  CommandLine result{.config = absl::GetFlag(FLAGS_config),
                     .check_config = absl::GetFlag(FLAGS_check_config)};
  if (result.config.empty()) {
    std::fprintf(stderr, "%s: --config FILE is missing (see --help)\n", argv[0]);
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
