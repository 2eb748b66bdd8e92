#include "server/gateway/openai/fields/workflow_fields.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "server/rpc/workflow_fields.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

ordered_json NameSchema() {
  return {{"type", "string"}, {"minLength", 1}, {"maxLength", kMaxWorkflowNameBytes}};
}

bool IsName(const std::string& text) { return !text.empty() && text.size() <= kMaxWorkflowNameBytes; }

std::string ReadName(JsonFields& fields, const char* name) {
  fields.Describe(name, NameSchema);
  fields.Require(name);
  const std::optional<std::string> text = fields.String(name);
  if (!text && fields.Find(name) == nullptr) fields.Fail(name, "is required");
  if (text && !IsName(*text)) {
    fields.Fail(name, absl::StrCat("must have 1 to ", kMaxWorkflowNameBytes, " bytes, found ", text->size()));
  }
  return text.value_or("");
}

void ReadNext(JsonFields& fields, v1::Workflow* workflow) {
  fields.Describe("next", [] {
    return ordered_json{{"type", "array"}, {"items", NameSchema()}, {"maxItems", kMaxNextAgents}};
  });
  const ordered_json* const next = fields.Find("next");
  if (next == nullptr) return;
  const auto fail = [&] {
    fields.Fail("next", absl::StrCat("must be a list of at most ", kMaxNextAgents,
                                     " names of agents, of 1 to ", kMaxWorkflowNameBytes, " bytes each"));
  };
  if (!next->is_array() || next->size() > static_cast<size_t>(kMaxNextAgents)) return fail();
  for (const ordered_json& agent : *next) {
    if (!agent.is_string() || !IsName(agent.get<std::string>())) return fail();
    workflow->add_next(agent.get<std::string>());
  }
}

}  // namespace

std::optional<v1::Workflow> ReadWorkflow(JsonFields& fields) {
  std::optional<v1::Workflow> workflow;
  fields.Nested("workflow", [&](JsonFields& own, FieldSchema* schema) {
    schema->Close();
    workflow.emplace();
    workflow->set_id(ReadName(own, "id"));
    workflow->set_agent(ReadName(own, "agent"));
    ReadNext(own, &*workflow);
    const ordered_json* const object = fields.Find("workflow");
    if (object == nullptr) return;
    for (const auto& item : object->items()) {
      if (item.key() != "id" && item.key() != "agent" && item.key() != "next") {
        own.Fail(item.key(), "is not known; expected 'agent', 'id' or 'next'");
      }
    }
  });
  return workflow;
}

}  // namespace aludel
