#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/text/constrain/object_rules.h"
#include "runtime/text/constrain/regex/char_dfa.h"
#include "runtime/text/constrain/schema/schema_keywords.h"
#include "runtime/text/constrain/schema/schema_tools.h"

namespace aludel {

// Members of an object by their names, where properties do not list them: what patternProperties and
// additionalProperties say. Errors are InvalidArgument with the place, or the budget's. What it is given must outlive it;
// not thread-safe.
class OtherMembers {
 public:
  using Rule = GrammarBuilder::Rule;

  OtherMembers(const SchemaTools* tools, const SchemaPlace* where) : tools_(*tools), where_(*where) {}

  absl::Status Read(const nlohmann::ordered_json& schema, const ObjectKeywords& object);
  // Whether members of other names may be written at all; Close() ends it for those of no pattern.
  bool open() const { return open_; }
  void Close() { open_ = false; }
  // The value of a member, which properties give a schema of its own or not (null); -1 where it must not be there.
  absl::StatusOr<Rule> ValueOf(const std::string& name, const nlohmann::ordered_json* own,
                               const SchemaPlace& place);
  // The members of names that the plan does not list, and of `names` alone unless that is null. A name that matches two
  // patterns with different schemas is never written.
  absl::Status AddTo(ObjectPlan* plan, const CharDfa* names);

 private:
  struct Pattern {
    const nlohmann::ordered_json* schema = nullptr;
    std::shared_ptr<const CharDfa> names = nullptr;
    Rule value = -1;  // -1: allows no value
  };

  const SchemaTools& tools_;
  const SchemaPlace& where_;
  bool open_ = false;     // names of no pattern may be written
  bool may_name_ = true;  // keywords may name members that are not listed
  Rule other_ = -1;
  std::vector<Pattern> patterns_;
};

}  // namespace aludel
