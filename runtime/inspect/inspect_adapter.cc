#include "runtime/inspect/inspect_adapter.h"

#include <cstdint>
#include <memory>

#include "runtime/status_macros.h"

namespace aludel {

using nlohmann::ordered_json;

ordered_json DescribeAdapter(const LoraAdapter& adapter) {
  int64_t parameters = 0;
  for (const auto& [name, entry] : adapter.file().entries()) parameters += entry.elements();
  const AdapterConfig& config = adapter.config();
  return {{"directory", adapter.directory()},
          {"made_for", config.base().empty() ? "not said" : config.base()},
          {"rank", config.rank()},
          {"alpha", config.alpha()},
          {"scale", config.rank_stabilized() ? "alpha / sqrt(rank)" : "alpha / rank"},
          {"targets", config.DescribeTargets()},
          {"tensors", adapter.file().entries().size()},
          {"parameters", parameters},
          {"bytes", adapter.file().size()}};
}

absl::StatusOr<ordered_json> InspectAdapter(const std::string& directory) {
  ALUDEL_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsFile> file, LoraAdapter::OpenFile(directory));
  ALUDEL_ASSIGN_OR_RETURN(const std::unique_ptr<LoraAdapter> adapter,
                          LoraAdapter::Open(directory, file.get()));
  ordered_json report;
  report["adapter"] = DescribeAdapter(*adapter);
  report["note"] = "whether it fits a base: aludel-inspect BASE+" + directory;
  return report;
}

}  // namespace aludel
