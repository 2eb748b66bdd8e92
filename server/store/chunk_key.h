#pragma once

#include <openssl/evp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/store/store_record.h"

namespace aludel {

// What a stored chunk is found by: SHA-256 of the chunk before it and of its own token ids. The first chunk of a prompt
// follows a root, which names the tenant's salt, the producer and the encoder. Equal keys mean equal prompts up to the
// chunk's end, in one format, of one tenant. A format, its cuts ("NAME@N") and what is sent of it in two parts ("NAME@N+")
// count as one: how many planes a stored chunk has is said beside its key, since more of them serve for fewer.
using ChunkKey = StoreKey;

// As many planes as an embedded code may have (FORMAT.md).
inline constexpr int kMaxPlanes = 8;
// Asked for, what any stored chunk serves.
inline constexpr uint8_t kFewestPlanes = 1;
// Of a codec "NAME@N" its N, of others 0: all.
uint8_t CutPlanes(const CodecSpec& codec);
// Whether payloads of so many planes can be made from those that are kept; 0: whole ones.
inline constexpr bool Serves(uint8_t kept, uint8_t wanted) {
  return kept == 0 || (wanted != 0 && kept >= wanted);
}

// A key is random already.
struct ChunkKeyHash {
  size_t operator()(const ChunkKey& key) const {
    size_t hash = 0;
    std::memcpy(&hash, key.data(), sizeof(hash));
    return hash;
  }
};

// What stands before a prompt's first chunk. `producer` names the model that makes the cache, and all options that its
// numbers depend on.
ChunkKey RootKey(absl::string_view producer, const CodecSpec& codec, absl::string_view salt);

// What records say of a producer, an encoder and a salt.
StoreKey ProducerHash(absl::string_view producer);
StoreTag EncoderTag(const CodecSpec& codec);
// Its first half names the salt's tenant: of a salt of 32 bytes the first 16 do (zeros are the salt "", too), and any other
// salt is a tenant's only one.
StoreTag SaltTag(absl::string_view salt);

using TenantTag = uint64_t;
inline TenantTag TenantOf(const StoreTag& salt) {
  TenantTag tenant = 0;
  std::memcpy(&tenant, salt.data(), sizeof(tenant));
  return tenant;
}

// How many of a chunk's tokens its stem is of.
inline constexpr uint32_t kStemStep = 64;
inline constexpr uint32_t StemTokens(uint32_t tokens) { return tokens / kStemStep * kStemStep; }
// The stem of a chunk, of the key that a chunk of StemTokens has.
inline uint32_t StemOf(const ChunkKey& key) {
  uint32_t stem = 0;
  std::memcpy(&stem, key.data(), sizeof(stem));
  return stem;
}

// Keys of chunks that follow one key, for growing numbers of tokens: each token is hashed once however many lengths
// are asked for. Not thread-safe.
class ChunkHasher {
 public:
  ChunkHasher();

  void Start(const ChunkKey& before);
  void Add(absl::Span<const int32_t> tokens);
  // Of the tokens added since Start; more may follow.
  ChunkKey Key();

  // The key of the chunk of these tokens, and its stem.
  struct Name {
    ChunkKey key;
    uint32_t stem = 0;
  };
  Name NameOf(const ChunkKey& before, absl::Span<const int32_t> tokens);

 private:
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  using Context = std::unique_ptr<EVP_MD_CTX, Free>;
  const Context fresh_;  // copied, as setting up costs more than hashing a chunk
  const Context added_;
  const Context ended_;
};

}  // namespace aludel
