#include "server/store/control/store_commands.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "server/rpc/cache_salt.h"

namespace aludel {
namespace {

constexpr int64_t kListed = 100;
constexpr int64_t kMaxListed = 1000;
constexpr int64_t kPinSeconds = 3600;
constexpr int64_t kMaxPinSeconds = 7 * 24 * 3600;
constexpr int64_t kMaxQuotaBytes = int64_t{1} << 50;
constexpr int kMaxTokens = 1 << 20;

absl::Status CheckRange(absl::string_view name, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("'", name, "' is not a number of ", min, " to ", max));
}

std::string Hex(TenantTag tenant) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(&tenant), sizeof(tenant)});
}

std::string AsBytes(const ChunkKey& key) { return {reinterpret_cast<const char*>(key.data()), key.size()}; }

absl::StatusOr<TenantTag> ReadTenant(absl::string_view hex) {
  const bool digits = std::all_of(hex.begin(), hex.end(), [](unsigned char c) { return std::isxdigit(c); });
  if (hex.size() != 2 * sizeof(TenantTag) || !digits) {
    return absl::InvalidArgumentError("'tenant' is not 16 hexadecimal digits");
  }
  TenantTag tenant = 0;
  std::memcpy(&tenant, absl::HexStringToBytes(hex).data(), sizeof(tenant));
  return tenant;
}

// What a filter would be of that is set.
bool IsSet(const v1::StoredOf& of) {
  return of.has_key() || of.has_cache_salt() || of.has_tenant() || of.has_format();
}

// 0 is no quota, as in the configuration.
template <typename Bytes>
uint64_t QuotaToShow(Bytes quota) {
  return quota == std::numeric_limits<Bytes>::max() ? 0 : quota;
}

}  // namespace

struct StoreCommands::Prompt {
  StorePosition begin;
  std::vector<int32_t> tokens;
};

absl::StatusOr<StoreCommands::Prompt> StoreCommands::ReadPrompt(const v1::StoredPrompt& prompt) const {
  const std::shared_ptr<const CodecSpec> codec = options_.find_format(prompt.format());
  if (codec == nullptr) return absl::InvalidArgumentError("'format' is not a format of this server");
  if (prompt.tokens().empty() || prompt.tokens_size() > kMaxTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("'tokens' is not a list of 1 to ", kMaxTokens, " token ids"));
  }
  if (std::any_of(prompt.tokens().begin(), prompt.tokens().end(), [](int32_t token) { return token < 0; })) {
    return absl::InvalidArgumentError("'tokens' has one that is not a token id");
  }
  return Prompt{.begin = options_.store->Begin(*codec, MakeCacheSalt(prompt.key(), prompt.cache_salt())),
                .tokens = {prompt.tokens().begin(), prompt.tokens().end()}};
}

absl::StatusOr<StoreFilter> StoreCommands::ReadFilter(const v1::StoredOf& of) const {
  StoreFilter filter;
  if (of.has_tenant()) {
    if (of.has_key() || of.has_cache_salt()) {
      return absl::InvalidArgumentError("'tenant' stands without 'key' and 'cache_salt'");
    }
    ALUDEL_ASSIGN_OR_RETURN(filter.tenant, ReadTenant(of.tenant()));
  } else if (of.has_key() || of.has_cache_salt()) {
    const StoreTag salt = SaltTag(MakeCacheSalt(of.key(), of.cache_salt()));
    filter.tenant = TenantOf(salt);
    if (of.has_cache_salt()) filter.salt = salt;
  }
  if (of.has_format()) {
    const auto codec = of.format().empty() ? nullptr : options_.find_format(of.format());
    if (codec == nullptr) return absl::InvalidArgumentError("'format' is not a format of this server");
    filter.encoder = EncoderTag(*codec);
  }
  return filter;
}

