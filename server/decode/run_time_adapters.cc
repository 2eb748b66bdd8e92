#include "server/decode/run_time_adapters.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "server/rpc/rpc_fields.h"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

// The directory that a path leads to, if that is below `root`.
absl::StatusOr<std::string> Resolve(const std::string& root, const std::string& directory) {
  std::error_code error;
  const std::filesystem::path top = std::filesystem::canonical(root, error);
  if (error) return absl::FailedPreconditionError(absl::StrCat("adapter_root ", root, ": ", error.message()));
  // What lies outside is not even said to exist.
  const absl::Status outside = absl::PermissionDeniedError(
      absl::StrCat("directory \"", Quotable(directory), "\" is not one below adapter_root"));
  if (directory.find('\0') != std::string::npos) return outside;
  const std::filesystem::path path = std::filesystem::canonical(top / directory, error);
  if (error || !std::filesystem::is_directory(path, error)) return outside;
  const auto [end, unused] = std::mismatch(top.begin(), top.end(), path.begin(), path.end());
  if (end != top.end() || path == top) return outside;
  return path.string();
}

}  // namespace

absl::Status AddAdapter(const DecodeContext& context, const std::string& name, const std::string& directory,
                        const std::string& cache_of) {
  const std::string& root = context.options->adapter_root;
  if (root.empty()) {
    return absl::FailedPreconditionError(
        "this server loads no adapters at run time: adapter_root is not set");
  }
  if (!IsVisibleAscii(name)) {
    return absl::InvalidArgumentError("an adapter's name holds other than visible ASCII characters");
  }
  if (name == context.options->served_model_name) {
    return absl::AlreadyExistsError(absl::StrCat(Quotable(name), " is the name of the base"));
  }
  CacheOf cache = CacheOf::kAdapter;
  if (!cache_of.empty()) {
    ALUDEL_ASSIGN_OR_RETURN(cache, ReadCacheOf(cache_of));
  }
  ALUDEL_ASSIGN_OR_RETURN(const std::string resolved, Resolve(root, directory));
  ALUDEL_RETURN_IF_ERROR(context.adapters->Add(name, resolved, cache));
  spdlog::info("adapter {} from {} is served", name, resolved);
  return absl::OkStatus();
}

absl::Status RemoveAdapter(const DecodeContext& context, const std::string& name) {
  if (context.options->adapter_root.empty()) {
    return absl::FailedPreconditionError(
        "this server keeps the adapters of its settings: adapter_root is not set");
  }
  if (!IsVisibleAscii(name)) return absl::NotFoundError("no such adapter");
  ALUDEL_RETURN_IF_ERROR(context.adapters->Remove(name));
  spdlog::info("adapter {} is served no more", name);
  return absl::OkStatus();
}

}  // namespace aludel
