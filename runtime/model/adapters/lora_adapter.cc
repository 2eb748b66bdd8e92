#include "runtime/model/adapters/lora_adapter.h"

#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/files/json_reader.h"
#include "runtime/model/weights/stored_matrix.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr char kWeightsFile[] = "adapter_model.safetensors";
constexpr char kPickleFile[] = "adapter_model.bin";
constexpr size_t kMaxConfigBytes = 4u << 20;

// PEFT's names: the wrapper's, the module's, the matrix's.
constexpr absl::string_view kPrefix = "base_model.model.";
constexpr absl::string_view kA = ".lora_A.weight";
constexpr absl::string_view kB = ".lora_B.weight";

absl::StatusOr<const SafetensorsEntry*> FindPlain(const SafetensorsFile& file, const std::string& name,
                                                  const std::vector<int64_t>& shape, absl::string_view why) {
  const auto it = file.entries().find(name);
  if (it == file.entries().end()) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": no tensor ", name, ", of shape [",
                                                   absl::StrJoin(shape, ", "), "] by ", why));
  }
  const SafetensorsEntry& entry = it->second;
  if (entry.shape != shape) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor ", name, " has shape [",
                                                   absl::StrJoin(entry.shape, ", "), "], want [",
                                                   absl::StrJoin(shape, ", "), "] by ", why));
  }
  if (!IsPlain(entry)) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": tensor ", name, " has dtype ", entry.dtype, ", want BF16, F16 or F32"));
  }
  return &entry;
}

constexpr absl::string_view kMerge = "merge the adapter with PEFT (merge_and_unload)";
constexpr absl::string_view kNoEmbeddings =
    "embeddings are not served: merge the adapter with PEFT (merge_and_unload)";

// Why a tensor of an adapter updates nothing of the model.
std::string WhyStray(absl::string_view name, const AdapterConfig& config, absl::string_view base) {
  if (absl::StrContains(name, ".lora_magnitude_vector")) return absl::StrCat("DoRA is not served: ", kMerge);
  if (absl::StrContains(name, ".lora_embedding_")) return std::string(kNoEmbeddings);
  if (absl::StrContains(name, ".modules_to_save."))
    return absl::StrCat("whole modules are not served: ", kMerge);
  if (absl::EndsWith(name, ".base_layer.weight")) {
    // PEFT saves the whole head beside its update, in case it was trained or has other rows than the base's.
    return absl::StrCat("it is the whole weight beside its update: where that is ", base,
                        "'s own, save the adapter with save_pretrained(save_embedding_layers=False); else ",
                        kMerge);
  }
  const bool is_a = absl::EndsWith(name, kA);
  if (!absl::StartsWith(name, kPrefix) || (!is_a && !absl::EndsWith(name, kB))) {
    return absl::StrCat("want ", kPrefix, "MODULE", kA, " and ", kB, " alone; for others: ", kMerge);
  }
  name.remove_prefix(kPrefix.size());
  name.remove_suffix((is_a ? kA : kB).size());
  const absl::StatusOr<bool> targeted = config.Targets(name);
  if (targeted.ok() && !*targeted) return absl::StrCat(kAdapterConfigFile, " does not name its module");
  if (name == kHeadModule) return absl::StrCat("the head of ", base, " is its embedding: ", kMerge);
  return absl::StrCat(base, " has no linear layer of this name");
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsFile>> LoraAdapter::OpenFile(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kWeightsFile);
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> file = SafetensorsFile::Open(path);
  const std::string pickle = absl::StrCat(directory, "/", kPickleFile);
  if (absl::IsNotFound(file.status()) && ::access(pickle.c_str(), F_OK) == 0) {
    return absl::NotFoundError(
        absl::StrCat(file.status().message(), "; ", kPickleFile,
                     " is PyTorch's pickle format, which is not read: load it with PEFT "
                     "and save_pretrained(), which writes safetensors"));
  }
  return file;
}

absl::StatusOr<std::unique_ptr<LoraAdapter>> LoraAdapter::Open(const std::string& directory,
                                                               const SafetensorsFile* file) {
  const std::string path = absl::StrCat(directory, "/", kAdapterConfigFile);
  ALUDEL_ASSIGN_OR_RETURN(std::string text, ReadFile(path, kMaxConfigBytes));
  ALUDEL_ASSIGN_OR_RETURN(AdapterConfig config, AdapterConfig::FromJson(text, path));
  return std::unique_ptr<LoraAdapter>(new LoraAdapter(directory, file, std::move(text), std::move(config)));
}

absl::StatusOr<std::optional<LoraUpdate>> LoraAdapter::Find(const std::string& module, int64_t outputs,
                                                            int64_t inputs) const {
  ALUDEL_ASSIGN_OR_RETURN(const bool targeted, config_.Targets(module));
  if (!targeted) return std::nullopt;
  if (module == kEmbeddingModule) {
    return absl::InvalidArgumentError(absl::StrCat(directory_, "/", kAdapterConfigFile,
                                                   ": target_modules names ", module, ": ", kNoEmbeddings));
  }
  ALUDEL_ASSIGN_OR_RETURN(const LoraShape shape, config_.ShapeOf(module));
  if (shape.rank > outputs + inputs) {
    return absl::InvalidArgumentError(absl::StrFormat("%s/%s: rank %d for %s, a matrix of %d x %d",
                                                      directory_, kAdapterConfigFile, shape.rank, module,
                                                      outputs, inputs));
  }
  const std::string why = absl::StrCat(kAdapterConfigFile, " and the base's config.json");
  LoraUpdate update{.scale = shape.scale};
  ALUDEL_ASSIGN_OR_RETURN(update.a,
                          FindPlain(*file_, absl::StrCat(kPrefix, module, kA), {shape.rank, inputs}, why));
  ALUDEL_ASSIGN_OR_RETURN(update.b,
                          FindPlain(*file_, absl::StrCat(kPrefix, module, kB), {outputs, shape.rank}, why));
  return update;
}

absl::Status LoraAdapter::CheckStrays(const std::set<const SafetensorsEntry*>& used,
                                      const std::string& base) const {
  if (file_->entries().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(file_->path(), ": no tensors: ", kAdapterConfigFile,
                                                   " names no linear layer of ", base));
  }
  for (const auto& [name, entry] : file_->entries()) {
    if (used.count(&entry) != 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(file_->path(), ": tensor ", name,
                                                   " would change nothing: ", WhyStray(name, config_, base)));
  }
  return absl::OkStatus();
}

}  // namespace aludel
