#include "server/gateway/openai/fields/structured_outputs.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "nlohmann/json.hpp"

namespace aludel {
namespace {

using nlohmann::ordered_json;

enum class Kind { kJson, kRegex, kChoice, kGrammar };
struct Field {
  const char* name;
  Kind kind;
};
constexpr Field kFields[] = {{"guided_json", Kind::kJson},     {"guided_regex", Kind::kRegex},
                             {"guided_choice", Kind::kChoice}, {"guided_grammar", Kind::kGrammar},
                             {"json_schema", Kind::kJson},     {"regex", Kind::kRegex},
                             {"ebnf", Kind::kGrammar},         {"grammar", Kind::kGrammar}};
constexpr Field kMembers[] = {
    {"json", Kind::kJson}, {"regex", Kind::kRegex}, {"choice", Kind::kChoice}, {"grammar", Kind::kGrammar}};
// Members of structured_outputs that would change the answer, or how it is written.
constexpr const char* kUnservedMembers[] = {"structural_tag", "whitespace_pattern", "disable_any_whitespace",
                                            "disable_additional_properties"};
// Members that change nothing here.
constexpr const char* kIgnored[] = {"json_object", "disable_fallback", "backend"};

// One of these texts, as GBNF.
std::string ChoiceGrammar(const ordered_json& choices) {
  std::string grammar = "root ::=";
  for (const ordered_json& choice : choices) {
    absl::StrAppend(&grammar, &choice == &choices.front() ? " \"" : " | \"",
                    absl::StrReplaceAll(choice.get_ref<const std::string&>(),
                                        {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}),
                    "\"");
  }
  return grammar;
}

ordered_json SchemaOf(Kind kind) {
  const ordered_json text = {{"type", "string"}};
  if (kind == Kind::kJson) return {{"anyOf", ordered_json::array({text, ordered_json{{"type", "object"}}})}};
  if (kind == Kind::kChoice) return {{"type", "array"}, {"items", text}};
  return text;
}

class Reader {
 public:
  Reader(std::optional<v1::TextConstraint>* constraint, std::string* param)
      : constraint_(*constraint), param_(*param) {}

  // `name` is the whole path, for messages.
  void Read(JsonFields& fields, const Field& field, const std::string& name) {
    fields.Describe(field.name, [&] { return SchemaOf(field.kind); });
    const ordered_json* value = fields.Find(field.name);
    // Empty ones ask for nothing, but the schema {} for any JSON value.
    if (value == nullptr || *value == "" || (value->is_array() && value->empty())) return;
    if (value->is_object() && value->empty() && field.kind != Kind::kJson) return;
    if (!Begin(fields, field.name, name)) return;
    v1::TextConstraint& wire = *constraint_;
    switch (field.kind) {
      case Kind::kJson:
        if (value->is_string()) return wire.set_json_schema(value->get<std::string>());
        if (value->is_object()) return wire.set_json_schema(Dump(*value));
        return fields.Fail(field.name, "must be a JSON schema, as an object or as its text");
      case Kind::kRegex:
        if (value->is_string()) return wire.set_regex(value->get<std::string>());
        return fields.Fail(field.name, "must be a string, a regular expression");
      case Kind::kGrammar:
        if (value->is_string()) return wire.set_grammar(value->get<std::string>());
        return fields.Fail(field.name, "must be a string, a grammar in GBNF");
      case Kind::kChoice:
        break;
    }
    bool strings = value->is_array();
    for (const ordered_json& choice : *value) strings = strings && choice.is_string();
    if (!strings) return fields.Fail(field.name, "must be a list of strings");
    wire.set_grammar(ChoiceGrammar(*value));
  }

  // False where there is a constraint already.
  bool Begin(JsonFields& fields, const char* field, const std::string& name) {
    if (constraint_) {
      fields.Fail(field,
                  absl::StrCat("cannot be combined with '", param_, "': an answer has one constraint"));
      return false;
    }
    constraint_.emplace();
    param_ = name;
    return true;
  }

 private:
  std::optional<v1::TextConstraint>& constraint_;
  std::string& param_;
};

// A misspelt one would leave the answer free.
void CheckMembers(const ordered_json& object, JsonFields& members) {
  const auto is_known = [](const std::string& name) {
    const auto same = [&](const char* one) { return name == one; };
    return std::any_of(std::begin(kMembers), std::end(kMembers),
                       [&](const Field& one) { return same(one.name); }) ||
           std::any_of(std::begin(kUnservedMembers), std::end(kUnservedMembers), same) ||
           std::any_of(std::begin(kIgnored), std::end(kIgnored), same);
  };
  for (const auto& item : object.items()) {
    if (!is_known(item.key())) {
      members.Fail(item.key(),
                   "is not known; expected 'choice', 'regex', 'json', 'json_object' or 'grammar'");
    }
  }
}

}  // namespace

void ParseStructuredOutputs(JsonFields& fields, std::optional<v1::TextConstraint>* constraint,
                            std::string* param) {
  Reader reader(constraint, param);
  for (const Field& field : kFields) reader.Read(fields, field, field.name);
  fields.Refuse("guided_whitespace_pattern", nullptr,
                ": how much white space JSON has is not the request's to say");
  fields.Nested("structured_outputs", [&](JsonFields& members, FieldSchema*) {
    const ordered_json* object = fields.Find("structured_outputs");
    if (object != nullptr) CheckMembers(*object, members);
    for (const Field& field : kMembers)
      reader.Read(members, field, absl::StrCat("structured_outputs.", field.name));
    if (members.Bool("json_object").value_or(false) &&
        reader.Begin(members, "json_object", "structured_outputs.json_object")) {
      (*constraint)->set_json_schema(R"({"type":"object"})");
    }
    for (const char* name : kUnservedMembers) members.Refuse(name, false, "");
  });
}

}  // namespace aludel
