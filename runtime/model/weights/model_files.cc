#include <unistd.h>

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/files/foreign_files.h"
#include "runtime/files/json_reader.h"
#include "runtime/model/adapters/lora_adapter.h"
#include "runtime/model/weights/safetensors.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using nlohmann::json;

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr size_t kMaxIndexBytes = 64u << 20;
constexpr int kIndexDepth = 8;
constexpr size_t kMaxShards = 4096;

bool Exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

// The index names files of its own directory only: a path would let it read anywhere.
bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos && name.find('\0') == std::string::npos &&
         absl::EndsWith(name, ".safetensors");
}

// Tensor name -> shard file name, as the index lists them.
absl::StatusOr<std::map<std::string, std::string>> ReadWeightMap(const std::string& path) {
  ALUDEL_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxIndexBytes));
  ALUDEL_ASSIGN_OR_RETURN(const json root, ParseJson(text, path, kIndexDepth));
  const json* weight_map = FindMember(root, "weight_map");
  if (weight_map == nullptr || !weight_map->is_object() || weight_map->empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": weight_map is ", weight_map == nullptr ? "missing" : DescribeJson(*weight_map),
                     ", want an object from tensor to file"));
  }
  std::map<std::string, std::string> result;
  for (const auto& [tensor, file] : weight_map->items()) {
    if (!file.is_string() || !IsPlainFileName(file.get<std::string>())) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": weight_map of tensor ", tensor, " is ",
                                                     DescribeJson(file),
                                                     ", want NAME.safetensors without '/'"));
    }
    result[tensor] = file.get<std::string>();
  }
  return result;
}

}  // namespace

ModelFiles::ModelFiles() = default;
ModelFiles::ModelFiles(ModelFiles&&) noexcept = default;
ModelFiles& ModelFiles::operator=(ModelFiles&&) noexcept = default;
ModelFiles::~ModelFiles() = default;

absl::StatusOr<ModelFiles> ModelFiles::Open(const ModelPath& path) {
  const std::string& directory = path.base;
  const std::string single = absl::StrCat(directory, "/", kSingleFile);
  const std::string index = absl::StrCat(directory, "/", kIndexFile);
  std::map<std::string, std::string> weight_map;
  std::set<std::string> shards;
  if (Exists(single)) {
    shards.insert(kSingleFile);
  } else if (Exists(index)) {
    ALUDEL_ASSIGN_OR_RETURN(weight_map, ReadWeightMap(index));
    for (const auto& [tensor, file] : weight_map) shards.insert(file);
  } else {
    return absl::NotFoundError(absl::StrCat(directory, ": found neither ", kSingleFile, " nor ", kIndexFile,
                                            ForeignWeights(directory)));
  }
  if (shards.size() > kMaxShards) {
    return absl::InvalidArgumentError(
        absl::StrCat(index, ": names ", shards.size(), " files, want at most ", kMaxShards));
  }

  ModelFiles result;
  result.directory_ = directory;
  if (!path.adapter.empty()) ALUDEL_RETURN_IF_ERROR(result.OpenAdapter(path.adapter));
  std::map<std::string, const SafetensorsFile*> opened;
  for (const std::string& shard : shards) {
    ALUDEL_ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(absl::StrCat(directory, "/", shard)));
    for (const auto& [name, entry] : file->entries()) {
      if (!result.index_.emplace(name, &entry).second) {
        return absl::InvalidArgumentError(
            absl::StrCat(file->path(), ": tensor ", name, " is also in another file of the model"));
      }
      result.file_of_.emplace(&entry, result.files_.size());
    }
    opened[shard] = file.get();
    result.files_.push_back(std::move(file));
  }
  for (const auto& [name, shard] : weight_map) {
    if (opened[shard]->entries().count(name) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(index, ": tensor ", name, " should be in ", shard, ", which does not hold it"));
    }
  }
  return result;
}

absl::Status ModelFiles::OpenAdapter(const std::string& directory) {
  ALUDEL_ASSIGN_OR_RETURN(auto file, LoraAdapter::OpenFile(directory));
  ALUDEL_ASSIGN_OR_RETURN(adapter_, LoraAdapter::Open(directory, file.get()));
  if (!adapter_->config().invocation().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        directory, "/", kAdapterConfigFile,
        ": alora_invocation_tokens: what acts on a part of a prompt cannot be merged into a model, "
        "want it among the adapters of a decode server"));
  }
  for (const auto& [name, entry] : file->entries()) file_of_.emplace(&entry, files_.size());
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::StatusOr<const SafetensorsEntry*> ModelFiles::Find(const std::string& name) const {
  const auto it = index_.find(name);
  if (it == index_.end()) {
    return absl::NotFoundError(absl::StrCat(files_.empty() ? "" : files_.back()->path(), ": no tensor ", name,
                                            " in the ", files_.size() - (adapter_ != nullptr ? 1 : 0),
                                            " file(s) of the model"));
  }
  return it->second;
}

}  // namespace aludel
