#include "server/gateway/routing/waiting_queue.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/check.h"

namespace aludel {
namespace {

constexpr int kMaxRetryAfterSeconds = 600;
constexpr double kPaceSeconds = 30;   // after which what was measured counts a third
constexpr double kAnswerSeconds = 1;  // as long as none was measured

int RetryAfter(absl::Duration wait) {
  return static_cast<int>(
      std::clamp(std::ceil(absl::ToDoubleSeconds(wait)), 1.0, 1.0 * kMaxRetryAfterSeconds));
}

}  // namespace

void WaitingQueue::Mean::Add(double sample) {
  ++samples;
  value += std::max(kLeastWeight, 1.0 / samples) * (sample - value);
}

void WaitingQueue::Pace::Add(double more_seconds, int more_places) {
  const double kept = std::exp(-more_seconds / kPaceSeconds);
  seconds = kept * seconds + more_seconds;
  places = kept * places + more_places;
}

std::optional<double> WaitingQueue::Pace::seconds_a_place() const {
  // What was returned has left no whole place.
  if (places < 0.5) return std::nullopt;
  return seconds / places;
}

int WaitingQueue::waiting_places() const {
  int places = 0;
  for (const auto& [name, tenant] : tenants_) places += tenant.waiting_places;
  return places;
}

std::optional<absl::Duration> WaitingQueue::PredictWait(const std::string& tenant, int priority) const {
  if (index_.empty()) return absl::ZeroDuration();
  const std::optional<double> seconds_a_place = pace_.seconds_a_place();
  if (!seconds_a_place) return std::nullopt;
  // The others get their turns beside those of this tenant that go before it.
  int before = 0;
  int weight = 1;
  if (const auto own = tenants_.find(tenant); own != tenants_.end()) {
    weight = own->second.weight;
    for (const auto& [rank, entry] : own->second.waiting) {
      if (rank.first <= priority) before += entry.places;
    }
  }
  int64_t ahead = before + 1;
  for (const auto& [name, other] : tenants_) {
    if (name == tenant) continue;
    const int64_t beside = (int64_t{before} + 1) * other.weight / weight;
    ahead += std::min<int64_t>(other.waiting_places, std::max<int64_t>(beside, 1));
  }
  return absl::Seconds(static_cast<double>(ahead) * *seconds_a_place);
}

std::optional<WaitingQueue::Refusal> WaitingQueue::TooLate(absl::Duration wait, absl::Time now,
                                                           absl::Time deadline) const {
  if (now >= deadline) {
    return Refusal{"deadline", "overloaded: the deadline passed before a decode server had room",
                   RetryAfter(wait)};
  }
  if (service_seconds_.samples == 0) return std::nullopt;
  const absl::Duration end = wait + absl::Seconds(service_seconds_.value);
  if (now + end <= deadline) return std::nullopt;
  return Refusal{
      .reason = "deadline",
      .message = absl::StrFormat("overloaded: the answer is expected in %.1f s, the deadline is in %.1f s",
                                 absl::ToDoubleSeconds(end), absl::ToDoubleSeconds(deadline - now)),
      .retry_after_seconds = RetryAfter(now + end - deadline)};
}

std::optional<WaitingQueue::Refusal> WaitingQueue::Check(const std::string& tenant, int64_t tokens,
                                                         absl::Time now, absl::Time deadline,
                                                         int priority) const {
  const std::optional<absl::Duration> wait = PredictWait(tenant, priority);
  const int retry_after = RetryAfter(wait.value_or(absl::ZeroDuration()));
  if (size() >= options_.max_waiting) {
    return Refusal{"full", absl::StrCat("overloaded: ", size(), " requests wait already"), retry_after};
  }
  if (size() > 0 && tokens_ + tokens > options_.max_waiting_tokens) {
    return Refusal{"tokens", absl::StrCat("overloaded: requests of ", tokens_, " prompt tokens wait already"),
                   retry_after};
  }
  if (size() == 0 || !wait) return std::nullopt;
  return TooLate(*wait, now, deadline);
}

double WaitingQueue::Turn(const Tenant& tenant, absl::Time now) const {
  const double still = service_seconds_.samples > 0 ? service_seconds_.value : kAnswerSeconds;
  return tenant.used + tenant.taken * (absl::ToDoubleSeconds(now - tenant.since) + still) / tenant.weight;
}

WaitingQueue::Tenant& WaitingQueue::Join(const std::string& name, int weight, bool newest, absl::Time now) {
  const auto [found, fresh] = tenants_.try_emplace(name);
  Tenant& tenant = found->second;
  Settle(&tenant, now);
  if (fresh || newest) tenant.weight = weight;
  if (tenant.waiting.empty()) tenant.used = std::max(tenant.used, reached_);
  return tenant;
}

void WaitingQueue::Push(Entry entry, absl::Time now) {
  if (index_.empty()) {
    last_place_.reset();  // the time until now was no wait
    for (auto& [name, tenant] : tenants_) {
      Settle(&tenant, now);
      tenant.used = 0;
    }
    reached_ = 0;
  }
  const Rank rank = {entry.priority, entry.id};
  tokens_ += entry.tokens;
  ALUDEL_CHECK(index_.emplace(entry.id, std::pair(entry.tenant, rank)).second);
  Tenant& tenant = Join(entry.tenant, entry.weight, /*newest=*/true, now);
  tenant.waiting_places += entry.places;
  tenant.waiting.emplace(rank, std::move(entry));
}

const WaitingQueue::Entry* WaitingQueue::Next(absl::Time now) const {
  const Tenant* next = nullptr;
  for (const auto& [name, tenant] : tenants_) {
    if (tenant.waiting.empty()) continue;
    const auto rank = [this, now](const Tenant& one) {
      return std::tuple(Turn(one, now), one.last_turn, one.waiting.begin()->second.id);
    };
    if (next == nullptr || rank(tenant) < rank(*next)) next = &tenant;
  }
  return next == nullptr ? nullptr : &next->waiting.begin()->second;
}

bool WaitingQueue::Remove(uint64_t id) {
  if (!index_.contains(id)) return false;
  Drop(id);
  Forget();
  return true;
}

void WaitingQueue::Drop(uint64_t id) {
  const auto found = index_.find(id);
  const auto [name, rank] = found->second;
  index_.erase(found);
  Tenant& tenant = tenants_.at(name);
  const auto entry = tenant.waiting.find(rank);
  tokens_ -= entry->second.tokens;
  tenant.waiting_places -= entry->second.places;
  tenant.waiting.erase(entry);
}

std::vector<std::pair<uint64_t, WaitingQueue::Refusal>> WaitingQueue::RemoveHopeless(absl::Time now) {
  std::vector<std::pair<uint64_t, Refusal>> hopeless;
  for (const auto& [name, tenant] : tenants_) {
    for (const auto& [rank, entry] : tenant.waiting) {
      if (auto refusal = TooLate(absl::ZeroDuration(), now, entry.deadline)) {
        hopeless.emplace_back(entry.id, *std::move(refusal));
      }
    }
  }
  for (const auto& [id, refusal] : hopeless) Drop(id);
  if (!hopeless.empty()) Forget();
  return hopeless;
}

void WaitingQueue::Started(const std::string& tenant, int weight, int places, absl::Time now, bool waited) {
  Tenant& one = Join(tenant, weight, /*newest=*/!waited, now);
  reached_ = std::max(reached_, one.used);
  one.taken += places;
  one.last_turn = ++turns_;
  places_taken_ += places;
  if (!waited) return;
  if (last_place_) pace_.Add(absl::ToDoubleSeconds(now - *last_place_), places);
  last_place_ = index_.empty() ? std::nullopt : std::optional(now);
}

void WaitingQueue::Returned(const std::string& tenant, int places, absl::Time now) {
  pace_.places = std::max(0.0, pace_.places - places);
  Ended(tenant, places, now, std::nullopt);
}

void WaitingQueue::Ended(const std::string& tenant, int places, absl::Time now,
                         std::optional<absl::Duration> served) {
  Tenant& one = tenants_[tenant];
  Settle(&one, now);
  one.taken -= places;
  places_taken_ -= places;
  ALUDEL_CHECK(one.taken >= 0);
  Forget();
  if (served) service_seconds_.Add(absl::ToDoubleSeconds(*served));
}

void WaitingQueue::Settle(Tenant* tenant, absl::Time now) {
  if (tenant->taken > 0) {
    tenant->used += tenant->taken * absl::ToDoubleSeconds(now - tenant->since) / tenant->weight;
  }
  tenant->since = now;
}

void WaitingQueue::Forget() {
  std::erase_if(tenants_, [this](const auto& tenant) {
    const Tenant& one = tenant.second;
    return one.idle() && (index_.empty() || one.used <= reached_);
  });
}

}  // namespace aludel
