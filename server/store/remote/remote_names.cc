#include "server/store/remote/remote_names.h"

#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

template <typename Bytes>
std::string Hex(const Bytes& bytes, size_t count) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(bytes.data()), count});
}

constexpr size_t kProducerBytes = 16;

std::string TenantField(const StoreTag& salt) {
  return absl::StrCat("tenant ", Hex(salt, sizeof(TenantTag)));
}
std::string SaltField(const StoreTag& salt) { return absl::StrCat("salt ", Hex(salt, salt.size())); }
std::string EncoderField(const StoreTag& encoder) {
  return absl::StrCat("encoder ", Hex(encoder, encoder.size()));
}

}  // namespace

RemoteNames::RemoteNames(const StoreKey& producer)
    : root_(absl::StrCat("aludel:", kStoreVersion, ":", Hex(producer, kProducerBytes), ":")),
      cleared_(absl::StrCat(root_, "cleared")) {}

std::vector<std::string> RemoteNames::EraFields(const StoreTag& salt, const StoreTag& encoder) {
  const std::string tenant_field = TenantField(salt);
  const std::string salt_field = SaltField(salt);
  const std::string encoder_field = EncoderField(encoder);
  return {"all",
          tenant_field,
          salt_field,
          encoder_field,
          absl::StrCat(tenant_field, " ", encoder_field),
          absl::StrCat(salt_field, " ", encoder_field)};
}

std::string RemoteNames::ClearedField(const StoreFilter& filter) {
  std::string field;
  if (filter.salt) {
    field = SaltField(*filter.salt);
  } else if (filter.tenant) {
    StoreTag salt = {};
    std::memcpy(salt.data(), &*filter.tenant, sizeof(TenantTag));
    field = TenantField(salt);
  }
  if (filter.encoder) absl::StrAppend(&field, field.empty() ? "" : " ", EncoderField(*filter.encoder));
  return field.empty() ? "all" : field;
}

std::string RemoteNames::AnyChunk() const { return absl::StrCat(root_, "*:chunk:*"); }

std::string RemoteNames::Chunk(int64_t era, const ChunkKey& key) const { return Name(era, "chunk", key); }

std::string RemoteNames::Stems(int64_t era, const ChunkKey& before) const {
  return Name(era, "stems", before);
}

std::string RemoteNames::Lengths(int64_t era, const ChunkKey& before, uint32_t stem_tokens,
                                 uint32_t stem) const {
  return absl::StrCat(Name(era, "lengths", before), ":", stem_tokens, ":", stem);
}

std::string RemoteNames::Name(int64_t era, absl::string_view what, const ChunkKey& key) const {
  return absl::StrCat(root_, era, ":", what, ":", Hex(key, key.size()));
}

}  // namespace aludel
