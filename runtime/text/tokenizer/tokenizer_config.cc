#include "runtime/text/tokenizer/tokenizer_config.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/files/foreign_files.h"
#include "runtime/files/json_reader.h"
#include "runtime/status_macros.h"
#include "runtime/text/tokenizer/post_processor.h"

namespace aludel {
namespace {

using nlohmann::json;

constexpr size_t kMaxFileBytes = 256u << 20;
constexpr size_t kMaxConfigBytes = 64u << 20;  // it lists added tokens, too
constexpr int kConfigDepth = 32;
constexpr int64_t kMaxId = (1 << 24) - 1;

// What a tokenizer.json calls its tokens. Whatever is malformed there is left out: its reader names it.
class Tokens {
 public:
  explicit Tokens(const json& tokenizer) {
    const json* model = FindMember(tokenizer, "model");
    vocabulary_ = model == nullptr ? nullptr : FindMember(*model, "vocab");
    if (vocabulary_ != nullptr && vocabulary_->is_object()) {
      next_id_ = static_cast<int64_t>(vocabulary_->size());
    } else {
      vocabulary_ = nullptr;
    }
    const json* added = FindMember(tokenizer, "added_tokens");
    if (added == nullptr || !added->is_array()) return;
    for (size_t i = 0; i < added->size(); ++i) {
      const json* content = FindMember((*added)[i], "content");
      const json* id = FindMember((*added)[i], "id");
      if (content == nullptr || !content->is_string() || id == nullptr || !IsId(*id)) continue;
      Add(content->get<std::string>(), id->get<int64_t>(), i);
    }
  }

  struct Added {
    int64_t id = 0;
    size_t index = 0;  // into added_tokens
  };
  const Added* FindAdded(const std::string& content) const {
    const auto found = added_.find(content);
    return found == added_.end() ? nullptr : &found->second;
  }
  // -1 where there is no such token.
  int64_t IdOf(const std::string& content) const {
    if (const Added* added = FindAdded(content); added != nullptr) return added->id;
    if (vocabulary_ == nullptr) return -1;
    const auto found = vocabulary_->find(content);
    return found == vocabulary_->end() || !IsId(*found) ? -1 : found->get<int64_t>();
  }
  // Of a token that is in neither list: one more than there are, or one after the last.
  int64_t next_id() const { return next_id_; }
  void Add(const std::string& content, int64_t id, size_t index) {
    added_[content] = {id, index};
    next_id_ = std::max(next_id_, id + 1);
  }

 private:
  static bool IsId(const json& id) { return id.is_number_unsigned() && id.get<uint64_t>() <= kMaxId; }

  const json* vocabulary_ = nullptr;
  std::map<std::string, Added> added_;
  int64_t next_id_ = 0;
};

// One entry of added_tokens_decoder.
absl::Status AddToken(int64_t id, const json& entry, const std::string& where, Tokens* tokens, json* list) {
  ALUDEL_ASSIGN_OR_RETURN(const std::string content, StringMember(entry, "content", "", where));
  if (content.empty())
    return absl::InvalidArgumentError(absl::StrCat(where, ": content is missing or empty"));
  const int64_t known = tokens->IdOf(content);
  const int64_t expected = known >= 0 ? known : tokens->next_id();
  if (id != expected) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": id of \"", content, "\" is ", id, ", want ", expected,
        known >= 0 ? ", which tokenizer.json gives it" : ", the first that tokenizer.json leaves free"));
  }
  json token = {{"id", static_cast<uint64_t>(id)}, {"content", content}};
  for (const char* flag : {"single_word", "lstrip", "rstrip", "special"}) {
    ALUDEL_ASSIGN_OR_RETURN(const bool value, BoolMember(entry, flag, false, where));
    token[flag] = value;
  }
  ALUDEL_ASSIGN_OR_RETURN(const bool normalized,
                          BoolMember(entry, "normalized", token["special"] != true, where));
  token["normalized"] = normalized;
  if (const Tokens::Added* added = tokens->FindAdded(content); added != nullptr) {
    json& mine = (*list)[added->index];
    const json* was_special = FindMember(mine, "special");  // once special, a token stays so
    if (was_special != nullptr && *was_special == true) token["special"] = true;
    mine = std::move(token);
    return absl::OkStatus();
  }
  tokens->Add(content, id, list->size());
  list->push_back(std::move(token));
  return absl::OkStatus();
}

