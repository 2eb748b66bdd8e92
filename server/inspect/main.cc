// aludel-inspect: what a model directory, a pair of them, an adapter, a codec artifact or a prefix store is, before a
// server starts; and how many servers a trace needs.

#include <cstdio>
#include <filesystem>
#include <string>

#include "runtime/codec/artifact/artifact.h"
#include "runtime/codec/artifact/artifact_versions.h"
#include "runtime/inspect/artifact_command.h"
#include "runtime/inspect/inspect_adapter.h"
#include "runtime/inspect/inspect_artifact.h"
#include "runtime/inspect/inspect_model.h"
#include "runtime/inspect/inspect_store.h"
#include "runtime/inspect/inspect_text.h"
#include "runtime/status_macros.h"
#include "runtime/tool/flag_set.h"
#include "runtime/tool/machine_flags.h"
#include "runtime/tool/version.h"
#include "server/inspect/size_command.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

constexpr char kUsage[] =
    R"(aludel-inspect says what a directory holds and whether things belong together, before a server starts.

  aludel-inspect MODEL --concurrency 16 --context 4096   what it is, whether it loads, and the memory it takes
  aludel-inspect PRODUCER CONSUMER                       whether one's cache can serve the other, and why not
  aludel-inspect ADAPTER                                 what a LoRA adapter (PEFT) updates
  aludel-inspect CODEC                                   an artifact's formats, layer by layer, and its models
  aludel-inspect PRODUCER CONSUMER --codec CODEC         whether the artifact was made for this pair
  aludel-inspect artifact list DIR                       versions of an artifact: also publish, rollback (--help)
  aludel-inspect store DIR                               what a prefix store keeps on disk, its checksums verified
  aludel-inspect size --model MODEL --trace FILE ...     how many servers that needs (aludel-inspect size --help)

MODEL, PRODUCER and CONSUMER are directories, or BASE+ADAPTER for a model with a LoRA adapter merged into it.
The checks are those that servers make when they start and meet. The form with --codec hashes both models, which reads all
their weights. Exit code: 0 when all is well, 1 when a model does not load or things do not belong together (the
problems are listed), 2 for a mistake on the command line or a directory that cannot be read.)";

constexpr char kStore[] = "store";
constexpr char kSize[] = "size";
constexpr char kArtifact[] = "artifact";
constexpr int kProblems = 1;
constexpr int kMistake = 2;

struct Request {
  std::vector<std::string> directories;
  std::string codec;
  MemoryPlanOptions plan;
};

bool Holds(const std::string& directory, const char* file) {
  std::error_code error;
  return std::filesystem::exists(directory + "/" + file, error);
}

absl::StatusOr<ordered_json> Inspect(const Request& request) {
  if (request.directories.size() == 1) {
    const std::string& directory = request.directories[0];
    if (Holds(directory, kArtifactManifest) || VersionsOf(directory)) return InspectArtifact(directory);
    if (Holds(directory, kAdapterConfigFile) && !Holds(directory, "config.json")) {
      return InspectAdapter(directory);
    }
    return InspectModel(ModelPath::Parse(directory), request.plan);
  }
  if (request.directories.empty()) return InspectArtifact(request.codec);
  if (request.directories[0] == kStore) return InspectStore(request.directories[1]);
  const ModelPath producer = ModelPath::Parse(request.directories[0]);
  const ModelPath consumer = ModelPath::Parse(request.directories[1]);
  ALUDEL_ASSIGN_OR_RETURN(ordered_json report, InspectPair(producer, consumer));
  if (request.codec.empty()) return report;
  ALUDEL_ASSIGN_OR_RETURN(const ordered_json fit, InspectArtifactFit(request.codec, producer, consumer));
  report["fits"] = report["fits"].get<bool>() && fit["fits"].get<bool>();
  for (const auto& problem : fit["problems"]) report["problems"].push_back(problem);
  report["codec"] = request.codec;
  report["formats_that_fit"] = fit["formats_that_fit"];
  return report;
}

absl::StatusOr<int> Run(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == kSize) {
    ALUDEL_RETURN_IF_ERROR(SizeCommand(argc - 1, argv + 1));
    return 0;
  }
  if (argc > 1 && std::string(argv[1]) == kArtifact) {
    ALUDEL_RETURN_IF_ERROR(ArtifactCommand(argc - 1, argv + 1));
    return 0;
  }
  Request request;
  bool as_json = false;
  MachineFlags machine;
  FlagSet flags(kUsage);
  flags.AddArguments("DIR [CONSUMER]", 2, &request.directories,
                     "a model, an adapter or an artifact; or producer and consumer");
  flags.Add("codec", "DIR", &request.codec, "an artifact, to be held against the two models");
  flags.Add("concurrency", "N", &request.plan.concurrency, "sequences at a time, for the memory plan");
  flags.Add("context", "N", &request.plan.context, "tokens of each; 0: the model's, at most 8192");
  machine.AddCompute(&flags, request.plan.compute, "arithmetic of the server");
  machine.AddWeights(&flags);
  machine.AddKvDtype(&flags, "of the cache, for the memory plan");
  flags.Add("json", &as_json, "print JSON, for scripts");
  flags.AddVersion(std::string("aludel-inspect ") + kVersion);
  ALUDEL_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (const auto answer = flags.Answer(); answer.has_value()) {
    std::fputs(answer->c_str(), stdout);
    return 0;
  }
  if (request.directories.empty() && request.codec.empty()) {
    return absl::InvalidArgumentError("a directory is needed (see --help)");
  }
  if (request.directories.size() == 1 && !request.codec.empty()) {
    return absl::InvalidArgumentError("--codec wants both a producer and a consumer (see --help)");
  }
  if (request.plan.concurrency < 1 || request.plan.context < 0) {
    return absl::InvalidArgumentError("want --concurrency of at least 1 and --context of at least 0");
  }
  ALUDEL_ASSIGN_OR_RETURN(request.plan.compute, machine.Compute());
  ALUDEL_ASSIGN_OR_RETURN(request.plan.weights, machine.Weights());
  ALUDEL_ASSIGN_OR_RETURN(request.plan.kv_dtype, machine.KvDtype());
  ALUDEL_ASSIGN_OR_RETURN(const ordered_json report, Inspect(request));
  const std::string text = as_json ? report.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n"
                                   : RenderText(report);
  std::fputs(text.c_str(), stdout);
  return report.contains("problems") && !report["problems"].empty() ? kProblems : 0;
}

}  // namespace
}  // namespace aludel

int main(int argc, char** argv) {
  const absl::StatusOr<int> code = aludel::Run(argc, argv);
  if (code.ok()) return *code;
  std::fprintf(stderr, "aludel-inspect: %s\n", std::string(code.status().message()).c_str());
  return aludel::kMistake;
}
