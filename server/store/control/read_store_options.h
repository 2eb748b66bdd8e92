#pragma once

#include "absl/status/statusor.h"
#include "runtime/codec/codec.h"
#include "server/config/store_options.h"
#include "server/store/prefix_store.h"

namespace aludel {

// What a configuration says of a store. NotFound where the remote's password cannot be read. Whose codes it keeps is the
// caller's to add.
absl::StatusOr<PrefixStore::Options> ReadStoreOptions(const StoreOptions& options);

// A format whose codes the store keeps. Of the codec its name, its kind and its artifact's hash count.
void AddEncoder(const CodecSpec& codec, PrefixStore::Options* store);

// For PrefixStore::AddCuts, of a format that has come since.
MemoryOrder::Cut CutOf(const CodecSpec& codec);

}  // namespace aludel
