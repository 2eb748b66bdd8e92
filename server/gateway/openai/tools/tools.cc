#include "server/gateway/openai/tools/tools.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

ordered_json ToolsSchema() {
  const ordered_json function = {{"type", "object"},
                                 {"properties",
                                  {{"name", FunctionNameSchema()},
                                   {"description", {{"type", "string"}}},
                                   {"parameters", {{"type", "object"}}}}},
                                 {"required", ordered_json::array({"name"})}};
  const ordered_json tool = {{"type", "object"},
                             {"properties", {{"type", {{"const", "function"}}}, {"function", function}}},
                             {"required", ordered_json::array({"type", "function"})}};
  return {{"type", "array"}, {"items", tool}, {"maxItems", kMaxTools}};
}

void CheckTool(JsonFields& fields, const ordered_json& tool, size_t index, Tools* tools) {
  const std::string where = absl::StrCat("tools[", index, "]");
  if (!tool.is_object() || tool.value("type", ordered_json()) != "function") {
    return fields.Fail(where, "must be an object of type 'function'");
  }
  const auto function = tool.find("function");
  if (function == tool.end() || !function->is_object()) {
    return fields.Fail(where + ".function", "must be an object");
  }
  const ordered_json given = function->value("name", ordered_json());
  if (!given.is_string() || !IsFunctionName(given.get_ref<const std::string&>())) {
    return fields.Fail(where + ".function.name", kFunctionNameForm);
  }
  const auto parameters = function->find("parameters");
  if (parameters != function->end() && !parameters->is_object() && !parameters->is_null()) {
    return fields.Fail(where + ".function.parameters", "must be an object, a JSON schema");
  }
  const std::string name = (*function)["name"];
  if (absl::c_linear_search(tools->names, name)) {
    return fields.Fail(where + ".function.name", absl::StrCat("names '", name, "' for the second time"));
  }
  tools->names.push_back(name);
}

// The name of {"type": "function", "function": {"name"}} where it is one of `names`.
std::optional<std::string> NamedFunction(const ordered_json& json, const std::vector<std::string>& names) {
  if (!json.is_object() || json.value("type", ordered_json()) != "function") return std::nullopt;
  const auto function = json.find("function");
  if (function == json.end() || !function->is_object()) return std::nullopt;
  const ordered_json name = function->value("name", ordered_json());
  if (!name.is_string() || !absl::c_linear_search(names, name.get<std::string>())) return std::nullopt;
  return name.get<std::string>();
}

// {"mode": "auto" | "required", "tools": [...]}: all tools are shown to the model, and only these may be called.
void ParseAllowed(JsonFields& fields, const ordered_json& allowed, Tools* tools) {
  const ordered_json mode = allowed.value("mode", ordered_json());
  const ordered_json list = allowed.value("tools", ordered_json());
  if (mode != "auto" && mode != "required") {
    return fields.Fail("tool_choice", "of type 'allowed_tools' needs a 'mode', 'auto' or 'required'");
  }
  if (!list.is_array() || list.empty() || list.size() > kMaxTools) {
    return fields.Fail("tool_choice",
                       absl::StrCat("of type 'allowed_tools' needs 'tools', a list of 1 to ", kMaxTools));
  }
  std::vector<std::string> names;
  for (const ordered_json& tool : list) {
    const std::optional<std::string> name = NamedFunction(tool, tools->names);
    if (!name) return fields.Fail("tool_choice", "allows something else than a function that is in 'tools'");
    if (!absl::c_linear_search(names, *name)) names.push_back(*name);
  }
  tools->choice = mode == "auto" ? Tools::Choice::kAuto : Tools::Choice::kRequired;
  tools->names = std::move(names);
}

// "none", "auto", "required", {"type": "function", "function": {"name"}}, or
// {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}.
void ParseChoice(JsonFields& fields, const ordered_json& choice, Tools* tools) {
  if (choice == "auto") {
    tools->choice = Tools::Choice::kAuto;
  } else if (choice == "none") {
    tools->choice = Tools::Choice::kNone;
  } else if (choice == "required") {
    tools->choice = Tools::Choice::kRequired;
  } else if (choice.is_object() && choice.value("type", ordered_json()) == "allowed_tools" &&
             choice.contains("allowed_tools") && choice["allowed_tools"].is_object()) {
    ParseAllowed(fields, choice["allowed_tools"], tools);
  } else if (choice.is_object() && choice.value("type", ordered_json()) == "function" &&
             choice.contains("function") && choice["function"].is_object()) {
    const std::optional<std::string> name = NamedFunction(choice, tools->names);
    if (!name) return fields.Fail("tool_choice", "names a function that is not in 'tools'");
    tools->choice = Tools::Choice::kRequired;
    tools->names = {*name};
  } else {
    fields.Fail(
        "tool_choice",
        "must be 'none', 'auto', 'required', or an object that names a function or those that are allowed");
  }
}

