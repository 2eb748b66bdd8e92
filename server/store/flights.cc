#include "server/store/flights.h"

#include <algorithm>
#include <utility>

namespace aludel {

std::unique_ptr<Flights::Flight> Flights::Join(const ChunkKey& root, absl::Span<const int32_t> prompt,
                                               int64_t have, std::function<void()> further, Known* known) {
  absl::ReleasableMutexLock lock(&mutex_);
  for (const std::shared_ptr<State>& state : flying_) {
    if (state->root != root) continue;
    const auto shared = static_cast<int64_t>(
        std::mismatch(prompt.begin(), prompt.end(), state->prompt.begin(), state->prompt.end()).first -
        prompt.begin());
    const int64_t gain = shared - std::max(have, state->end);
    const bool whole = shared == static_cast<int64_t>(state->prompt.size());
    if (gain >= step_tokens_ || (whole && gain > 0)) {
      if (have < state->end && state->end <= known->end) continue;
      known->shared = shared;
      if (have < state->end) {
        known->end = state->end;
        lock.Release();
        further();  // it has got further already
        return nullptr;
      }
      state->waiting.push_back(std::move(further));
      return nullptr;
    }
  }
  return Add(root, prompt, have);
}

std::unique_ptr<Flights::Flight> Flights::Begin(const ChunkKey& root, absl::Span<const int32_t> prompt,
                                                int64_t have) {
  absl::MutexLock lock(&mutex_);
  return Add(root, prompt, have);
}

std::unique_ptr<Flights::Flight> Flights::Add(const ChunkKey& root, absl::Span<const int32_t> prompt,
                                              int64_t have) {
  auto state = std::make_shared<State>();
  state->root = root;
  state->prompt.assign(prompt.begin(), prompt.end());
  state->end = have;
  state->place = flying_.insert(flying_.end(), state);
  return std::make_unique<Flight>(this, std::move(state));
}

void Flights::Advance(State& state, int64_t tokens) {
  std::vector<std::function<void()>> waiting;
  {
    absl::MutexLock lock(&mutex_);
    if (tokens <= state.end) return;
    state.end = tokens;
    std::swap(waiting, state.waiting);
  }
  for (const auto& further : waiting) further();
}

void Flights::End(const std::shared_ptr<State>& state) {
  std::vector<std::function<void()>> waiting;
  {
    absl::MutexLock lock(&mutex_);
    flying_.erase(state->place);
    std::swap(waiting, state->waiting);
  }
  for (const auto& further : waiting) further();
}

}  // namespace aludel
