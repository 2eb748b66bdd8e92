#include "runtime/model/adapters/adapter_config.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "runtime/files/json_reader.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using nlohmann::json;

constexpr int kConfigDepth = 16;
// PEFT's defaults for what a config leaves out.
constexpr int64_t kDefaultRank = 8;
constexpr double kDefaultAlpha = 8;
// Far above any published adapter.
constexpr int64_t kMaxRank = 1 << 14;
constexpr double kMaxAlpha = 1e9;
constexpr size_t kMaxNames = 100'000;
constexpr size_t kMaxOverrides = 256;  // each is matched with every module
constexpr size_t kMaxInvocation = 1024;

// Fields that say how the adapter was made, or how PEFT should hold it, and change no number of it. How it was
// initialized stands in init_lora_weights too, which is looked at.
constexpr absl::string_view kIgnored[] = {
    "auto_mapping",      "corda_config",   "eva_config",      "inference_mode", "loftq_config",
    "lora_dropout",      "lora_ga_config", "megatron_config", "megatron_core",  "peft_version",
    "qalora_group_size", "revision",       "runtime_config"};

constexpr absl::string_view kRead[] = {"alora_invocation_tokens",
                                       "alpha_pattern",
                                       "base_model_name_or_path",
                                       "bias",
                                       "exclude_modules",
                                       "fan_in_fan_out",
                                       "init_lora_weights",
                                       "layers_pattern",
                                       "layers_to_transform",
                                       "lora_alpha",
                                       "peft_type",
                                       "r",
                                       "rank_pattern",
                                       "target_modules",
                                       "task_type",
                                       "use_rslora"};

// Known fields that change the numbers in ways that are not served, and what to do.
struct Refused {
  absl::string_view name;
  absl::string_view advice;
};
constexpr Refused kRefused[] = {
    {"use_dora", "DoRA is not served: merge the adapter with PEFT (merge_and_unload)"},
    {"use_qalora", "QALoRA is not served: merge the adapter with PEFT (merge_and_unload)"},
    {"lora_bias", "biases are not served: merge the adapter with PEFT (merge_and_unload)"},
    {"fan_in_fan_out", "it is for Conv1D layers, which no served architecture has"},
    {"modules_to_save", "whole modules are not served: merge the adapter with PEFT (merge_and_unload)"},
    {"trainable_token_indices", "embeddings are not served: merge the adapter with PEFT (merge_and_unload)"},
    {"layer_replication", "models with repeated layers are not served"},
    {"target_parameters", "only whole linear layers are updated (target_modules)"},
};

bool IsEmpty(const json& value) {
  return value.is_null() || value == false || (value.is_number() && value.get<double>() == 0) ||
         (value.is_string() && value.get_ref<const std::string&>().empty()) ||
         (value.is_structured() && value.empty());
}

template <size_t count>
bool Contains(const absl::string_view (&names)[count], absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// As PEFT counts: the number between the name of the list of layers and the next component.
std::optional<int64_t> LayerOf(absl::string_view module) {
  constexpr absl::string_view kPrefix = "model.layers.";
  if (!absl::StartsWith(module, kPrefix)) return std::nullopt;
  module.remove_prefix(kPrefix.size());
  int64_t layer = 0;
  if (!absl::SimpleAtoi(module.substr(0, module.find('.')), &layer)) return std::nullopt;
  return layer;
}

}  // namespace

// Reads the members of one file, remembering it for errors.
class AdapterConfig::Reader {
 public:
  Reader(const json& root, std::string origin) : root_(root), origin_(std::move(origin)) {}

  absl::Status Unsupported(const std::string& name, absl::string_view supported) const {
    const json* found = FindMember(root_, name.c_str());
    return absl::InvalidArgumentError(absl::StrCat(origin_, ": ", name, " is ",
                                                   found == nullptr ? "missing" : DescribeJson(*found),
                                                   ", want ", supported));
  }

  absl::Status CheckFields() const {
    for (const auto& [name, value] : root_.items()) {
      if (IsEmpty(value) || Contains(kIgnored, name)) continue;
      for (const Refused& refused : kRefused) {
        if (name == refused.name) return Unsupported(name, absl::StrCat("nothing: ", refused.advice));
      }
      if (!Contains(kRead, name)) {
        return Unsupported(name, "nothing: this field is not known, and may change what the adapter does");
      }
    }
    return CheckKind();
  }

