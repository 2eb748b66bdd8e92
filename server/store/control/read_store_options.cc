#include "server/store/control/read_store_options.h"

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/files/regular_file.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

absl::StatusOr<PrefixStore::Remote> ReadRemote(const StoreOptions& options) {
  PrefixStore::Remote remote{.address = options.remote_address,
                             .username = options.remote_username,
                             .ttl = options.remote_ttl,
                             .max_wait = options.remote_max_wait,
                             .threads = options.remote_threads};
  const std::string& path = options.remote_password_file;
  if (path.empty()) return remote;
  ALUDEL_RETURN_IF_ERROR(CheckRegularFile(path));
  std::ifstream in(path);
  if (!std::getline(in, remote.password) || remote.password.empty()) {
    return absl::NotFoundError(absl::StrCat(path, ": no password can be read in its first line"));
  }
  return remote;
}

}  // namespace

absl::StatusOr<PrefixStore::Options> ReadStoreOptions(const StoreOptions& options) {
  PrefixStore::Options store{.memory_bytes = options.memory_bytes, .pinned_bytes = options.pinned_bytes};
  store.eviction = options.by_utility ? PrefixStore::Eviction::kUtility : PrefixStore::Eviction::kLru;
  if (options.tenant_memory_bytes > 0) store.quota.memory_bytes = options.tenant_memory_bytes;
  if (options.disk_tenant_bytes > 0) store.quota.disk_bytes = options.disk_tenant_bytes;
  if (!options.disk_path.empty()) {
    store.disk = PrefixStore::Disk{.path = options.disk_path,
                                   .bytes = options.disk_bytes,
                                   .min_requests = options.disk_min_requests,
                                   .read_threads = options.disk_read_threads};
  }
  if (!options.remote_address.empty()) {
    ALUDEL_ASSIGN_OR_RETURN(store.remote, ReadRemote(options));
  }
  return store;
}

void AddEncoder(const CodecSpec& codec, PrefixStore::Options* store) {
  store->cuts.push_back(CutOf(codec));
  store->encoders.push_back(store->cuts.back().encoder);
}

MemoryOrder::Cut CutOf(const CodecSpec& codec) { return {EncoderTag(codec), CutPlanes(codec)}; }

}  // namespace aludel
