#include "server/gateway/routing/waiting_room.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// How often is looked at what waits: deadlines pass, servers come and go, and other gateways leave room.
constexpr absl::Duration kTick = absl::Milliseconds(50);
// How long what waits is kept when no server is usable: a server that was lost may be back.
constexpr absl::Duration kGrace = absl::Seconds(10);

}  // namespace

WaitingRoom::WaitingRoom(const WaitingQueue::Options& options, const std::vector<std::string>& models,
                         Places places, Metrics* metrics)
    : options_(options),
      places_(std::move(places)),
      wait_seconds_(metrics->Histogram("aludel_request_wait_seconds",
                                       "How long requests waited for a place at a decode server.",
                                       Metrics::TtftBuckets())),
      refusals_(metrics->Counter("aludel_wait_refusals_total",
                                 "Requests refused for what waits already, by reason.")) {
  absl::MutexLock lock(&mutex_);
  for (const std::string& model : models) {
    lanes_.emplace(model, options);
    for (const char* reason : {"full", "tokens", "deadline"}) {
      refusals_.Add({{"model", model}, {"reason", reason}}, 0);
    }
  }
}

WaitingRoom::~WaitingRoom() {
  absl::MutexLock lock(&mutex_);
  stopping_ = true;  // a last tick does nothing; the timer joins its thread
}

WaitingRoom::Lane& WaitingRoom::LaneOf(const std::string& model) {
  return lanes_.try_emplace(model, options_).first->second;
}

bool WaitingRoom::HasRoom(const std::string& model, const Lane& lane, int places) const {
  const int all = places_(model).value_or(0);
  return all == 0 || lane.queue.places_taken() + places <= all;
}

grpc::Status WaitingRoom::Refuse(const std::string& model, const WaitingQueue::Refusal& refusal) {
  refusals_.Add({{"model", model}, {"reason", refusal.reason}});
  return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, refusal.message,
                      absl::StrCat(refusal.retry_after_seconds));
}

std::optional<grpc::Status> WaitingRoom::Check(const std::string& model, const std::string& tenant,
                                               absl::Time deadline, int priority) {
  absl::MutexLock lock(&mutex_);
  const WaitingQueue& queue = LaneOf(model).queue;
  if (options_.max_waiting == 0 || queue.size() == 0) return std::nullopt;
  const auto refusal = queue.Check(tenant, /*tokens=*/0, MonotonicNow(), deadline, priority);
  if (!refusal) return std::nullopt;
  return Refuse(model, *refusal);
}

void WaitingRoom::Push(Lane* lane, Visit* visit, std::shared_ptr<Guest> guest) {
  lane->queue.Push({.id = visit->id,
                    .tenant = visit->tenant,
                    .weight = visit->weight,
                    .tokens = visit->tokens,
                    .places = visit->places,
                    .priority = visit->priority,
                    .deadline = visit->deadline},
                   MonotonicNow());
  lane->guests[visit->id] = {std::move(guest), visit};
  if (tick_ == 0 && !stopping_) tick_ = timer_.At(MonotonicNow() + kTick, [this] { Tick(); });
}

void WaitingRoom::Enter(Visit* visit, std::shared_ptr<Guest> guest) {
  bool admitted = false;
  std::optional<grpc::Status> refused;
  {
    absl::MutexLock lock(&mutex_);
    Lane& lane = LaneOf(visit->model);
    visit->id = ++last_id_;
    visit->arrived = MonotonicNow();
    admitted =
        options_.max_waiting == 0 || (lane.queue.size() == 0 && HasRoom(visit->model, lane, visit->places));
    if (admitted) {
      visit->admitted = visit->arrived;
      lane.queue.Started(visit->tenant, visit->weight, visit->places, visit->arrived, /*waited=*/false);
    } else if (const auto refusal = lane.queue.Check(visit->tenant, visit->tokens, visit->arrived,
                                                     visit->deadline, visit->priority)) {
      refused = Refuse(visit->model, *refusal);
    } else {
      Push(&lane, visit, guest);
    }
  }
  if (admitted) return guest->Admitted();
  if (refused) return guest->Refused(*refused);
}

bool WaitingRoom::Return(Visit* visit, std::shared_ptr<Guest> guest) {
  absl::MutexLock lock(&mutex_);
  Lane& lane = LaneOf(visit->model);
  if (options_.max_waiting == 0) return false;
  lane.queue.Returned(visit->tenant, visit->places, MonotonicNow());
  lane.full = true;
  Push(&lane, visit, std::move(guest));
  return true;
}