void StoreCommands::Lookup(const v1::LookupRequest& request, Done<v1::LookupResponse> done) const {
  const absl::StatusOr<Prompt> prompt = ReadPrompt(request.prompt());
  if (!prompt.ok()) return done(prompt.status());
  options_.store->PeekEverywhere(
      prompt->tokens, prompt->begin, [done](const std::vector<StoredChunk>& chunks) {
        v1::LookupResponse response;
        for (const StoredChunk& chunk : chunks) {
          const auto tokens = static_cast<uint64_t>(chunk.end.tokens - chunk.token_begin);
          response.set_tokens(response.tokens() + tokens);
          if (chunk.frames != nullptr) {
            response.set_memory_tokens(response.memory_tokens() + tokens);
          } else if (chunk.remote) {
            response.set_remote_tokens(response.remote_tokens() + tokens);
          } else {
            response.set_disk_tokens(response.disk_tokens() + tokens);
          }
          response.add_chunks(AsBytes(chunk.end.key));
        }
        done(std::move(response));
      });
}

void StoreCommands::Prefetch(const v1::PrefetchRequest& request, Done<v1::PrefetchResponse> done) const {
  absl::StatusOr<Prompt> prompt = ReadPrompt(request.prompt());
  if (!prompt.ok()) return done(prompt.status());
  options_.store->Prefetch(std::move(prompt->tokens), prompt->begin, [done](int64_t tokens) {
    v1::PrefetchResponse response;
    response.set_loading_tokens(static_cast<uint64_t>(tokens));
    done(std::move(response));
  });
}

void StoreCommands::Pin(const v1::PinRequest& request, Done<v1::PinResponse> done) const {
  const absl::StatusOr<Prompt> prompt = ReadPrompt(request.prompt());
  if (!prompt.ok()) return done(prompt.status());
  const int64_t ttl = request.has_ttl_s() ? request.ttl_s() : kPinSeconds;
  if (const absl::Status fits = CheckRange("ttl_s", ttl, 1, kMaxPinSeconds); !fits.ok()) return done(fits);
  const absl::StatusOr<int64_t> tokens =
      options_.store->Pin(prompt->tokens, prompt->begin, absl::Seconds(ttl));
  if (!tokens.ok()) return done(tokens.status());
  v1::PinResponse response;
  response.set_tokens(static_cast<uint64_t>(*tokens));
  done(std::move(response));
}

void StoreCommands::Unpin(const v1::UnpinRequest& request, Done<v1::UnpinResponse> done) const {
  const absl::StatusOr<Prompt> prompt = ReadPrompt(request.prompt());
  if (!prompt.ok()) return done(prompt.status());
  v1::UnpinResponse response;
  response.set_tokens(static_cast<uint64_t>(options_.store->Unpin(prompt->tokens, prompt->begin)));
  done(std::move(response));
}

void StoreCommands::Clear(const v1::ClearRequest& request, Done<v1::ClearResponse> done) const {
  const bool of = IsSet(request.of());
  if ((request.all() ? 1 : 0) + (of ? 1 : 0) + (request.has_prompt() ? 1 : 0) != 1) {
    return done(absl::InvalidArgumentError(
        "want \"all\": true, or one of 'key', 'cache_salt', 'tenant' and 'format', or 'tokens'"));
  }
  if (!request.has_prompt()) {
    const absl::StatusOr<StoreFilter> filter = ReadFilter(request.of());
    return filter.ok() ? ClearFiltered(*filter, done) : done(filter.status());
  }
  absl::StatusOr<Prompt> prompt = ReadPrompt(request.prompt());
  if (!prompt.ok()) return done(prompt.status());
  prompt->begin.planes = kFewestPlanes;  // a chunk that is cut is of the prompt, too
  // A part of what is stored would be a shorter beginning, which other prompts have, too.
  const auto clear = [this, done](const absl::StatusOr<std::vector<StoredChunk>>& chunks) {
    if (!chunks.ok()) {
      return done(absl::UnavailableError(absl::StrCat(
          "nothing is cleared, as it is not known how much is stored: ", chunks.status().message())));
    }
    if (chunks->empty()) return done(absl::InvalidArgumentError("nothing of it is stored"));
    const StorePosition& last = chunks->back().end;
    ClearFiltered({.salt = last.salt, .encoder = last.encoder, .from = last.key}, done);
  };
  options_.store->PeekAll(prompt->tokens, prompt->begin, clear);
}

