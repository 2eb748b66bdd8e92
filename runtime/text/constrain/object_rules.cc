#include "runtime/text/constrain/object_rules.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "nlohmann/json.hpp"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using NodeId = GrammarBuilder::NodeId;
using Rule = GrammarBuilder::Rule;

constexpr int64_t kStepsPerMemberState = 4;

// Where the members so far have led: how many there are, as far as that counts, and which clauses hold.
struct Standing {
  int64_t count = 0;
  uint64_t held = 0;
  auto operator<=>(const Standing&) const = default;
};

class ObjectBuilder {
 public:
  ObjectBuilder(const ObjectPlan& plan, GrammarBuilder* builder, const JsonRules& json, StepBudget* budget,
                NodeId next)
      : plan_(plan), builder_(*builder), json_(json), budget_(budget), close_(builder->Literal("}", next)) {}

  absl::StatusOr<NodeId> Build() {
    ReadClauses();
    // All standings before each member, then their nodes from the last to the first.
    std::vector<std::map<Standing, NodeId>> layers(plan_.members.size() + 1);
    layers[0][Standing{}] = -1;
    for (size_t i = 0; i < plan_.members.size(); ++i) {
      for (const auto& [standing, node] : layers[i]) {
        ALUDEL_RETURN_IF_ERROR(budget_->Spend(kStepsPerMemberState));
        for (const bool present : {true, false}) {
          if (const auto after = After(standing, i, present)) layers[i + 1][*after] = -1;
        }
      }
    }
    ALUDEL_RETURN_IF_ERROR(MakeOther());
    for (auto& [standing, node] : layers.back()) {
      ALUDEL_ASSIGN_OR_RETURN(node, Others(standing.count, standing.count));
    }
    for (size_t i = plan_.members.size(); i > 0; --i) {
      ALUDEL_RETURN_IF_ERROR(MakeLayer(i - 1, layers[i], &layers[i - 1]));
    }
    const NodeId first = layers[0][Standing{}];
    return first < 0 ? -1 : builder_.Literal("{", json_.Space(first));
  }

 private:
  void ReadClauses() {
    when_present_.resize(plan_.members.size(), 0);
    when_absent_.resize(plan_.members.size(), 0);
    over_.resize(plan_.members.size(), 0);
    for (size_t clause = 0; clause < plan_.clauses.size(); ++clause) {
      size_t last = 0;
      for (const ObjectPlan::Literal& literal : plan_.clauses[clause]) {
        (literal.present ? when_present_ : when_absent_)[literal.member] |= uint64_t{1} << clause;
        last = std::max(last, literal.member);
      }
      over_[last] |= uint64_t{1} << clause;
    }
    // Up to where members are told apart by their number.
    counted_ = std::max<int64_t>({1, plan_.min, plan_.max});
  }

  std::optional<Standing> After(const Standing& before, size_t index, bool present) const {
    const ObjectPlan::Member& member = plan_.members[index];
    if (present ? !member.allowed : member.needed) return std::nullopt;
    if (present && plan_.max >= 0 && before.count == plan_.max) return std::nullopt;
    Standing after = before;
    if (present) after.count = std::min(before.count + 1, counted_);
    after.held |= (present ? when_present_ : when_absent_)[index];
    if ((over_[index] & ~after.held) != 0) return std::nullopt;
    return after;
  }

  absl::Status MakeLayer(size_t index, const std::map<Standing, NodeId>& behind,
                         std::map<Standing, NodeId>* layer) {
    const ObjectPlan::Member& member = plan_.members[index];
    const std::string key =
        nlohmann::json(member.name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    absl::flat_hash_map<NodeId, NodeId> written;  // by what follows
    for (auto& [standing, node] : *layer) {
      ALUDEL_RETURN_IF_ERROR(budget_->Spend(kStepsPerMemberState + static_cast<int64_t>(key.size() / 4)));
      std::vector<NodeId> ways;
      if (const auto after = After(standing, index, true)) {
        if (const NodeId follows = behind.at(*after); follows >= 0) {
          const auto [first, added] = written.try_emplace(follows, -1);
          if (added) {
            first->second = builder_.Literal(key + ":", json_.Space(builder_.Call(member.value, follows)));
          }
          ways.push_back(standing.count == 0 ? first->second
                                             : builder_.Literal(",", json_.Space(first->second)));
        }
      }
      if (const auto after = After(standing, index, false)) {
        if (const NodeId follows = behind.at(*after); follows >= 0) ways.push_back(follows);
      }
      if (!ways.empty()) node = builder_.OneOf(ways);
    }
    return absl::OkStatus();
  }

  absl::Status MakeOther() {
    if (plan_.others.empty()) return absl::OkStatus();
    std::vector<NodeId> ways;
    for (const Rule rule : plan_.others) {
      ALUDEL_RETURN_IF_ERROR(budget_->Spend(1));
      ways.push_back(builder_.Call(rule, builder_.ReturnNode()));
    }
    other_ = plan_.others.size() == 1 ? plan_.others.front() : builder_.MakeRule(builder_.OneOf(ways));
    more_ =
        builder_.MakeRule(builder_.Literal(",", json_.Space(builder_.Call(other_, builder_.ReturnNode()))));
    return absl::OkStatus();
  }

  // Behind `count` members, of which `listed` have names of their own.
  absl::StatusOr<NodeId> Others(int64_t count, int64_t listed) {
    std::vector<NodeId> ways;
    const bool room = plan_.max < 0 || count < plan_.max;
    if (!plan_.others.empty() && room && listed + 1 >= plan_.min) {
      ALUDEL_ASSIGN_OR_RETURN(const NodeId more, BehindOthers(count + 1));
      ways.push_back(builder_.Call(count == 0 ? other_ : more_, more));
    }
    if (listed >= plan_.min) ways.push_back(count == 0 ? close_ : json_.Space(close_));
    return ways.empty() ? -1 : builder_.OneOf(ways);
  }

  // Behind `count` members, the last of which is another one.
  absl::StatusOr<NodeId> BehindOthers(int64_t count) {
    const NodeId after = json_.Space(close_);
    if (plan_.max < 0) {
      if (loop_ < 0) loop_ = builder_.Repeat(more_, 0, -1, after);
      return loop_;
    }
    // From the last that there may be, as far as that is known.
    while (static_cast<int64_t>(behind_.size()) <= plan_.max - count) {
      ALUDEL_RETURN_IF_ERROR(budget_->Spend(kStepsPerMemberState));
      behind_.push_back(behind_.empty() ? after
                                        : builder_.OneOf({builder_.Call(more_, behind_.back()), after}));
    }
    return behind_[plan_.max - count];
  }

  const ObjectPlan& plan_;
  GrammarBuilder& builder_;
  const JsonRules& json_;
  StepBudget* const budget_;
  const NodeId close_;
  std::vector<uint64_t> when_present_, when_absent_;  // by member: clauses that hold then
  std::vector<uint64_t> over_;                        // by member: clauses that must hold behind it
  int64_t counted_ = 1;
  Rule other_ = -1, more_ = -1;  // another member; with the comma before it
  NodeId loop_ = -1;
  std::vector<NodeId> behind_;  // by how many more there may be
};

}  // namespace

absl::StatusOr<NodeId> MakeObject(const ObjectPlan& plan, GrammarBuilder* builder, const JsonRules& json,
                                  StepBudget* budget, NodeId next) {
  return ObjectBuilder(plan, builder, json, budget, next).Build();
}

}  // namespace aludel
