#include "server/gateway/openai/content/call_entry.h"

#include <utility>

#include "runtime/text/constrain/ordered_json.h"

namespace aludel {

using nlohmann::ordered_json;

ordered_json CallArguments(absl::string_view text) {
  auto read = ParseOrdered(text.empty() ? "{}" : text);
  return read.ok() && read->is_object() ? *std::move(read) : ordered_json(std::string(text));
}

ordered_json CallEntry(std::string id, std::string name, ordered_json arguments) {
  return {{"id", std::move(id)},
          {"type", "function"},
          {"function", {{"name", std::move(name)}, {"arguments", std::move(arguments)}}}};
}

}  // namespace aludel