// A function's parameters are a schema of their own: what they refer to moves along with them.
void MoveReferences(const std::string& to, ordered_json* schema) {
  if (!schema->is_structured()) return;
  for (auto it = schema->begin(); it != schema->end(); ++it) {
    if (schema->is_object() && it.key() == "$ref" && it->is_string()) {
      const std::string reference = it->get<std::string>();
      if (absl::StartsWith(reference, "#")) *it = absl::StrCat("#", to, reference.substr(1));
    } else {
      MoveReferences(to, &*it);
    }
  }
}

}  // namespace

bool IsFunctionName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxFunctionNameBytes && absl::c_all_of(name, [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.';
  });
}

ordered_json FunctionNameSchema() {
  return {{"type", "string"}, {"pattern", "^[A-Za-z0-9_.-]+$"}, {"maxLength", kMaxFunctionNameBytes}};
}

void ParseTools(JsonFields& fields, Tools* tools) {
  tools->parallel = fields.Bool("parallel_tool_calls").value_or(true);
  fields.Describe("tools", ToolsSchema);
  fields.Describe("tool_choice", [] {
    const ordered_json words = {{"enum", ordered_json::array({"none", "auto", "required"})}};
    return ordered_json{{"anyOf", ordered_json::array({words, ordered_json{{"type", "object"}}})}};
  });
  const ordered_json* list = fields.Find("tools");
  const ordered_json* choice = fields.Find("tool_choice");
  if (list != nullptr && (!list->is_array() || list->size() > kMaxTools)) {
    return fields.Fail("tools", absl::StrCat("must be a list of at most ", kMaxTools, " tools"));
  }
  if (list == nullptr || list->empty()) {
    if (choice != nullptr && *choice != "none" && *choice != "auto") {
      fields.Fail("tool_choice", "is only allowed when 'tools' are given");
    }
    return;
  }
  for (size_t i = 0; i < list->size(); ++i) CheckTool(fields, (*list)[i], i, tools);
  if (fields.error()) return;
  tools->choice = Tools::Choice::kAuto;
  if (choice != nullptr) ParseChoice(fields, *choice, tools);
  if (tools->choice != Tools::Choice::kNone) tools->list = *list;
}

std::optional<ApiError> ConstrainToCall(const Tools& tools, ToolDialect dialect,
                                        std::optional<v1::TextConstraint>* constraint) {
  if (tools.choice == Tools::Choice::kNone) return std::nullopt;
  if (dialect == ToolDialect::kNone) {
    return UnsupportedParameter("tools",
                                "'tools' is not supported for this model: its chat template has none of the "
                                "known forms of a tool call (Hermes and Qwen, Llama 3.1, Mistral)");
  }
  const bool required = tools.choice == Tools::Choice::kRequired;
  if (!required && !*constraint) return std::nullopt;
  const char* arguments = dialect == ToolDialect::kLlama ? "parameters" : "arguments";
  ordered_json calls = ordered_json::array();
  std::vector<std::string> places;
  for (size_t i = 0; i < tools.list.size(); ++i) {
    const ordered_json& function = tools.list[i].at("function");
    const std::string name = function.at("name");
    if (!absl::c_linear_search(tools.names, name)) continue;
    ordered_json parameters = function.value("parameters", ordered_json());
    if (parameters.is_null() || parameters.empty()) parameters = {{"type", "object"}};
    const std::string place = absl::StrCat("/anyOf/", calls.size(), "/properties/", arguments);
    MoveReferences(place, &parameters);
    ordered_json properties = {{"name", {{"const", name}}}};
    properties[arguments] = std::move(parameters);
    calls.push_back({{"type", "object"},
                     {"properties", std::move(properties)},
                     {"required", ordered_json::array({"name", arguments})},
                     {"additionalProperties", false}});
  }
  const std::string schema = Dump({{"anyOf", std::move(calls)}});
  const bool hermes = dialect == ToolDialect::kHermes, mistral = dialect == ToolDialect::kMistral;
  const char* const prefix = hermes ? "<tool_call>\n" : mistral ? "[" : "";
  const char* const suffix = hermes ? "\n</tool_call>" : mistral ? "]" : "";
  if (required) {
    v1::TextConstraint& wire = constraint->emplace();
    wire.set_json_schema(schema);
    wire.set_prefix(prefix);
    wire.set_suffix(suffix);
  } else {
    v1::TextConstraint& wire = **constraint;
    wire.set_call_schema(schema);
    wire.set_call_prefix(prefix);
    wire.set_call_suffix(suffix);
  }
  return std::nullopt;
}

ApiError ToolsRefused(const absl::Status& status) {
  return FromStatus(
      "tools",
      absl::Status(status.code(), absl::StrCat("The parameters of a function that must be called cannot "
                                               "be enforced: ",
                                               std::string(status.message()))));
}

}  // namespace aludel
