#include "server/gateway/access/access.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace aludel {
namespace {

constexpr absl::string_view kBearer = "Bearer ";

ApiError Unauthorized(absl::string_view message) {
  ApiError error;
  error.status = 401;
  error.message = std::string(message);
  error.code = "invalid_api_key";
  return error;
}

ApiError TooMuch(const std::string& message, const char* code, int retry_after_seconds) {
  ApiError error;
  error.status = 429;
  error.type = "rate_limit_error";
  error.message = message;
  error.code = code;
  error.retry_after_seconds = retry_after_seconds;
  return error;
}

ApiError TooManyAtOnce(int max_concurrent) {
  return TooMuch(
      absl::StrCat("Too many requests at once: limit ", max_concurrent,
                   ", of which each choice of each prompt takes one. Try again when some have ended."),
      "concurrency_limit_exceeded", 1);
}

}  // namespace

void Access::Bucket::Fill(double per_minute, absl::Time now) {
  const double minutes = absl::ToDoubleMinutes(now - filled);
  filled = now;
  level = std::min(per_minute, level + std::min(std::max(minutes, 0.0), 1e6) * per_minute);
}

int Access::Bucket::SecondsUntil(double wanted, double per_minute) const {
  return static_cast<int>(std::clamp(std::ceil((wanted - level) * 60 / per_minute), 1.0, 3600.0));
}

Access::Access(const KeyLimits& anonymous, Clock clock) : clock_(std::move(clock)) {
  clients_[""].limits = anonymous;
}

void Access::SetKeys(std::vector<ApiKey> keys) {
  absl::MutexLock lock(&mutex_);
  keys_needed_ = true;
  std::map<std::string, Client> clients;
  for (const ApiKey& key : keys) {
    clients[key.name].limits = key.limits;
    const auto known = clients_.find(key.name);
    if (known == clients_.end()) continue;
    clients[key.name] = known->second;
    clients[key.name].limits = key.limits;
  }
  // A client with a request running is kept until that ends, without a key for another one.
  for (auto& [name, client] : clients_) {
    if (client.running > 0) clients.emplace(name, client);
  }
  clients_ = std::move(clients);
  keys_ = std::make_shared<const std::vector<ApiKey>>(std::move(keys));
}

std::optional<ApiError> Access::Identify(absl::string_view authorization, std::string* client) const {
  client->clear();
  std::shared_ptr<const std::vector<ApiKey>> keys;
  {
    absl::MutexLock lock(&mutex_);
    if (!keys_needed_) return std::nullopt;
    keys = keys_;
  }
  if (authorization.empty()) {
    return Unauthorized(
        "You didn't provide an API key. Provide it in an Authorization header using Bearer auth "
        "(i.e. Authorization: Bearer YOUR_KEY).");
  }
  if (!absl::StartsWithIgnoreCase(authorization, kBearer)) {
    return Unauthorized("The Authorization header must be of the form: Bearer YOUR_KEY.");
  }
  const std::array<uint8_t, 32> hash = HashApiKey(authorization.substr(kBearer.size()));
  const ApiKey* found = nullptr;
  // All of them, whichever it is, each in constant time.
  for (const ApiKey& key : *keys) {
    if (CRYPTO_memcmp(key.sha256.data(), hash.data(), hash.size()) == 0) found = &key;
  }
  if (found == nullptr) return Unauthorized("Incorrect API key provided.");
  *client = found->name;
  return std::nullopt;
}

std::optional<ApiError> Access::Admit(const std::string& name, std::shared_ptr<Grant>* grant) {
  const absl::Time now = clock_();
  grant->reset();  // one that it still held takes the lock to die
  absl::MutexLock lock(&mutex_);
  const auto it = clients_.find(name);
  if (it == clients_.end()) return Unauthorized("Incorrect API key provided.");  // taken away meanwhile
  Client& client = it->second;
  const KeyLimits& limits = client.limits;
  if (limits.max_concurrent > 0 && client.running >= limits.max_concurrent) {
    return TooManyAtOnce(limits.max_concurrent);
  }
  if (limits.tokens_per_minute > 0) {
    client.tokens.Fill(limits.tokens_per_minute, now);
    if (client.tokens.level <= 0) {
      return TooMuch(absl::StrCat("Rate limit reached on tokens per minute (TPM): limit ",
                                  limits.tokens_per_minute, "."),
                     "rate_limit_exceeded", client.tokens.SecondsUntil(1, limits.tokens_per_minute));
    }
  }
  if (limits.requests_per_minute > 0) {
    client.requests.Fill(limits.requests_per_minute, now);
    if (client.requests.level < 1) {
      return TooMuch(absl::StrCat("Rate limit reached on requests per minute (RPM): limit ",
                                  limits.requests_per_minute, "."),
                     "rate_limit_exceeded", client.requests.SecondsUntil(1, limits.requests_per_minute));
    }
    client.requests.level -= 1;
  }
  ++client.running;
  grant->reset(new Grant(this, name, limits));
  return std::nullopt;
}

Access::Grant::~Grant() {
  absl::MutexLock lock(&access_->mutex_);
  const auto it = access_->clients_.find(client_);
  if (it != access_->clients_.end()) it->second.running -= places_;
}

std::optional<ApiError> Access::Grant::Widen(int least, int most) {
  if (limits_.max_concurrent <= 0) return std::nullopt;
  absl::MutexLock lock(&access_->mutex_);
  const auto it = access_->clients_.find(client_);
  if (it == access_->clients_.end()) return std::nullopt;  // taken away meanwhile: what it has asked may end
  const int others = it->second.running - places_;
  const int free = limits_.max_concurrent - others;
  if (free < least) return TooManyAtOnce(limits_.max_concurrent);
  it->second.running -= places_;
  places_ = std::min(free, most);
  it->second.running += places_;
  return std::nullopt;
}

void Access::Grant::ChargeTokens(int64_t tokens) {
  const absl::Time now = access_->clock_();
  absl::MutexLock lock(&access_->mutex_);
  const auto it = access_->clients_.find(client_);
  if (it == access_->clients_.end() || it->second.limits.tokens_per_minute <= 0) return;
  it->second.tokens.Fill(it->second.limits.tokens_per_minute, now);
  it->second.tokens.level -= static_cast<double>(tokens);
}

void Access::Grant::ChargeRequests(int64_t requests) {
  if (requests <= 0) return;
  const absl::Time now = access_->clock_();
  absl::MutexLock lock(&access_->mutex_);
  const auto it = access_->clients_.find(client_);
  if (it == access_->clients_.end() || it->second.limits.requests_per_minute <= 0) return;
  it->second.requests.Fill(it->second.limits.requests_per_minute, now);
  it->second.requests.level -= static_cast<double>(requests);
}

}  // namespace aludel