absl::Status AddDecoderTokens(const json& config, const std::string& origin, Tokens* tokens, json* list) {
  const json* decoder = FindMember(config, "added_tokens_decoder");
  if (decoder == nullptr) return absl::OkStatus();
  const std::string where = absl::StrCat(origin, ": added_tokens_decoder");
  if (!decoder->is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, " is ", DescribeJson(*decoder), ", want an object"));
  }
  std::map<int64_t, const json*> by_id;
  for (const auto& [key, entry] : decoder->items()) {
    int64_t id = -1;
    if (!absl::SimpleAtoi(key, &id) || id < 0 || id > kMaxId || !entry.is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, " holds \"", key, "\": ", DescribeJson(entry), ", want an id and an object"));
    }
    by_id[id] = &entry;
  }
  for (const auto& [id, entry] : by_id) {
    ALUDEL_RETURN_IF_ERROR(AddToken(id, *entry, absl::StrCat(where, "[", id, "]"), tokens, list));
  }
  return absl::OkStatus();
}

// A special token as its text or as an object that holds it as `content`.
absl::Status AddSpecialToken(const json& token, const std::string& where, Tokens* tokens, json* list) {
  json entry = token.is_string() ? json::object({{"content", token}}) : token;
  if (!entry.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, " is ", DescribeJson(token), ", want a token or an object with its content"));
  }
  ALUDEL_ASSIGN_OR_RETURN(const std::string content, StringMember(entry, "content", "", where));
  if (content.empty() || tokens->FindAdded(content) != nullptr) return absl::OkStatus();
  entry["special"] = true;
  const int64_t known = tokens->IdOf(content);
  return AddToken(known >= 0 ? known : tokens->next_id(), entry, where, tokens, list);
}

absl::Status AddSpecialTokens(const json& config, const std::string& origin, Tokens* tokens, json* list) {
  for (const char* name : kNamedTokens) {
    const json* token = FindMember(config, name);
    if (token == nullptr) continue;
    ALUDEL_RETURN_IF_ERROR(AddSpecialToken(*token, absl::StrCat(origin, ": ", name), tokens, list));
  }
  for (const char* name : {"extra_special_tokens", "additional_special_tokens"}) {
    const json* more = FindMember(config, name);
    if (more == nullptr) continue;
    const std::string where = absl::StrCat(origin, ": ", name);
    if (!more->is_structured()) {
      return absl::InvalidArgumentError(absl::StrCat(where, " is ", DescribeJson(*more), ", want an array"));
    }
    const int64_t next_id = tokens->next_id();
    for (const json& token : *more) ALUDEL_RETURN_IF_ERROR(AddSpecialToken(token, where, tokens, list));
    // The order of an object's members would decide, and JSON does not keep it.
    if (more->is_object() && tokens->next_id() > next_id + 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, " is an object with tokens that tokenizer.json lacks: want an array"));
    }
  }
  return absl::OkStatus();
}

// A flag that may be absent; null is false.
absl::StatusOr<std::optional<bool>> ReadFlag(const json& config, const char* name,
                                             const std::string& origin) {
  if (!config.contains(name)) return std::optional<bool>();
  ALUDEL_ASSIGN_OR_RETURN(const bool value, BoolMember(config, name, false, origin));
  return std::optional<bool>(value);
}

bool IsLlama(const std::string& name) {
  for (const char* known :
       {"LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "CodeLlamaTokenizerFast"}) {
    if (name == known) return true;
  }
  return false;
}

struct Flags {
  std::optional<bool> bos, eos;
};

// What the flags of a class that does not obey them say otherwise than tokenizer.json.
std::vector<std::string> ContradictedFlags(const Flags& flags, const std::string& origin,
                                           const json& tokenizer) {
  std::vector<std::string> warnings;
  const absl::StatusOr<PostProcessor> now =
      PostProcessor::FromJson(FindMember(tokenizer, "post_processor"), "post_processor");
  if (!now.ok()) return warnings;  // the reader of tokenizer.json says so
  const struct {
    const char* name;
    std::optional<bool> wanted;
    bool found;
    const char* place;
  } sides[] = {{"add_bos_token", flags.bos, !now->before.empty(), "before"},
               {"add_eos_token", flags.eos, !now->after.empty(), "after"}};
  for (const auto& side : sides) {
    if (!side.wanted.has_value() || *side.wanted == side.found) continue;
    warnings.push_back(absl::StrCat(origin, ": ", side.name, " is ", *side.wanted ? "true" : "false",
                                    " and is ignored: the post_processor of tokenizer.json adds ",
                                    side.found ? "tokens " : "nothing ", side.place, " a text"));
  }
  return warnings;
}

absl::Status MakePostProcessor(const Flags& flags, const json& config, const std::string& origin,
                               json* tokenizer) {
  const Tokens tokens(*tokenizer);
  json single = json::array();
  json special = json::object();
  const auto add = [&](const char* name) -> absl::Status {
    ALUDEL_ASSIGN_OR_RETURN(const std::optional<std::string> token, NamedToken(config, name, origin));
    const int64_t id = token ? tokens.IdOf(*token) : -1;
    if (id < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(origin, ": ", name, " is empty, want the token that add_", name, " speaks of"));
    }
    single.push_back({{"SpecialToken", {{"id", *token}}}});
    special[*token] = {{"ids", {static_cast<uint64_t>(id)}}};
    return absl::OkStatus();
  };
  if (flags.bos.value_or(true)) ALUDEL_RETURN_IF_ERROR(add("bos_token"));
  single.push_back({{"Sequence", {{"id", "A"}}}});
  if (flags.eos.value_or(false)) ALUDEL_RETURN_IF_ERROR(add("eos_token"));
  (*tokenizer)["post_processor"] = {
      {"type", "TemplateProcessing"}, {"single", std::move(single)}, {"special_tokens", std::move(special)}};
  return absl::OkStatus();
}

