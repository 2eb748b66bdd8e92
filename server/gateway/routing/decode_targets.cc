#include "server/gateway/routing/decode_targets.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace aludel {

DecodeTargets::DecodeTargets(const std::vector<Model>& models,
                             const std::shared_ptr<grpc::ChannelCredentials>& credentials, Metrics* metrics) {
  for (const Model& model : models) {
    for (const std::string& name : model.decode_targets) {
      targets_[model.expectation.model].push_back(
          std::make_shared<DecodeTarget>(name, model.expectation, credentials, metrics));
    }
  }
}

const std::vector<std::shared_ptr<DecodeTarget>>& DecodeTargets::Of(const std::string& model) const {
  static const std::vector<std::shared_ptr<DecodeTarget>> none;
  const auto it = targets_.find(model);
  return it == targets_.end() ? none : it->second;
}

std::vector<std::shared_ptr<DecodeTarget>> DecodeTargets::all() const {
  std::vector<std::shared_ptr<DecodeTarget>> all;
  for (const auto& [model, targets] : targets_) all.insert(all.end(), targets.begin(), targets.end());
  return all;
}

std::optional<int> DecodeTargets::Places(const std::string& model) const {
  std::optional<int> places;
  for (const auto& target : Of(model)) {
    if (target->usable()) places = places.value_or(0) + static_cast<int>(target->max_choices());
  }
  return places;
}

DecodeTargets::State DecodeTargets::StateOf(const std::string& model) const {
  State state;
  for (const auto& target : Of(model)) {
    const uint64_t context = target->max_context();
    if (context > 0 && (state.max_context == 0 || context < state.max_context)) state.max_context = context;
    if (target->usable()) {
      state.ready = true;
      state.max_choices = std::max(state.max_choices, target->max_choices());
    } else {
      absl::StrAppend(&state.reason, state.reason.empty() ? "" : "; ", target->name(), ": ",
                      target->reason());
    }
  }
  return state;
}

std::string DecodeTargets::Numerics(const std::string& model) const {
  std::set<std::string> numerics;
  for (const auto& target : Of(model)) {
    if (target->usable()) numerics.insert(target->numerics());
  }
  return absl::StrJoin(numerics, "\n");
}

std::vector<std::string> DecodeTargets::Formats(const std::string& model) const {
  std::vector<std::string> formats;
  bool first = true;
  for (const auto& target : Of(model)) {
    if (!target->usable()) continue;
    const std::vector<std::string> own = target->formats();
    if (std::exchange(first, false)) formats = own;
    std::erase_if(formats, [&](const std::string& name) { return !absl::c_linear_search(own, name); });
  }
  return formats;
}

std::vector<std::string> DecodeTargets::Adapters(const std::string& model) const {
  std::set<std::string> adapters;
  for (const auto& target : Of(model)) {
    if (!target->usable()) continue;
    for (std::string& name : target->adapters()) adapters.insert(std::move(name));
  }
  return {adapters.begin(), adapters.end()};
}

std::optional<std::string> DecodeTargets::BaseOf(const std::string& adapter) const {
  for (const auto& [model, targets] : targets_) {
    for (const auto& target : targets) {
      if (target->usable() && target->ServesAdapter(adapter)) return model;
    }
  }
  return std::nullopt;
}

int DecodeTargets::Outstanding(const std::string& model) const {
  int sum = 0;
  for (const auto& target : Of(model)) sum += target->outstanding.load(std::memory_order_relaxed);
  return sum;
}

std::shared_ptr<DecodeTarget> DecodeTargets::Pick(const std::string& model,
                                                  const std::vector<DecodeTarget*>& tried,
                                                  const std::string& numerics,
                                                  const std::string& adapter) const {
  std::shared_ptr<DecodeTarget> best;
  std::pair<bool, int> best_rank;  // a slow server comes behind every one that is ready
  for (const auto& target : Of(model)) {
    if (!target->usable() || absl::c_linear_search(tried, target.get())) continue;
    if (!numerics.empty() && target->numerics() != numerics) continue;
    if (!adapter.empty() && !target->ServesAdapter(adapter)) continue;
    const std::pair<bool, int> rank = {!target->ready(), target->outstanding.load()};
    if (best == nullptr || rank < best_rank) std::tie(best, best_rank) = std::pair(target, rank);
  }
  return best;
}

bool DecodeTargets::HasOther(const std::string& model, const std::vector<DecodeTarget*>& gone,
                             const std::string& numerics) const {
  return absl::c_any_of(Of(model), [&](const std::shared_ptr<DecodeTarget>& target) {
    const std::string found = target->numerics();
    return !absl::c_linear_search(gone, target.get()) &&
           (numerics.empty() || found.empty() || found == numerics);
  });
}

}  // namespace aludel
