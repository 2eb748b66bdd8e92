#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/store/chunk_key.h"
#include "server/store/store_control.h"

namespace aludel {

// What stored chunks are called at a remote, see FORMAT.md, "Chunks at a remote". All names of one producer, and of one
// version of the record, begin alike; all names of chunks contain the era in which they were written. Pure.
class RemoteNames {
 public:
  explicit RemoteNames(const StoreKey& producer);

  // Of the hash that counts how often what was cleared. Chunks of a salt and an encoder have as their era the sum of
  // the counts that EraFields names: it only grows.
  const std::string& cleared() const { return cleared_; }
  static std::vector<std::string> EraFields(const StoreTag& salt, const StoreTag& encoder);
  // The field to be counted up where all of these are cleared; the filter's `from` is not looked at.
  static std::string ClearedField(const StoreFilter& filter);

  // A pattern (SCAN's) of all records.
  std::string AnyChunk() const;
  // A record.
  std::string Chunk(int64_t era, const ChunkKey& key) const;
  // The set of numbers of tokens that stems behind `before` have.
  std::string Stems(int64_t era, const ChunkKey& before) const;
  // The set of numbers of tokens that chunks with this stem behind `before` have.
  std::string Lengths(int64_t era, const ChunkKey& before, uint32_t stem_tokens, uint32_t stem) const;

 private:
  std::string Name(int64_t era, absl::string_view what, const ChunkKey& key) const;

  const std::string root_;
  const std::string cleared_;
};

}  // namespace aludel
