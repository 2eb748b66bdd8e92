#include "runtime/text/chat_template/chat_template.h"

#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/files/json_reader.h"
#include "runtime/status_macros.h"
#include "runtime/text/chat_template/jinja_eval.h"
#include "runtime/text/chat_template/jinja_parser.h"
#include "runtime/text/tokenizer/tokenizer_config.h"

namespace aludel {
namespace {

using nlohmann::json;

constexpr size_t kMaxTemplateBytes = 4u << 20;

using SpecialTokens = std::map<std::string, std::string>;  // "bos_token" -> its text

struct Source {
  std::string text;
  std::string path;  // for errors; may be empty
};

struct Sources {
  std::optional<Source> usual;     // "default"
  std::optional<Source> tool_use;  // in its place for contexts with tools
};

struct ParsedTemplate {
  std::string source;
  JinjaBody body;
};

absl::StatusOr<std::optional<ParsedTemplate>> ParseTemplate(std::optional<Source> source) {
  if (!source) return std::nullopt;
  const std::string where = source->path.empty() ? "" : absl::StrCat(source->path, ": ");
  if (source->text.size() > kMaxTemplateBytes) {
    return absl::InvalidArgumentError(absl::StrCat(where, "chat template is ", source->text.size(),
                                                   " bytes, want at most ", kMaxTemplateBytes));
  }
  auto body = ParseJinja(source->text);
  if (!body.ok()) return absl::InvalidArgumentError(absl::StrCat(where, body.status().message()));
  return ParsedTemplate{std::move(source->text), *std::move(body)};
}

class JinjaTemplate : public ChatTemplate {
 public:
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Make(Sources sources, SpecialTokens tokens) {
    std::unique_ptr<JinjaTemplate> result(new JinjaTemplate(std::move(tokens)));
    ALUDEL_ASSIGN_OR_RETURN(result->usual_, ParseTemplate(std::move(sources.usual)));
    ALUDEL_ASSIGN_OR_RETURN(result->tool_use_, ParseTemplate(std::move(sources.tool_use)));
    return std::unique_ptr<ChatTemplate>(std::move(result));
  }

  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& context) const override {
    if (!context.is_object())
      return absl::InvalidArgumentError("the context of a chat template is no object");
    const bool with_tools = context.contains("tools") && !context["tools"].is_null();
    const std::optional<ParsedTemplate>& chosen = with_tools && tool_use_ ? tool_use_ : usual_;
    if (!chosen) {
      return absl::InvalidArgumentError(
          "the model has a chat template for requests with tools (tool_use), but none named default");
    }
    // transformers passes these always, so that templates test them with "is none".
    JinjaValue::Dict names = {{"tools", JinjaValue::None()},
                              {"documents", JinjaValue::None()},
                              {"add_generation_prompt", JinjaValue::Bool(false)}};
    for (const auto& [name, text] : tokens_) names.emplace_back(name, JinjaValue::String(text));
    for (const auto& [name, member] : context.items()) {
      ALUDEL_ASSIGN_OR_RETURN(JinjaValue value, JinjaValue::FromJson(member));
      names.emplace_back(name, std::move(value));
    }
    // What the caller gives counts; MakeDict keeps the last of equal names.
    ALUDEL_ASSIGN_OR_RETURN(const JinjaValue all, JinjaValue::MakeDict(std::move(names)));
    return RenderJinja(chosen->body, all.AsDict());
  }

  const std::string& tool_source() const override { return (tool_use_ ? tool_use_ : usual_)->source; }

 private:
  explicit JinjaTemplate(SpecialTokens tokens) : tokens_(std::move(tokens)) {}

  const SpecialTokens tokens_;
  std::optional<ParsedTemplate> usual_, tool_use_;  // at least one
};

absl::StatusOr<SpecialTokens> ReadSpecialTokens(const json& config, const std::string& path) {
  SpecialTokens tokens;
  for (const char* name : kNamedTokens) {
    ALUDEL_ASSIGN_OR_RETURN(std::optional<std::string> token, NamedToken(config, name, path));
    if (token) tokens[name] = *std::move(token);
  }
  return tokens;
}

// chat_template of a tokenizer_config.json: one template, or a list of named ones.
absl::StatusOr<Sources> ListedTemplates(const json& config, const std::string& path) {
  Sources sources;
  const json* member = FindMember(config, "chat_template");
  if (member == nullptr) return sources;
  if (!member->is_array()) {
    ALUDEL_ASSIGN_OR_RETURN(std::string text, StringMember(config, "chat_template", "", path));
    sources.usual = Source{std::move(text), path};
    return sources;
  }
  for (const json& item : *member) {
    ALUDEL_ASSIGN_OR_RETURN(const std::string name, StringMember(item, "name", "", path));
    if (name != "default" && name != "tool_use") continue;
    ALUDEL_ASSIGN_OR_RETURN(std::string text, StringMember(item, "template", "", path));
    (name == "default" ? sources.usual : sources.tool_use) =
        Source{std::move(text), absl::StrCat(path, ": chat_template \"", name, "\"")};
  }
  return sources;
}

absl::StatusOr<std::optional<Source>> ReadTemplateFile(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path, kMaxTemplateBytes);
  if (absl::IsNotFound(text.status())) return std::nullopt;
  if (!text.ok()) return text.status();
  return Source{*std::move(text), path};
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(absl::string_view source,
                                                                  std::string bos_token,
                                                                  std::string eos_token) {
  SpecialTokens tokens;
  if (!bos_token.empty()) tokens["bos_token"] = std::move(bos_token);
  if (!eos_token.empty()) tokens["eos_token"] = std::move(eos_token);
  return JinjaTemplate::Make({.usual = Source{std::string(source), ""}, .tool_use = std::nullopt},
                             std::move(tokens));
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Load(const std::string& directory,
                                                                 const std::string& base) {
  const std::string config_path = absl::StrCat(directory, "/tokenizer_config.json");
  ALUDEL_ASSIGN_OR_RETURN(const json config, LoadTokenizerConfig(directory));
  ALUDEL_ASSIGN_OR_RETURN(SpecialTokens tokens, ReadSpecialTokens(config, config_path));
  if (!base.empty()) {
    ALUDEL_ASSIGN_OR_RETURN(const json base_config, LoadTokenizerConfig(base));
    ALUDEL_ASSIGN_OR_RETURN(SpecialTokens others,
                            ReadSpecialTokens(base_config, absl::StrCat(base, "/tokenizer_config.json")));
    tokens.merge(others);
  }
  // Files of their own are the newer form and take precedence, as in transformers.
  Sources sources;
  ALUDEL_ASSIGN_OR_RETURN(sources.usual, ReadTemplateFile(absl::StrCat(directory, "/chat_template.jinja")));
  ALUDEL_ASSIGN_OR_RETURN(sources.tool_use, ReadTemplateFile(absl::StrCat(
                                                directory, "/additional_chat_templates/tool_use.jinja")));
  if (!sources.usual && !sources.tool_use) {
    ALUDEL_ASSIGN_OR_RETURN(sources, ListedTemplates(config, config_path));
  }
  if (!sources.usual && !sources.tool_use) {
    return absl::NotFoundError(
        absl::StrCat(config_path, ": no chat_template, or none named default or tool_use"));
  }
  return JinjaTemplate::Make(std::move(sources), std::move(tokens));
}

}  // namespace aludel