void StoreCommands::ClearFiltered(const StoreFilter& filter, const Done<v1::ClearResponse>& done) const {
  // The files may be gone before the call that clears has returned, and its count is known only then.
  struct Clearing {
    std::atomic<int> awaited = 2;
    absl::Status cleared;
    v1::ClearResponse response;
  };
  const auto clearing = std::make_shared<Clearing>();
  const auto end = [clearing, done] {
    if (clearing->awaited.fetch_sub(1) > 1) return;
    if (clearing->cleared.ok()) return done(std::move(clearing->response));
    done(absl::UnavailableError(
        absl::StrCat("found no more, but may be after a restart: ", clearing->cleared.message())));
  };
  const auto on_cleared = [clearing, end](const absl::Status& status) {
    clearing->cleared = status;
    end();
  };
  if (filter.tenant || filter.salt || filter.encoder || filter.from) {
    clearing->response.set_chunks(options_.store->ClearSome(filter, on_cleared));
  } else {
    options_.store->Clear(on_cleared);
  }
  end();
}

void StoreCommands::List(const v1::ListRequest& request, Done<v1::ListResponse> done) const {
  const absl::StatusOr<StoreFilter> filter = ReadFilter(request.of());
  if (!filter.ok()) return done(filter.status());
  const int64_t limit = request.has_limit() ? request.limit() : kListed;
  if (const absl::Status fits = CheckRange("limit", limit, 1, kMaxListed); !fits.ok()) return done(fits);
  v1::ListResponse response;
  for (const StoredChunkReport& report : options_.store->List(*filter, static_cast<size_t>(limit))) {
    v1::ListedChunk* const chunk = response.add_chunks();
    chunk->set_key(AsBytes(report.key));
    chunk->set_tenant(Hex(TenantOf(report.salt)));
    chunk->set_token_begin(static_cast<uint64_t>(report.token_begin));
    chunk->set_tokens(static_cast<uint64_t>(report.tokens));
    chunk->set_memory_bytes(report.memory_bytes);
    chunk->set_disk_bytes(report.disk_bytes);
    chunk->set_remote(report.remote);
    chunk->set_pinned_s(absl::ToInt64Seconds(report.pinned));
  }
  done(std::move(response));
}

void StoreCommands::Tenants(const v1::TenantsRequest&, Done<v1::TenantsResponse> done) const {
  v1::TenantsResponse response;
  for (const TenantReport& report : options_.store->Tenants()) {
    v1::StoreTenant* const tenant = response.add_tenants();
    tenant->set_tenant(Hex(report.tenant));
    tenant->set_memory_bytes(report.memory_bytes);
    tenant->set_memory_chunks(report.memory_chunks);
    tenant->set_disk_bytes(report.disk_bytes);
    tenant->set_disk_chunks(report.disk_chunks);
    tenant->set_quota_memory_bytes(QuotaToShow(report.quota.memory_bytes));
    tenant->set_quota_disk_bytes(QuotaToShow(report.quota.disk_bytes));
  }
  done(std::move(response));
}

void StoreCommands::Quota(const v1::QuotaRequest& request, Done<v1::QuotaResponse> done) const {
  if (request.has_key() == request.has_tenant())
    return done(absl::InvalidArgumentError("want 'key' or 'tenant'"));
  if (!request.has_memory_bytes() && !request.has_disk_bytes())
    return done(absl::InvalidArgumentError("want 'memory_bytes' or 'disk_bytes'"));
  absl::StatusOr<TenantTag> tenant = TenantOf(SaltTag(MakeCacheSalt(request.key(), "")));
  if (request.has_tenant()) tenant = ReadTenant(request.tenant());
  absl::Status fits = tenant.status();
  fits.Update(CheckRange("memory_bytes", request.memory_bytes(), 0, kMaxQuotaBytes));
  fits.Update(CheckRange("disk_bytes", request.disk_bytes(), 0, kMaxQuotaBytes));
  if (!fits.ok()) return done(fits);
  const TenantShares::Quota none;
  QuotaChange change;
  if (request.has_memory_bytes()) {
    change.memory_bytes =
        request.memory_bytes() > 0 ? static_cast<size_t>(request.memory_bytes()) : none.memory_bytes;
  }
  if (request.has_disk_bytes()) {
    change.disk_bytes =
        request.disk_bytes() > 0 ? static_cast<uint64_t>(request.disk_bytes()) : none.disk_bytes;
  }
  if (const absl::Status set = options_.store->SetQuota(*tenant, change); !set.ok()) return done(set);
  v1::QuotaResponse response;
  response.set_tenant(Hex(*tenant));
  done(std::move(response));
}

}  // namespace aludel
