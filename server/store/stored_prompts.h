#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/codec/codec.h"
#include "server/store/chunk_key.h"

namespace aludel {

// What another server's prefix store holds, by what it tells of its chunks (StoreWatcher, CacheEvents): 48 bits of a chunk's
// key, which differ for each number of planes, and its tokens in the lowest 16. 0: the chunk has more tokens than that, and
// is not told of. Not thread-safe.
uint64_t ChunkEventKey(const ChunkKey& key, uint32_t tokens, uint8_t planes);

class StoredPrompts {
 public:
  // `producer`: the other store's (RootKey).
  explicit StoredPrompts(std::string producer = "") : producer_(std::move(producer)) {}

  void Add(uint64_t chunk);
  void Remove(uint64_t chunk);
  // Of the prompt, from its start, in this format and for this salt: as PrefixStore::Peek there. Hashes what it finds, and
  // the length of a chunk beyond.
  int64_t Find(const CodecSpec& codec, absl::string_view salt, absl::Span<const int32_t> prompt) const;

  size_t chunks() const { return chunks_.size(); }

 private:
  // With enough planes for who wants so many.
  bool Has(const ChunkKey& key, uint32_t tokens, uint8_t wanted) const;

  std::string producer_;
  absl::flat_hash_set<uint64_t> chunks_;
  std::map<uint32_t, size_t> lengths_;  // of the chunks, and how many have each
};

}  // namespace aludel