  absl::Status ReadScale(AdapterConfig* config) const {
    ALUDEL_ASSIGN_OR_RETURN(config->base_, StringMember(root_, "base_model_name_or_path", "", origin_));
    ALUDEL_ASSIGN_OR_RETURN(config->rank_, IntMember(root_, "r", kDefaultRank, 1, kMaxRank, origin_));
    ALUDEL_ASSIGN_OR_RETURN(config->alpha_,
                            NumberMember(root_, "lora_alpha", kDefaultAlpha, -kMaxAlpha, kMaxAlpha, origin_));
    ALUDEL_ASSIGN_OR_RETURN(config->rank_stabilized_, BoolMember(root_, "use_rslora", false, origin_));
    const auto rank = [](const json& object, const char* name, const std::string& where) {
      return IntMember(object, name, kDefaultRank, 1, kMaxRank, where);
    };
    ALUDEL_RETURN_IF_ERROR(ReadOverrides("rank_pattern", rank, &config->ranks_));
    const auto alpha = [](const json& object, const char* name, const std::string& where) {
      return NumberMember(object, name, kDefaultAlpha, -kMaxAlpha, kMaxAlpha, where);
    };
    return ReadOverrides("alpha_pattern", alpha, &config->alphas_);
  }

  absl::Status ReadTargets(AdapterConfig* config) const {
    ALUDEL_RETURN_IF_ERROR(ReadSelector("target_modules", &config->targets_));
    if (config->targets_.names.empty() && !config->targets_.all_linear && !config->targets_.pattern) {
      return Unsupported("target_modules", "a list of names, a regular expression, or \"all-linear\"");
    }
    ALUDEL_RETURN_IF_ERROR(ReadSelector("exclude_modules", &config->excluded_));
    ALUDEL_RETURN_IF_ERROR(ReadInvocation(config));
    return ReadLayers(config);
  }

 private:
  absl::Status CheckKind() const {
    if (root_.value("peft_type", json()) != "LORA") return Unsupported("peft_type", "\"LORA\"");
    const json* task = FindMember(root_, "task_type");
    if (task != nullptr && *task != "CAUSAL_LM") return Unsupported("task_type", "\"CAUSAL_LM\"");
    const json* bias = FindMember(root_, "bias");
    if (bias != nullptr && *bias != "none") {
      return Unsupported("bias", "\"none\": merge the adapter with PEFT (merge_and_unload)");
    }
    const json* init = FindMember(root_, "init_lora_weights");
    if (init == nullptr || init->is_boolean()) return absl::OkStatus();
    for (const char* harmless : {"gaussian", "eva", "orthogonal"}) {
      if (*init == harmless) return absl::OkStatus();
    }
    return Unsupported(
        "init_lora_weights",
        "true, false, \"gaussian\", \"eva\" or \"orthogonal\": others change the base's weights too: "
        "convert the adapter with PEFT (save_pretrained with "
        "path_initial_model_for_weight_conversion)");
  }

  absl::Status ReadSelector(const std::string& name, Selector* selector) const {
    const json* found = FindMember(root_, name.c_str());
    if (found == nullptr) return absl::OkStatus();
    if (found->is_string()) {
      const auto& text = found->get_ref<const std::string&>();
      selector->all_linear = text == "all-linear" || text == "ALL-LINEAR";
      if (selector->all_linear || text.empty()) return absl::OkStatus();
      ALUDEL_ASSIGN_OR_RETURN(selector->pattern,
                              ModulePattern::Compile(text, absl::StrCat(origin_, ": ", name)));
      return absl::OkStatus();
    }
    if (!found->is_array() || found->size() > kMaxNames) {
      return Unsupported(name, absl::StrCat("a string or a list of at most ", kMaxNames, " names"));
    }
    for (const json& item : *found) {
      if (!item.is_string() || item.get_ref<const std::string&>().empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat(origin_, ": ", name, " holds ", DescribeJson(item), ", want names of modules"));
      }
      selector->names.push_back(item.get<std::string>());
    }
    return absl::OkStatus();
  }

  absl::Status ReadInvocation(AdapterConfig* config) const {
    const json* tokens = FindMember(root_, "alora_invocation_tokens");
    if (tokens == nullptr || IsEmpty(*tokens)) return absl::OkStatus();
    if (!tokens->is_array() || tokens->size() > kMaxInvocation) {
      return Unsupported("alora_invocation_tokens",
                         absl::StrCat("a list of at most ", kMaxInvocation, " token ids"));
    }
    for (const json& token : *tokens) {
      if (!token.is_number_unsigned() || token.get<uint64_t>() > static_cast<uint64_t>(INT32_MAX)) {
        return absl::InvalidArgumentError(absl::StrCat(origin_, ": alora_invocation_tokens holds ",
                                                       DescribeJson(token), ", want token ids"));
      }
      config->invocation_.push_back(token.get<int32_t>());
    }
    return absl::OkStatus();
  }

  absl::Status ReadLayers(AdapterConfig* config) const {
    const json* layers = FindMember(root_, "layers_to_transform");
    if (layers == nullptr || (layers->is_array() && layers->empty())) return absl::OkStatus();
    if (config->targets_.names.empty()) {
      return Unsupported("layers_to_transform", "nothing where target_modules is no list, as in PEFT");
    }
    const json list = layers->is_array() ? *layers : json::array({*layers});
    for (const json& layer : list) {
      if (!layer.is_number_unsigned() || layer.get<uint64_t>() > static_cast<uint64_t>(INT32_MAX)) {
        return Unsupported("layers_to_transform", "a layer's number from 0 on, or a list of them");
      }
      config->layers_.push_back(layer.get<int64_t>());
    }
    const json* pattern = FindMember(root_, "layers_pattern");
    if (pattern == nullptr || IsEmpty(*pattern)) return absl::OkStatus();
    const json names = pattern->is_array() ? *pattern : json::array({*pattern});
    if (std::find(names.begin(), names.end(), "layers") == names.end()) {
      return Unsupported("layers_pattern", "nothing or \"layers\", as the served architectures call them");
    }
    return absl::OkStatus();
  }

  // {PATTERN: number}, where PATTERN matches the end of a module's name from a dot on, or all of it.
  template <typename Read, typename Value>
  absl::Status ReadOverrides(const char* name, Read read, Overrides<Value>* out) const {
    const json* object = FindMember(root_, name);
    if (object == nullptr) return absl::OkStatus();
    if (!object->is_object() || object->size() > kMaxOverrides) {
      return Unsupported(name, absl::StrCat("an object of at most ", kMaxOverrides, " numbers"));
    }
    const std::string where = absl::StrCat(origin_, ": ", name);
    for (const auto& [key, unused] : object->items()) {
      ALUDEL_ASSIGN_OR_RETURN(auto pattern,
                              ModulePattern::Compile(absl::StrCat("(.*\\.)?(", key, ")"), where));
      ALUDEL_ASSIGN_OR_RETURN(const Value value, read(*object, key.c_str(), where));
      out->emplace_back(std::move(pattern), value);
    }
    return absl::OkStatus();
  }

  const json& root_;
  const std::string origin_;
};

