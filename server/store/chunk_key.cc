#include "server/store/chunk_key.h"

#include <algorithm>
#include <initializer_list>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "runtime/codec/aludel/embedded_coder.h"
#include "runtime/codec/frame.h"

namespace aludel {

namespace {

static_assert(kMaxPlanes == kMaxEmbeddedPlanes && kMaxPlanes == kMaxStoredPlanes);

// To be raised where a codec without an artifact lays its payloads out in another way.
constexpr int kLayoutVersion = 1;

constexpr size_t kTenantSaltBytes = 16;

// What stored bytes mean beside what names them.
std::string Version() { return absl::StrCat(kFrameVersion, ".", kLayoutVersion); }

// Each field with its length in front, so that no two lists spell the same text.
StoreKey HashFields(std::initializer_list<absl::string_view> fields) {
  std::string text;
  for (const absl::string_view field : fields) absl::StrAppend(&text, field.size(), ":", field, ":");
  StoreKey key;
  ALUDEL_CHECK(EVP_Digest(text.data(), text.size(), key.data(), nullptr, EVP_sha256(), nullptr) == 1);
  return key;
}

StoreTag Head(const StoreKey& key) {
  StoreTag tag;
  std::copy_n(key.begin(), tag.size(), tag.begin());
  return tag;
}

// Of a cut, and of frames that are sent in two parts, their format's.
absl::string_view WholeName(const CodecSpec& codec) {
  const absl::string_view name = codec.name;
  return CutPlanes(codec) == 0 && codec.base_planes == 0 ? name : name.substr(0, name.rfind('@'));
}

}  // namespace

uint8_t CutPlanes(const CodecSpec& codec) {
  const size_t at = codec.name.rfind('@');
  int planes = 0;
  if (codec.kind != FrameKind::kAludel || at == std::string::npos ||
      !absl::SimpleAtoi(codec.name.substr(at + 1), &planes) || planes < 1 || planes > kMaxPlanes) {
    return 0;
  }
  return static_cast<uint8_t>(planes);
}

ChunkKey RootKey(absl::string_view producer, const CodecSpec& codec, absl::string_view salt) {
  return HashFields({Version(), producer, WholeName(codec), codec.artifact_hash, salt});
}

StoreKey ProducerHash(absl::string_view producer) { return HashFields({"producer", Version(), producer}); }

StoreTag EncoderTag(const CodecSpec& codec) {
  return Head(HashFields({"encoder", WholeName(codec), codec.artifact_hash}));
}

StoreTag SaltTag(absl::string_view salt) {
  absl::string_view tenant = salt.size() == 2 * kTenantSaltBytes ? salt.substr(0, kTenantSaltBytes) : salt;
  if (tenant.find_first_not_of('\0') == absl::string_view::npos) tenant = "";
  StoreTag tag = Head(HashFields({"tenant", tenant}));
  const StoreTag own = Head(HashFields({"salt", salt}));
  std::copy(own.begin() + sizeof(TenantTag), own.end(), tag.begin() + sizeof(TenantTag));
  return tag;
}

ChunkHasher::ChunkHasher() : fresh_(EVP_MD_CTX_new()), added_(EVP_MD_CTX_new()), ended_(EVP_MD_CTX_new()) {
  ALUDEL_CHECK(EVP_DigestInit_ex(fresh_.get(), EVP_sha256(), nullptr) == 1);
}

void ChunkHasher::Start(const ChunkKey& before) {
  ALUDEL_CHECK(EVP_MD_CTX_copy_ex(added_.get(), fresh_.get()) == 1);
  ALUDEL_CHECK(EVP_DigestUpdate(added_.get(), before.data(), before.size()) == 1);
}

void ChunkHasher::Add(absl::Span<const int32_t> tokens) {
  ALUDEL_CHECK(EVP_DigestUpdate(added_.get(), tokens.data(), tokens.size() * sizeof(int32_t)) == 1);
}

ChunkKey ChunkHasher::Key() {
  ChunkKey key;
  ALUDEL_CHECK(EVP_MD_CTX_copy_ex(ended_.get(), added_.get()) == 1);
  ALUDEL_CHECK(EVP_DigestFinal_ex(ended_.get(), key.data(), nullptr) == 1);
  return key;
}

ChunkHasher::Name ChunkHasher::NameOf(const ChunkKey& before, absl::Span<const int32_t> tokens) {
  Name name;
  const uint32_t stem_tokens = StemTokens(static_cast<uint32_t>(tokens.size()));
  Start(before);
  Add(tokens.first(stem_tokens));
  if (stem_tokens > 0) name.stem = StemOf(Key());
  Add(tokens.subspan(stem_tokens));
  name.key = Key();
  return name;
}

}  // namespace aludel
