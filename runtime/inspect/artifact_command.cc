#include "runtime/inspect/artifact_command.h"

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "runtime/codec/artifact/artifact_versions.h"
#include "runtime/inspect/inspect_text.h"
#include "runtime/status_macros.h"
#include "runtime/tool/flag_set.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

constexpr char kUsage[] =
    R"(aludel-inspect artifact keeps versions of a codec artifact beside each other, and says which one servers use.

  aludel-inspect artifact list DIR                 the versions in DIR, and which is current
  aludel-inspect artifact publish DIR FROM         copies the artifact FROM into DIR as a new version, and switches to it
  aludel-inspect artifact rollback DIR [VERSION]   switches back to the version before, or to the one named

Servers whose codec.artifact is DIR, or DIR/current, follow within codec.reload_interval_ms. Before each switch every file is
held against its SHA-256: what is not whole is not switched to. A command that is killed leaves the old version current, or
the new one. Old versions are yours to remove, but for `current` and `previous`.)";

absl::StatusOr<ordered_json> Describe(const ArtifactVersion& version) {
  ordered_json entry = {{"version", version.name}};
  std::string use = version.current ? "current" : "";
  if (version.previous) absl::StrAppend(&use, use.empty() ? "" : ", ", "previous");
  entry["use"] = use;
  if (!version.status.ok()) {
    entry["manifest"] = "";
    entry["problem"] = std::string(version.status.message());
    return entry;
  }
  ALUDEL_ASSIGN_OR_RETURN(const std::string hash, HashManifest(version.directory));
  entry["manifest"] = hash;
  entry["problem"] = "";
  return entry;
}

absl::StatusOr<ordered_json> Run(const std::vector<std::string>& words) {
  const std::string verb = words.empty() ? "" : words[0];
  const size_t others = words.empty() ? 0 : words.size() - 1;
  ordered_json report;
  if (verb == "list" && others == 1) {
    ALUDEL_ASSIGN_OR_RETURN(const std::vector<ArtifactVersion> versions, ListVersions(words[1]));
    report["versions"] = ordered_json::array();
    for (const ArtifactVersion& version : versions) {
      ALUDEL_ASSIGN_OR_RETURN(ordered_json entry, Describe(version));
      report["versions"].push_back(std::move(entry));
    }
    return report;
  }
  if (verb == "publish" && others == 2) {
    ALUDEL_ASSIGN_OR_RETURN(const ArtifactVersion version, PublishVersion(words[1], words[2]));
    ALUDEL_ASSIGN_OR_RETURN(report["published"], Describe(version));
    return report;
  }
  if (verb == "rollback" && (others == 1 || others == 2)) {
    ALUDEL_ASSIGN_OR_RETURN(const ArtifactVersion version,
                            RollBackVersion(words[1], others == 2 ? words[2] : ""));
    ALUDEL_ASSIGN_OR_RETURN(report["rolled_back"], Describe(version));
    return report;
  }
  return absl::InvalidArgumentError(
      "want \"list DIR\", \"publish DIR FROM\" or \"rollback DIR [VERSION]\" (see aludel-inspect artifact "
      "--help)");
}

}  // namespace

absl::Status ArtifactCommand(int argc, char** argv) {
  std::vector<std::string> words;
  bool as_json = false;
  FlagSet flags(kUsage);
  flags.AddArguments("VERB DIR [ARGUMENT]", 3, &words, "what to do, and with which directory of versions");
  flags.Add("json", &as_json, "print JSON, for scripts");
  ALUDEL_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.help_asked()) {
    std::fputs(flags.Help().c_str(), stdout);
    return absl::OkStatus();
  }
  ALUDEL_ASSIGN_OR_RETURN(const ordered_json report, Run(words));
  const std::string text = as_json ? report.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n"
                                   : RenderText(report);
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace aludel
