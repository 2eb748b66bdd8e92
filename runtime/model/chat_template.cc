#include "runtime/model/chat_template.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/model/jinja_eval.h"
#include "runtime/model/jinja_parser.h"
#include "runtime/model/json_reader.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using nlohmann::json;

constexpr size_t kMaxConfigBytes = 64u << 20;  // tokenizer_config.json lists added tokens, too
constexpr size_t kMaxTemplateBytes = 4u << 20;
constexpr int kConfigDepth = 32;

using SpecialTokens = std::map<std::string, std::string>;  // "bos_token" -> its text

class JinjaTemplate : public ChatTemplate {
 public:
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Make(absl::string_view source, SpecialTokens tokens) {
    if (source.size() > kMaxTemplateBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("chat template is ", source.size(), " bytes, want at most ", kMaxTemplateBytes));
    }
    ALUDEL_ASSIGN_OR_RETURN(JinjaBody body, ParseJinja(source));
    return std::unique_ptr<ChatTemplate>(
        new JinjaTemplate(std::string(source), std::move(body), std::move(tokens)));
  }

  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& context) const override {
    if (!context.is_object())
      return absl::InvalidArgumentError("the context of a chat template is no object");
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
    return RenderJinja(body_, all.AsDict());
  }

  const std::string& source() const override { return source_; }

 private:
  JinjaTemplate(std::string source, JinjaBody body, SpecialTokens tokens)
      : source_(std::move(source)), body_(std::move(body)), tokens_(std::move(tokens)) {}

  const std::string source_;
  const JinjaBody body_;
  const SpecialTokens tokens_;
};

// A special token is its text, or an object that holds it as `content`.
absl::StatusOr<SpecialTokens> ReadSpecialTokens(const json& config, const std::string& path) {
  SpecialTokens tokens;
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    const json* member = FindMember(config, name);
    if (member == nullptr) continue;
    const json& holder = member->is_object() ? *member : config;
    ALUDEL_ASSIGN_OR_RETURN(tokens[name],
                            StringMember(holder, member->is_object() ? "content" : name, "", path));
  }
  return tokens;
}

// chat_template is one template, or a list of named ones of which "default" is meant.
absl::StatusOr<std::string> ReadTemplate(const json& config, const std::string& path) {
  const json* member = FindMember(config, "chat_template");
  if (member == nullptr) return absl::NotFoundError(absl::StrCat(path, ": no chat_template"));
  if (!member->is_array()) return StringMember(config, "chat_template", "", path);
  for (const json& item : *member) {
    ALUDEL_ASSIGN_OR_RETURN(const std::string name, StringMember(item, "name", "", path));
    if (name == "default") return StringMember(item, "template", "", path);
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ": chat_template lists no template named default"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(absl::string_view source,
                                                                  std::string bos_token,
                                                                  std::string eos_token) {
  SpecialTokens tokens;
  if (!bos_token.empty()) tokens["bos_token"] = std::move(bos_token);
  if (!eos_token.empty()) tokens["eos_token"] = std::move(eos_token);
  return JinjaTemplate::Make(source, std::move(tokens));
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Load(const std::string& directory) {
  const std::string config_path = absl::StrCat(directory, "/tokenizer_config.json");
  const std::string jinja_path = absl::StrCat(directory, "/chat_template.jinja");
  json config = json::object();
  absl::StatusOr<std::string> config_text = ReadFile(config_path, kMaxConfigBytes);
  if (config_text.ok()) {
    ALUDEL_ASSIGN_OR_RETURN(config, ParseJson(*config_text, config_path, kConfigDepth));
  } else if (!absl::IsNotFound(config_text.status())) {
    return config_text.status();
  }
  ALUDEL_ASSIGN_OR_RETURN(SpecialTokens tokens, ReadSpecialTokens(config, config_path));
  // The separate file is the newer form and takes precedence, as in transformers.
  absl::StatusOr<std::string> source = ReadFile(jinja_path, kMaxTemplateBytes);
  const std::string& path = source.ok() ? jinja_path : config_path;
  if (absl::IsNotFound(source.status())) source = ReadTemplate(config, config_path);
  if (!source.ok()) return source.status();
  auto result = JinjaTemplate::Make(*source, std::move(tokens));
  if (!result.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", result.status().message()));
  return result;
}

}  // namespace aludel