bool WaitingRoom::Leave(const Visit& visit) {
  std::shared_ptr<Guest> guest;  // dies after the lock
  absl::MutexLock lock(&mutex_);
  Lane& lane = LaneOf(visit.model);
  const auto found = lane.guests.find(visit.id);
  if (found == lane.guests.end()) return false;
  guest = std::move(found->second.guest);
  lane.guests.erase(found);
  lane.queue.Remove(visit.id);
  return true;
}

void WaitingRoom::Ended(const Visit& visit, bool served) {
  {
    absl::MutexLock lock(&mutex_);
    Lane& lane = LaneOf(visit.model);
    const absl::Time now = MonotonicNow();
    lane.queue.Ended(visit.tenant, visit.places, now,
                     served ? std::optional(now - visit.admitted) : std::nullopt);
    lane.full = false;
  }
  Pump(visit.model);
}

int WaitingRoom::waiting(const std::string& model) const {
  absl::MutexLock lock(&mutex_);
  const auto lane = lanes_.find(model);
  return lane == lanes_.end() ? 0 : lane->second.queue.size();
}

int WaitingRoom::waiting_places(const std::string& model) const {
  absl::MutexLock lock(&mutex_);
  const auto lane = lanes_.find(model);
  return lane == lanes_.end() ? 0 : lane->second.queue.waiting_places();
}

bool WaitingRoom::MayAdmit(const std::string& model, Lane* lane, const WaitingQueue::Entry& next,
                           absl::Time now) const {
  if (!places_(model).has_value()) {
    if (!lane->lost) lane->lost = now;
    return now - *lane->lost >= kGrace;  // and is told that none is ready
  }
  lane->lost.reset();
  if (lane->full && !std::exchange(lane->trial, false)) return false;
  return HasRoom(model, *lane, next.places);
}

WaitingRoom::Calls WaitingRoom::Collect(const std::string& model, Lane* lane) {
  Calls calls;
  const absl::Time now = MonotonicNow();
  for (const auto& [id, refusal] : lane->queue.RemoveHopeless(now)) {
    const auto found = lane->guests.find(id);
    calls.refused.emplace_back(std::move(found->second.guest), Refuse(model, refusal));
    lane->guests.erase(found);
  }
  while (true) {
    const WaitingQueue::Entry* next = lane->queue.Next(now);
    if (next == nullptr || !MayAdmit(model, lane, *next, now)) break;
    const auto found = lane->guests.find(next->id);
    Visit* const visit = found->second.visit;
    calls.admitted.push_back(std::move(found->second.guest));
    lane->guests.erase(found);
    lane->queue.Remove(visit->id);
    lane->queue.Started(visit->tenant, visit->weight, visit->places, now, /*waited=*/!lane->lost);
    visit->admitted = now;
    wait_seconds_.Observe({{"model", model}}, absl::ToDoubleSeconds(now - visit->arrived));
  }
  return calls;
}

void WaitingRoom::Pump(const std::string& model) {
  while (true) {
    Calls calls;
    {
      absl::MutexLock lock(&mutex_);
      Lane& lane = LaneOf(model);
      // A guest that ends at once brings its thread here again: not deeper, but once more.
      if (std::exchange(lane.pumping, true)) {
        lane.changed = true;
        return;
      }
      lane.changed = false;
      calls = Collect(model, &lane);
    }
    for (const auto& guest : calls.admitted) guest->Admitted();
    for (const auto& [guest, status] : calls.refused) guest->Refused(status);
    absl::MutexLock lock(&mutex_);
    Lane& lane = LaneOf(model);
    lane.pumping = false;
    if (!lane.changed) return;
  }
}

void WaitingRoom::Tick() {
  std::vector<std::string> models;
  {
    absl::MutexLock lock(&mutex_);
    tick_ = 0;
    if (stopping_) return;
    for (auto& [model, lane] : lanes_) {
      lane.trial = true;
      if (lane.queue.size() > 0) models.push_back(model);
    }
    if (!models.empty()) tick_ = timer_.At(MonotonicNow() + kTick, [this] { Tick(); });
  }
  for (const std::string& model : models) Pump(model);
}

}  // namespace aludel