// An object that names special tokens, among others; empty where there is no such file.
absl::StatusOr<json> LoadConfigFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxConfigBytes);
  if (absl::IsNotFound(text.status())) return json::object();
  if (!text.ok()) return text.status();
  ALUDEL_ASSIGN_OR_RETURN(json config, ParseJson(*text, path, kConfigDepth));
  if (!config.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is ", DescribeJson(config), ", want an object"));
  }
  for (const char* name : kNamedTokens) ALUDEL_RETURN_IF_ERROR(NamedToken(config, name, path).status());
  return config;
}

}  // namespace

absl::StatusOr<std::optional<std::string>> NamedToken(const json& config, const char* name,
                                                      const std::string& origin) {
  const json* token = FindMember(config, name);
  if (token == nullptr) return std::nullopt;
  return token->is_object() ? StringMember(*token, "content", "", absl::StrCat(origin, ": ", name))
                            : StringMember(config, name, "", origin);
}

absl::StatusOr<json> LoadTokenizerConfig(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/tokenizer_config.json");
  ALUDEL_ASSIGN_OR_RETURN(json config, LoadConfigFile(path));
  if (!config.contains("added_tokens_decoder")) {
    ALUDEL_ASSIGN_OR_RETURN(const json map,
                            LoadConfigFile(absl::StrCat(directory, "/special_tokens_map.json")));
    for (const auto& [name, tokens] : map.items()) {
      json& known = config[name];
      if (known.is_array() && tokens.is_array()) {
        known.insert(known.end(), tokens.begin(), tokens.end());
      } else {
        known = tokens;
      }
    }
  }
  ALUDEL_ASSIGN_OR_RETURN(const std::string name, StringMember(config, "tokenizer_class", "", path));
  if (IsLlama(name)) {
    config.emplace("bos_token", "<s>");
    config.emplace("eos_token", "</s>");
    config.emplace("unk_token", "<unk>");
  }
  return config;
}

absl::Status ApplyTokenizerConfig(const json& config, const std::string& origin, json* tokenizer,
                                  std::vector<std::string>* warnings) {
  if (!tokenizer->is_object()) return absl::OkStatus();  // its reader says so
  json& list = (*tokenizer)["added_tokens"];
  if (list.is_null()) list = json::array();
  if (!list.is_array()) return absl::OkStatus();
  Tokens known(*tokenizer);
  ALUDEL_RETURN_IF_ERROR(AddDecoderTokens(config, origin, &known, &list));
  ALUDEL_RETURN_IF_ERROR(AddSpecialTokens(config, origin, &known, &list));
  Flags flags;
  ALUDEL_ASSIGN_OR_RETURN(flags.bos, ReadFlag(config, "add_bos_token", origin));
  ALUDEL_ASSIGN_OR_RETURN(flags.eos, ReadFlag(config, "add_eos_token", origin));
  if (!flags.bos.has_value() && !flags.eos.has_value()) return absl::OkStatus();
  ALUDEL_ASSIGN_OR_RETURN(const std::string name, StringMember(config, "tokenizer_class", "", origin));
  if (IsLlama(name)) return MakePostProcessor(flags, config, origin, tokenizer);
  if (warnings != nullptr) {
    for (std::string& warning : ContradictedFlags(flags, origin, *tokenizer))
      warnings->push_back(std::move(warning));
  }
  return absl::OkStatus();
}

absl::StatusOr<json> LoadTokenizerJson(const std::string& directory, std::vector<std::string>* warnings) {
  const std::string path = absl::StrCat(directory, "/tokenizer.json");
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxFileBytes);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(absl::StrCat(text.status().message(), ForeignTokenizer(directory)));
  }
  if (!text.ok()) return text.status();
  ALUDEL_ASSIGN_OR_RETURN(json root, ParseJson(*text, path, kTokenizerJsonDepth));
  ALUDEL_ASSIGN_OR_RETURN(const json config, LoadTokenizerConfig(directory));
  const std::string config_path = absl::StrCat(directory, "/tokenizer_config.json");
  ALUDEL_RETURN_IF_ERROR(ApplyTokenizerConfig(config, config_path, &root, warnings));
  return root;
}

}  // namespace aludel
