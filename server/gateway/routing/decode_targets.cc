#include "server/gateway/routing/decode_targets.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace aludel {
namespace {

ModelFleet::Standing StandingOf(const DecodeTarget& target) {
  if (target.ready()) return ModelFleet::Standing::kReady;
  return target.usable() ? ModelFleet::Standing::kSpare : ModelFleet::Standing::kOut;
}

}  // namespace

DecodeTargets::DecodeTargets(const std::vector<Model>& models,
                             const std::shared_ptr<grpc::ChannelCredentials>& credentials, Metrics* metrics,
                             const Fleet::Options& routing) {
  for (const Model& model : models) {
    const std::string& served = model.expectation.model;
    Pool& pool = pools_[served];
    if (pool.fleet == nullptr) pool.fleet = std::make_shared<ModelFleet>(served, routing, metrics);
    for (const std::string& name : model.decode_targets) {
      pool.targets.push_back(
          std::make_shared<DecodeTarget>(name, model.expectation, credentials, metrics, pool.fleet));
    }
  }
}

const std::vector<std::shared_ptr<DecodeTarget>>& DecodeTargets::Of(const std::string& model) const {
  static const std::vector<std::shared_ptr<DecodeTarget>> none;
  const auto it = pools_.find(model);
  return it == pools_.end() ? none : it->second.targets;
}

std::vector<std::shared_ptr<DecodeTarget>> DecodeTargets::all() const {
  std::vector<std::shared_ptr<DecodeTarget>> all;
  for (const auto& [model, pool] : pools_) all.insert(all.end(), pool.targets.begin(), pool.targets.end());
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
  for (const auto& [model, pool] : pools_) {
    for (const auto& target : pool.targets) {
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

std::shared_ptr<DecodeTarget> DecodeTargets::Pick(const Wanted& wanted) const {
  const auto pool = pools_.find(wanted.model);
  if (pool == pools_.end()) return nullptr;
  const auto& targets = pool->second.targets;
  const std::optional<size_t> slot = pool->second.fleet->Pick(
      wanted.keys,
      [&](size_t at) {
        const bool out = absl::c_linear_search(wanted.tried, targets[at].get()) ||
                         (!wanted.numerics.empty() && targets[at]->numerics() != wanted.numerics) ||
                         (!wanted.adapter.empty() && !targets[at]->ServesAdapter(wanted.adapter));
        return out ? ModelFleet::Standing::kOut : StandingOf(*targets[at]);
      },
      wanted.again, wanted.places);
  return slot ? targets[*slot] : nullptr;
}

std::optional<DecodeTargets::Explanation> DecodeTargets::Explain(const std::string& model,
                                                                 const PrefixKeys& keys) const {
  const auto pool = pools_.find(model);
  if (pool == pools_.end()) return std::nullopt;
  Explanation explanation{.choice = pool->second.fleet->Explain(
                              keys, [&](size_t slot) { return StandingOf(*pool->second.targets[slot]); })};
  for (const auto& target : pool->second.targets) explanation.names.push_back(target->name());
  return explanation;
}

double DecodeTargets::Imbalance(const std::string& model) const {
  const auto pool = pools_.find(model);
  if (pool == pools_.end()) return 1;
  return pool->second.fleet->Imbalance([&](size_t slot) { return StandingOf(*pool->second.targets[slot]); });
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