absl::StatusOr<AdapterConfig> AdapterConfig::FromJson(absl::string_view text, absl::string_view origin) {
  ALUDEL_ASSIGN_OR_RETURN(const json root, ParseJson(text, origin, kConfigDepth));
  if (!root.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": config is ", DescribeJson(root), ", want an object"));
  }
  AdapterConfig config;
  config.origin_ = std::string(origin);
  const Reader reader(root, config.origin_);
  ALUDEL_RETURN_IF_ERROR(reader.CheckFields());
  ALUDEL_RETURN_IF_ERROR(reader.ReadScale(&config));
  ALUDEL_RETURN_IF_ERROR(reader.ReadTargets(&config));
  return config;
}

absl::StatusOr<bool> AdapterConfig::Selector::Matches(absl::string_view module) const {
  if (all_linear) return module != kHeadModule && module != kEmbeddingModule;
  if (pattern.has_value()) return pattern->Matches(module);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return absl::EndsWith(module, name) &&
           (module.size() == name.size() || module[module.size() - name.size() - 1] == '.');
  });
}

absl::StatusOr<bool> AdapterConfig::Targets(absl::string_view module) const {
  ALUDEL_ASSIGN_OR_RETURN(const bool excluded, excluded_.Matches(module));
  ALUDEL_ASSIGN_OR_RETURN(const bool named, targets_.Matches(module));
  if (excluded || !named || layers_.empty()) return named && !excluded;
  const std::optional<int64_t> layer = LayerOf(module);
  return layer.has_value() && std::find(layers_.begin(), layers_.end(), *layer) != layers_.end();
}

absl::StatusOr<LoraShape> AdapterConfig::ShapeOf(absl::string_view module) const {
  // The value of the pattern that matches, or `usual`.
  const auto find = [&](const auto& overrides, auto usual) -> absl::StatusOr<decltype(usual)> {
    const ModulePattern* first = nullptr;
    for (const auto& [pattern, value] : overrides) {
      ALUDEL_ASSIGN_OR_RETURN(const bool matches, pattern.Matches(module));
      if (!matches) continue;
      if (first != nullptr && value != usual) {
        return absl::InvalidArgumentError(absl::StrCat(origin_, ": patterns \"", first->text(), "\" and \"",
                                                       pattern.text(), "\" give ", module, " two values, ",
                                                       usual, " and ", value, ", want one"));
      }
      first = &pattern;
      usual = value;
    }
    return usual;
  };
  ALUDEL_ASSIGN_OR_RETURN(const int64_t rank, find(ranks_, rank_));
  ALUDEL_ASSIGN_OR_RETURN(const double alpha, find(alphas_, alpha_));
  const auto divisor = static_cast<double>(rank);
  return LoraShape{rank, static_cast<float>(alpha / (rank_stabilized_ ? std::sqrt(divisor) : divisor))};
}

std::string AdapterConfig::DescribeTargets() const {
  std::string text = targets_.all_linear            ? "all-linear"
                     : targets_.pattern.has_value() ? absl::StrCat("/", targets_.pattern->text(), "/")
                                                    : absl::StrJoin(targets_.names, ", ");
  if (!layers_.empty()) absl::StrAppend(&text, " of layers ", absl::StrJoin(layers_, ", "));
  return text;
}

}  // namespace aludel
