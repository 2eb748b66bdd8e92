#include "server/gateway/routing/decode_targets.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace aludel {

ModelFleet::Standing DecodeTargets::Members::StandingOf(size_t slot) const {
  const DecodeTarget* const target = At(slot);
  if (target == nullptr || !target->usable()) return ModelFleet::Standing::kOut;
  return target->ready() ? ModelFleet::Standing::kReady : ModelFleet::Standing::kSpare;
}

DecodeTargets::DecodeTargets(const std::vector<Model>& models,
                             const std::shared_ptr<grpc::ChannelCredentials>& credentials, Metrics* metrics,
                             const Fleet::Options& routing)
    : credentials_(credentials), metrics_(metrics) {
  for (const Model& model : models) {
    const std::string& served = model.expectation.model;
    pools_[served] = {.expectation = model.expectation,
                      .fleet = std::make_shared<ModelFleet>(served, routing, metrics)};
    SetTargets(served, {model.decode_targets.begin(), model.decode_targets.end()});
  }
}

void DecodeTargets::SetTargets(const std::string& model, const std::vector<ServerName>& targets) {
  const auto found = pools_.find(model);
  if (found == pools_.end()) return;
  Pool& pool = found->second;
  MembersPtr before = MembersOf(model);
  auto after = std::make_shared<Members>();
  for (const ServerName& name : targets) {
    const auto same = [&name](const std::shared_ptr<DecodeTarget>& one) { return one->server() == name; };
    const auto kept = absl::c_find_if(before->targets, same);
    after->targets.push_back(
        kept != before->targets.end()
            ? *kept
            : std::make_shared<DecodeTarget>(name, pool.expectation, credentials_, metrics_, pool.fleet));
    const size_t slot = after->targets.back()->slot();
    if (after->by_slot.size() <= slot) after->by_slot.resize(slot + 1);
    after->by_slot[slot] = after->targets.back().get();
  }
  {
    absl::MutexLock lock(&mutex_);
    pool.members = after;
  }
  for (const auto& target : before->targets) {
    if (!absl::c_linear_search(after->targets, target)) target->Retire();
  }
}

DecodeTargets::MembersPtr DecodeTargets::MembersOf(const std::string& model) const {
  static const auto* const none = new MembersPtr(std::make_shared<const Members>());
  const auto pool = pools_.find(model);
  if (pool == pools_.end()) return *none;
  absl::MutexLock lock(&mutex_);
  return pool->second.members;
}

std::vector<std::shared_ptr<DecodeTarget>> DecodeTargets::Of(const std::string& model) const {
  return MembersOf(model)->targets;
}

std::vector<std::shared_ptr<DecodeTarget>> DecodeTargets::all() const {
  std::vector<std::shared_ptr<DecodeTarget>> all;
  for (const auto& [model, pool] : pools_) {
    const MembersPtr members = MembersOf(model);
    all.insert(all.end(), members->targets.begin(), members->targets.end());
  }
  return all;
}

std::optional<int> DecodeTargets::Places(const std::string& model) const {
  const MembersPtr members = MembersOf(model);
  std::optional<int> places;
  for (const auto& target : members->targets) {
    if (target->usable()) places = places.value_or(0) + static_cast<int>(target->max_choices());
  }
  return places;
}

DecodeTargets::State DecodeTargets::StateOf(const std::string& model) const {
  const MembersPtr members = MembersOf(model);
  State state;
  for (const auto& target : members->targets) {
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
  const MembersPtr members = MembersOf(model);
  std::set<std::string> numerics;
  for (const auto& target : members->targets) {
    if (target->usable()) numerics.insert(target->numerics());
  }
  return absl::StrJoin(numerics, "\n");
}

std::vector<std::string> DecodeTargets::Formats(const std::string& model) const {
  const MembersPtr members = MembersOf(model);
  std::vector<std::string> formats;
  bool first = true;
  for (const auto& target : members->targets) {
    if (!target->usable()) continue;
    const std::vector<std::string> own = target->formats();
    if (std::exchange(first, false)) formats = own;
    std::erase_if(formats, [&](const std::string& name) { return !absl::c_linear_search(own, name); });
  }
  return formats;
}

std::vector<std::string> DecodeTargets::Adapters(const std::string& model) const {
  const MembersPtr members = MembersOf(model);
  std::set<std::string> adapters;
  for (const auto& target : members->targets) {
    if (!target->usable()) continue;
    for (std::string& name : target->adapters()) adapters.insert(std::move(name));
  }
  return {adapters.begin(), adapters.end()};
}

std::optional<std::string> DecodeTargets::BaseOf(const std::string& adapter) const {
  for (const auto& [model, pool] : pools_) {
    const MembersPtr members = MembersOf(model);
    for (const auto& target : members->targets) {
      if (target->usable() && target->ServesAdapter(adapter)) return model;
    }
  }
  return std::nullopt;
}

int DecodeTargets::Outstanding(const std::string& model) const {
  const MembersPtr members = MembersOf(model);
  int sum = 0;
  for (const auto& target : members->targets) sum += target->outstanding.load(std::memory_order_relaxed);
  return sum;
}

DecodeTargets::Picked DecodeTargets::Pick(const Wanted& wanted) const {
  const auto pool = pools_.find(wanted.model);
  if (pool == pools_.end()) return {};
  const MembersPtr members = MembersOf(wanted.model);
  const std::optional<ModelFleet::Picked> picked = pool->second.fleet->Pick(
      wanted.keys,
      [&](size_t slot) {
        DecodeTarget* const target = members->At(slot);
        const bool out = target == nullptr || absl::c_linear_search(wanted.tried, target) ||
                         (!wanted.numerics.empty() && target->numerics() != wanted.numerics) ||
                         (!wanted.adapter.empty() && !target->ServesAdapter(wanted.adapter));
        return out ? ModelFleet::Standing::kOut : members->StandingOf(slot);
      },
      wanted.again, wanted.places);
  if (!picked) return {};
  const auto target = absl::c_find_if(
      members->targets, [&](const auto& one) { return one.get() == members->At(picked->slot); });
  return {*target, picked->wait_limit, picked->cached_tokens};
}

std::optional<DecodeTargets::Explanation> DecodeTargets::Explain(const std::string& model,
                                                                 const PrefixKeys& keys) const {
  const auto pool = pools_.find(model);
  if (pool == pools_.end()) return std::nullopt;
  const MembersPtr members = MembersOf(model);
  Explanation explanation{
      .choice = pool->second.fleet->Explain(keys, [&](size_t slot) { return members->StandingOf(slot); })};
  for (size_t slot = 0; slot < explanation.choice.views.size(); ++slot) {
    const DecodeTarget* const target = members->At(slot);
    explanation.names.push_back(target == nullptr ? "" : target->name());
  }
  return explanation;
}

double DecodeTargets::Imbalance(const std::string& model) const {
  const auto pool = pools_.find(model);
  if (pool == pools_.end()) return 1;
  const MembersPtr members = MembersOf(model);
  return pool->second.fleet->Imbalance([&](size_t slot) { return members->StandingOf(slot); });
}

bool DecodeTargets::HasOther(const std::string& model, const std::vector<DecodeTarget*>& gone,
                             const std::string& numerics) const {
  return absl::c_any_of(MembersOf(model)->targets, [&](const std::shared_ptr<DecodeTarget>& target) {
    const std::string found = target->numerics();
    return !absl::c_linear_search(gone, target.get()) &&
           (numerics.empty() || found.empty() || found == numerics);
  });
}

}  // namespace aludel
