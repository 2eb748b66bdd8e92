#include "server/gateway/routing/decode_targets.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "transport/monotonic_clock.h"

namespace aludel {

ModelFleet::Standing DecodeTargets::Members::StandingOf(size_t slot) const {
  const DecodeTarget* const target = At(slot);
  if (target == nullptr || !target->usable()) return ModelFleet::Standing::kOut;
  return target->ready() && !IsSpare(target) ? ModelFleet::Standing::kReady : ModelFleet::Standing::kSpare;
}

ModelFleet::Standing DecodeTargets::Members::StandingFor(const Wanted& wanted, size_t slot) const {
  const ModelFleet::Standing standing = StandingOf(slot);
  if (standing == ModelFleet::Standing::kOut) return standing;
  DecodeTarget* const target = At(slot);
  const bool out = absl::c_linear_search(wanted.tried, target) ||
                   (!wanted.numerics.empty() && target->numerics(wanted.adapter) != wanted.numerics) ||
                   (!wanted.adapter.empty() && !target->ServesAdapter(wanted.adapter));
  return out ? ModelFleet::Standing::kOut : standing;
}

void DecodeTargets::Members::Add(const std::shared_ptr<DecodeTarget>& target) {
  targets.push_back(target);
  if (by_slot.size() <= target->slot()) by_slot.resize(target->slot() + 1);
  by_slot[target->slot()] = target.get();
}

bool DecodeTargets::Members::IsSpare(const DecodeTarget* target) const {
  return absl::c_any_of(spares, [target](const Spare& spare) { return spare.target.get() == target; });
}

bool DecodeTargets::Members::NamedIsUsable() const {
  return absl::c_any_of(targets,
                        [this](const auto& target) { return target->usable() && !IsSpare(target.get()); });
}

DecodeTargets::DecodeTargets(const std::vector<Model>& models,
                             const std::shared_ptr<grpc::ChannelCredentials>& credentials, Metrics* metrics,
                             const Fleet::Options& routing)
    : credentials_(credentials), metrics_(metrics) {
  for (const Model& model : models) {
    const std::string& served = model.expectation.model;
    pools_[served] = {.expectation = model.expectation,
                      .list = model.list,
                      .max_ttft = model.max_ttft,
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
    after->Add(
        kept != before->targets.end()
            ? *kept
            : std::make_shared<DecodeTarget>(name, pool.expectation, credentials_, metrics_, pool.fleet));
  }
  if (!targets.empty() && !after->NamedIsUsable()) {
    // What is named is not known yet: without the others there would be none meanwhile.
    const absl::Time until = MonotonicNow() + kSpareTime;
    for (const auto& target : before->targets) {
      if (!target->usable() || absl::c_linear_search(after->targets, target)) continue;
      const auto spare =
          absl::c_find_if(before->spares, [&target](const Spare& one) { return one.target == target; });
      after->Add(target);
      after->spares.push_back({target, spare == before->spares.end() ? until : spare->until});
    }
  }
  if (!after->spares.empty()) has_spares_ = true;
  Replace(&pool, before, after);
}

bool DecodeTargets::Settle() {
  if (!has_spares_) return false;
  has_spares_ = false;
  bool any_went = false;
  for (auto& [model, pool] : pools_) {
    const MembersPtr before = MembersOf(model);
    if (before->spares.empty()) continue;
    const bool usable = before->NamedIsUsable();
    auto after = std::make_shared<Members>();
    for (const auto& target : before->targets) {
      const auto spare =
          absl::c_find_if(before->spares, [&target](const Spare& one) { return one.target == target; });
      if (spare != before->spares.end()) {
        if (usable || !target->usable() || spare->until <= MonotonicNow()) continue;
        after->spares.push_back(*spare);
      }
      after->Add(target);
    }
    if (!after->spares.empty()) has_spares_ = true;
    if (after->targets.size() == before->targets.size()) continue;
    any_went = true;
    Replace(&pool, before, after);
  }
  return any_went;
}

void DecodeTargets::Replace(Pool* pool, const MembersPtr& before, const MembersPtr& after) {
  {
    absl::MutexLock lock(&mutex_);
    pool->members = after;
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
  if (const auto pool = pools_.find(model); pool != pools_.end() && members->targets.empty()) {
    const std::string& list = pool->second.list;
    state.reason = absl::StrCat("no server is named", list.empty() ? "" : " by ", list);
  }
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

std::string DecodeTargets::PrefillSourceOf(const std::string& model) const {
  const MembersPtr members = MembersOf(model);
  for (const auto& target : members->targets) {
    if (!target->usable()) continue;
    if (std::string source = target->prefill_source(); !source.empty()) return source;
  }
  return "";
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

bool DecodeTargets::BeginsAsBase(const std::string& model, const std::string& adapter) const {
  const MembersPtr members = MembersOf(model);
  return absl::c_any_of(members->targets, [&](const std::shared_ptr<DecodeTarget>& target) {
    return target->usable() && target->BeginsAsBase(adapter);
  });
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
  ModelFleet& fleet = *pool->second.fleet;
  std::optional<double> max_ttft;
  if (wanted.time_left) max_ttft = absl::ToDoubleSeconds(pool->second.max_ttft);
  // Before the fleet is asked, which others wait for meanwhile.
  std::vector<ModelFleet::Standing> standings(members->by_slot.size());
  for (size_t slot = 0; slot < standings.size(); ++slot) standings[slot] = members->StandingFor(wanted, slot);
  const auto pick = [&](absl::Span<DecodeTarget* const> among) {
    return fleet.Pick(
        wanted.keys,
        [&](size_t slot) {
          const bool out = slot >= standings.size() ||
                           (!among.empty() && !absl::c_linear_search(among, members->At(slot)));
          return out ? ModelFleet::Standing::kOut : standings[slot];
        },
        wanted.again, wanted.places, max_ttft,
        absl::ToDoubleSeconds(wanted.time_left.value_or(absl::InfiniteDuration())));
  };
  std::optional<ModelFleet::Picked> picked = pick(wanted.among);
  if (!wanted.among.empty() && (!picked || picked->late)) picked = pick({});
  if (!picked) return {};
  if (picked->late) {
    fleet.CountRefused();
    return {.target = nullptr, .late = absl::Seconds(*picked->late)};
  }
  const auto target = absl::c_find_if(
      members->targets, [&](const auto& one) { return one.get() == members->At(picked->slot); });
  return {.target = *target, .wait_limit = picked->wait_limit, .cached_tokens = picked->cached_tokens};
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

double DecodeTargets::Desired(const std::string& model, int waiting) const {
  const auto pool = pools_.find(model);
  if (pool == pools_.end()) return 1;
  const MembersPtr members = MembersOf(model);
  return pool->second.fleet->Desired([&](size_t slot) { return members->StandingOf(slot); }, waiting);
}

bool DecodeTargets::HasOther(const std::string& model, const std::vector<DecodeTarget*>& gone,
                             const std::string& numerics, const std::string& adapter) const {
  return absl::c_any_of(MembersOf(model)->targets, [&](const std::shared_ptr<DecodeTarget>& target) {
    if (absl::c_linear_search(gone, target.get())) return false;
    // What a server that is down has, it may have no more when it comes back, and another one may.
    if (!adapter.empty() && target->usable() && !target->ServesAdapter(adapter)) return false;
    return numerics.empty() || target->numerics().empty() || target->numerics(adapter) == numerics;
  });
}

}  // namespace aludel
