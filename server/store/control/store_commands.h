#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aludel/v1/store.pb.h"
#include "runtime/codec/codec.h"
#include "server/store/prefix_store.h"

namespace aludel {

// An operator's commands to a prefix store, as they come over HTTP (StoreApi) and gRPC (StoreControlService), once their
// caller has shown the token. `done` is called once, perhaps inside the call, perhaps on a thread of the store, and a call
// blocks for a lock only. InvalidArgument names the field, ResourceExhausted says which bound it is, Unavailable that what
// was cleared may be found again. Thread-safe.
class StoreCommands {
 public:
  struct Options {
    PrefixStore* store = nullptr;
    // Null for an unknown name.
    std::function<std::shared_ptr<const CodecSpec>(absl::string_view format)> find_format;
  };
  template <typename Response>
  using Done = std::function<void(absl::StatusOr<Response>)>;

  explicit StoreCommands(Options options) : options_(std::move(options)) {}

  void Lookup(const v1::LookupRequest& request, Done<v1::LookupResponse> done) const;
  void Prefetch(const v1::PrefetchRequest& request, Done<v1::PrefetchResponse> done) const;
  void Pin(const v1::PinRequest& request, Done<v1::PinResponse> done) const;
  void Unpin(const v1::UnpinRequest& request, Done<v1::UnpinResponse> done) const;
  void Clear(const v1::ClearRequest& request, Done<v1::ClearResponse> done) const;
  void List(const v1::ListRequest& request, Done<v1::ListResponse> done) const;
  void Tenants(const v1::TenantsRequest& request, Done<v1::TenantsResponse> done) const;
  void Quota(const v1::QuotaRequest& request, Done<v1::QuotaResponse> done) const;

 private:
  // A prompt's start and its tokens.
  struct Prompt;
  absl::StatusOr<Prompt> ReadPrompt(const v1::StoredPrompt& prompt) const;
  absl::StatusOr<StoreFilter> ReadFilter(const v1::StoredOf& of) const;
  void ClearFiltered(const StoreFilter& filter, const Done<v1::ClearResponse>& done) const;

  const Options options_;
};

}  // namespace aludel
