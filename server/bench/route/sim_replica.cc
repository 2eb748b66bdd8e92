#include "server/bench/route/sim_replica.h"

#include <algorithm>
#include <cmath>

namespace aludel {
namespace {

double Square(int64_t x) { return static_cast<double>(x) * static_cast<double>(x); }

}  // namespace

SimReplica::SimReplica(const SimCosts& costs)
    : costs_(costs), cache_(costs.cache_tokens), promised_(costs.cache_tokens) {}

void SimReplica::Queue(const Waiting& job, int sign) {
  queued_tokens_ += sign * job.share * static_cast<double>(job.keys->tokens - job.at);
  queued_pairs_ += sign * job.share * (Square(job.keys->tokens) - Square(job.at));
}

void SimReplica::Arrive(size_t request, const PrefixKeys& keys, int64_t output_tokens, double now,
                        std::optional<double> handed_over) {
  const int64_t cached = handed_over ? 0 : std::min(promised_.Match(keys), keys.tokens - 1);
  waiting_.push_back({.request = request,
                      .keys = &keys,
                      .output_tokens = output_tokens,
                      .cached = cached,
                      .at = cached,
                      .share = handed_over.value_or(1),
                      .handed_over = handed_over.has_value()});
  Queue(waiting_.back(), 1);
  scratch_.clear();
  promised_.Touch(keys, keys.size(), &scratch_, &scratch_);
  if (step_end_ == kNever) BeginStep(now);
}

void SimReplica::BeginStep(double now) {
  ending_ = 0;
  const auto decoding = static_cast<double>(active_.size());
  int64_t room = costs_.chunk_tokens;
  double prefill = 0;
  for (size_t i = 0; i < waiting_.size() && room > 0; ++i) {
    Waiting& job = waiting_[i];
    if (!job.begun) {
      if (static_cast<int>(active_.size() + i) >= costs_.max_sequences) break;
      Queue(job, -1);
      job.begun = true;
      if (!job.handed_over) job.cached = job.at = std::min(cache_.Match(*job.keys), job.keys->tokens - 1);
      Queue(job, 1);
    }
    const int64_t left = job.keys->tokens - job.at;
    // A chunk is as much work as its tokens computed in full.
    const bool all = job.share * static_cast<double>(left) <= static_cast<double>(room);
    const int64_t tokens =
        all ? left : static_cast<int64_t>(std::ceil(static_cast<double>(room) / job.share));
    Queue(job, -1);
    prefill += job.share * (costs_.per_token * static_cast<double>(tokens) +
                            costs_.per_pair * (Square(job.at + tokens) - Square(job.at)));
    job.at += tokens;
    Queue(job, 1);
    room -= static_cast<int64_t>(std::ceil(job.share * static_cast<double>(tokens)));
    if (job.at == job.keys->tokens) ++ending_;
  }
  if (prefill == 0 && ending_ == 0 && active_.empty()) {
    step_end_ = kNever;
    return;
  }
  prefill_seconds_ += prefill;
  step_end_ = now + costs_.step + costs_.per_sequence * decoding + prefill;
}

void SimReplica::Step(std::vector<Event>* events) {
  ++step_;
  while (!active_.empty() && active_.top().last_step <= step_) {
    events->push_back({active_.top().request, false, 0});
    active_.pop();
  }
  for (; ending_ > 0; --ending_) {
    const Waiting job = waiting_.front();
    waiting_.pop_front();
    scratch_.clear();
    cache_.Touch(*job.keys, job.keys->size(), &scratch_, &scratch_);
    events->push_back({job.request, true, job.cached});
    if (job.output_tokens > 1) {
      active_.push({step_ + static_cast<uint64_t>(job.output_tokens) - 1, job.request});
    } else {
      events->push_back({job.request, false, 0});
    }
  }
  BeginStep(step_end_);
}

double SimReplica::SecondsPerToken() const {
  const double step = costs_.step + costs_.per_sequence * static_cast<double>(active_.size());
  return costs_.per_token + step / static_cast<double>(costs_.chunk_tokens);
}

std::optional<double> SimReplica::Remaining(size_t request, double now) const {
  const double per_token = SecondsPerToken();
  double seconds = RestOfStep(now);
  for (const Waiting& job : waiting_) {
    seconds += job.share * (per_token * static_cast<double>(job.keys->tokens - job.at) +
                            costs_.per_pair * (Square(job.keys->tokens) - Square(job.at)));
    if (job.request != request) continue;
    return job.begun || job.handed_over ? std::nullopt : std::optional(seconds);
  }
  return std::nullopt;
}

void SimReplica::Withdraw(size_t request) {
  const auto job = std::find_if(waiting_.begin(), waiting_.end(),
                                [request](const Waiting& one) { return one.request == request; });
  if (job == waiting_.end() || job->begun) return;
  Queue(*job, -1);
  waiting_.erase(job);
}

std::vector<size_t> SimReplica::Fail() {
  std::vector<size_t> lost;
  for (const Waiting& job : waiting_) lost.push_back(job.request);
  for (; !active_.empty(); active_.pop()) lost.push_back(active_.top().request);
  const double spent = prefill_seconds_;
  *this = SimReplica(costs_);
  prefill_seconds_ = spent;
  return lost;
}

ReplicaReport SimReplica::Report(double now, double age) const {
  const double step = costs_.step + costs_.per_sequence * static_cast<double>(active_.size());
  const PrefillCosts costs{.fixed = step, .per_token = SecondsPerToken(), .per_pair = costs_.per_pair};
  return {
      .waiting_seconds = RestOfStep(now) + queued_tokens_ * costs.per_token + queued_pairs_ * costs.per_pair,
      .running = running(),
      .places = costs_.max_sequences,
      .cache_tokens = costs_.cache_tokens,
      .age_seconds = age,
      .costs = costs};
}

}  // namespace aludel
