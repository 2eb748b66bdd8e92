#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace aludel {

// The arguments of a call as templates print them: the object that `text` is, {} where it is empty. What a model got wrong
// stays the text that it is, so that it sees its fault beside the tool's complaint.
nlohmann::ordered_json CallArguments(absl::string_view text);

// An entry of a message's "tool_calls", as chat templates take it.
nlohmann::ordered_json CallEntry(std::string id, std::string name, nlohmann::ordered_json arguments);

}  // namespace aludel
