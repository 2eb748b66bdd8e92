#include "runtime/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/sample.h"
#include "nlohmann/json.hpp"
#include "runtime/files/foreign_files.h"
#include "runtime/files/json_reader.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using nlohmann::json;

constexpr size_t kMaxConfigBytes = 4u << 20;
constexpr int kConfigDepth = 16;

// Upper bounds far above any published model, low enough that no product of them overflows int64.
constexpr int kMaxLayers = 4096;
constexpr int kMaxHidden = 1 << 20;
constexpr int kMaxHeads = 8192;
constexpr int kMaxHeadDim = 4096;
constexpr int kMaxFfn = 1 << 22;
constexpr int kMaxVocab = static_cast<int>(kMaxSampledVocab);
constexpr int64_t kMaxPositions = int64_t{1} << 31;
constexpr size_t kMaxEosIds = 1024;

// How an architecture differs from the others where its config does not say so. Values a config omits are
// those of the transformers class of the same name.
struct Architecture {
  absl::string_view name;
  absl::string_view model_type;
  bool qkv_bias;
  bool takes_attention_bias;  // true: q, k, v and the output projection have biases
  bool takes_mlp_bias;
  bool qk_norm;
  int64_t max_positions;
  int head_dim;               // 0: hidden / heads
  bool kv_heads_equal_heads;  // otherwise num_key_value_heads must be given
  bool sliding_by_default;    // sliding_window counts without use_sliding_window, 4096 where it is absent
  int bos_id;
  int eos_id;
};
constexpr Architecture kArchitectures[] = {
    {"LlamaForCausalLM", "llama", false, true, true, false, 2048, 0, true, false, 1, 2},
    {"MistralForCausalLM", "mistral", false, false, false, false, 131072, 0, false, true, 1, 2},
    {"Qwen2ForCausalLM", "qwen2", true, false, false, false, 32768, 0, false, false, -1, -1},
    {"Qwen3ForCausalLM", "qwen3", false, true, false, true, 32768, 128, false, false, -1, -1},
};

// Reads the members of one config, remembering the file for its errors.
class Fields {
 public:
  Fields(const json& object, std::string origin) : object_(object), origin_(std::move(origin)) {}

  absl::Status Unsupported(absl::string_view name, absl::string_view supported) const {
    const json* found = FindMember(object_, std::string(name).c_str());
    return absl::InvalidArgumentError(absl::StrCat(origin_, ": ", name, " is ",
                                                   found == nullptr ? "missing" : DescribeJson(*found),
                                                   ", want ", supported));
  }
  absl::StatusOr<int> RequiredInt(const char* name, int max) const {
    if (!Has(name)) return Unsupported(name, absl::StrCat("an integer in [1, ", max, "]"));
    ALUDEL_ASSIGN_OR_RETURN(const int64_t value, IntMember(object_, name, 0, 1, max, origin_));
    return static_cast<int>(value);
  }
  absl::StatusOr<int64_t> Int(const char* name, int64_t fallback, int64_t min, int64_t max) const {
    return IntMember(object_, name, fallback, min, max, origin_);
  }
  absl::StatusOr<double> Number(const char* name, double fallback, double min, double max) const {
    return NumberMember(object_, name, fallback, min, max, origin_);
  }
  absl::StatusOr<bool> Bool(const char* name, bool fallback) const {
    return BoolMember(object_, name, fallback, origin_);
  }
  absl::StatusOr<std::string> String(const char* name, const std::string& fallback) const {
    return StringMember(object_, name, fallback, origin_);
  }
  bool Has(const char* name) const { return FindMember(object_, name) != nullptr; }
  // Whether it is there as null: for some fields that means "none", and leaving it out "the default".
  bool IsNull(const char* name) const { return object_.contains(name) && !Has(name); }
  const json* Find(const char* name) const { return FindMember(object_, name); }
  const std::string& origin() const { return origin_; }

 private:
  const json& object_;
  std::string origin_;
};

absl::StatusOr<const Architecture*> ReadArchitecture(const Fields& fields) {
  const json* names = fields.Find("architectures");
  const char* field = names != nullptr ? "architectures" : "model_type";
  std::string name;
  if (names != nullptr) {
    if (names->is_array() && names->size() == 1 && (*names)[0].is_string()) name = (*names)[0];
  } else {
    ALUDEL_ASSIGN_OR_RETURN(name, fields.String("model_type", ""));
  }
  std::string supported;
  for (const Architecture& architecture : kArchitectures) {
    if (name == (names != nullptr ? architecture.name : architecture.model_type)) return &architecture;
    absl::StrAppend(&supported, supported.empty() ? "" : ", ", architecture.name);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      fields.origin(), ": ", field, " is ",
      names != nullptr ? names->dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 200)
                       : "\"" + name + "\"",
      ", want one of ", supported));
}

// Fields of related models that change the numbers. Some loaders obey them in a model of another class and
// some ignore them. A field that is there was meant.
struct ForeignField {
  const char* name;
  std::optional<double> neutral;  // the number (false counts as 0) that changes nothing
};
constexpr ForeignField kForeignFields[] = {
    {"dual_chunk_attention_config", {}},
    {"attention_chunk_size", {}},
    {"attn_logit_softcapping", {}},
    {"final_logit_softcapping", {}},
    {"query_pre_attn_scalar", {}},
    {"attention_multiplier", {}},
    {"clip_qkv", {}},
    {"no_rope_layers", {}},
    {"rope_local_base_freq", {}},
    {"kv_lora_rank", {}},
    {"use_mrope", 0.0},
    {"alibi", 0.0},
    {"num_experts", 0.0},
    {"num_local_experts", 0.0},
    {"n_routed_experts", 0.0},
    {"use_qk_norm", 0.0},
    {"qk_layernorm", 0.0},
    {"use_parallel_residual", 0.0},
    {"is_encoder_decoder", 0.0},
    {"add_cross_attention", 0.0},
    {"embedding_multiplier", 1.0},
    {"residual_multiplier", 1.0},
    {"logits_scaling", 1.0},
    {"logit_scale", 1.0},
    {"rotary_pct", 1.0},
};

absl::Status RefuseForeignFields(const Fields& fields) {
  for (const ForeignField& field : kForeignFields) {
    const json* found = fields.Find(field.name);
    if (found == nullptr || (found->is_structured() && found->empty())) continue;
    if (field.neutral.has_value()) {
      if (found->is_number() && found->get<double>() == *field.neutral) continue;
      if (*found == false && *field.neutral == 0.0) continue;
    }
    return fields.Unsupported(
        field.name, field.neutral.has_value() ? absl::StrCat(*field.neutral, " or nothing") : "nothing");
  }
  return absl::OkStatus();
}

// A checkpoint may bring a class of its own as code, which is never run. A class of the same name is taken
// for a copy of the architecture.
absl::Status RefuseOwnCode(const Fields& fields, const Architecture& architecture) {
  const json* auto_map = fields.Find("auto_map");
  const json* model = auto_map == nullptr ? nullptr : FindMember(*auto_map, "AutoModelForCausalLM");
  if (model == nullptr) return absl::OkStatus();
  if (model->is_string()) {
    const std::string name = model->get<std::string>();
    if (absl::string_view(name).substr(name.rfind('.') + 1) == architecture.name) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(fields.origin(), ": auto_map.AutoModelForCausalLM is ",
                                                 DescribeJson(*model), ", want ", architecture.name,
                                                 " or nothing: a checkpoint's own code is not run"));
}

// Things that would change the numbers and that this runtime does not compute.
absl::Status RefuseUnsupported(const Fields& fields, const Architecture& architecture) {
  ALUDEL_RETURN_IF_ERROR(RefuseOwnCode(fields, architecture));
  ALUDEL_RETURN_IF_ERROR(RefuseForeignFields(fields));
  ALUDEL_ASSIGN_OR_RETURN(const std::string activation, fields.String("hidden_act", "silu"));
  if (activation != "silu" && activation != "swish") return fields.Unsupported("hidden_act", "\"silu\"");
  ALUDEL_ASSIGN_OR_RETURN(const double partial, fields.Number("partial_rotary_factor", 1.0, 0.0, 1.0));
  if (partial != 1.0) return fields.Unsupported("partial_rotary_factor", "1");
  return absl::OkStatus();
}

// Qwen2 has its biases whatever the field says.
absl::Status ReadBiases(const Fields& fields, const Architecture& architecture, ModelConfig* config) {
  ALUDEL_ASSIGN_OR_RETURN(const bool attention, fields.Bool("attention_bias", false));
  config->o_bias = attention && architecture.takes_attention_bias;
  config->qkv_bias = config->o_bias || architecture.qkv_bias;
  if (attention && !config->qkv_bias) return fields.Unsupported("attention_bias", "false");
  ALUDEL_ASSIGN_OR_RETURN(config->mlp_bias, fields.Bool("mlp_bias", false));
  if (config->mlp_bias && !architecture.takes_mlp_bias) return fields.Unsupported("mlp_bias", "false");
  return absl::OkStatus();
}

absl::StatusOr<RopeScaling> ReadRopeType(const Fields& rope) {
  const char* name = rope.Has("rope_type") ? "rope_type" : "type";
  ALUDEL_ASSIGN_OR_RETURN(const std::string type, rope.String(name, "default"));
  if (type == "default") return RopeScaling::kNone;
  if (type == "linear") return RopeScaling::kLinear;
  if (type == "dynamic") return RopeScaling::kDynamic;
  if (type == "llama3") return RopeScaling::kLlama3;
  if (type == "yarn") return RopeScaling::kYarn;
  return rope.Unsupported(name, "one of default, linear, dynamic, llama3, yarn");
}

absl::Status ReadYarn(const Fields& rope, RopeConfig* result) {
  // Transformers reads 0 and null as "the default" here.
  ALUDEL_ASSIGN_OR_RETURN(const double fast, rope.Number("beta_fast", 32.0, 0.0, 1e6));
  ALUDEL_ASSIGN_OR_RETURN(const double slow, rope.Number("beta_slow", 1.0, 0.0, 1e6));
  result->beta_fast = fast == 0.0 ? 32.0 : fast;
  result->beta_slow = slow == 0.0 ? 1.0 : slow;
  if (result->beta_fast < result->beta_slow) {
    return rope.Unsupported("beta_fast", absl::StrCat("at least beta_slow (", result->beta_slow, ")"));
  }
  if (rope.Has("attention_factor")) {
    ALUDEL_ASSIGN_OR_RETURN(result->attention_factor, rope.Number("attention_factor", 0.0, 1e-6, 1e6));
  }
  ALUDEL_ASSIGN_OR_RETURN(result->truncate, rope.Bool("truncate", true));
  ALUDEL_ASSIGN_OR_RETURN(const double mscale, rope.Number("mscale", 0.0, 0.0, 1e3));
  ALUDEL_ASSIGN_OR_RETURN(const double mscale_all, rope.Number("mscale_all_dim", 0.0, 0.0, 1e3));
  if (result->attention_factor == 0.0 && mscale > 0.0 && mscale_all > 0.0) {
    const double log_factor = std::log(result->factor);
    result->attention_factor = (0.1 * mscale * log_factor + 1.0) / (0.1 * mscale_all * log_factor + 1.0);
  }
  return absl::OkStatus();
}

absl::Status ReadLlama3(const Fields& rope, RopeConfig* result) {
  for (const char* name : {"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    if (!rope.Has(name)) return rope.Unsupported(name, "a number (rope type llama3)");
  }
  ALUDEL_ASSIGN_OR_RETURN(result->low_freq_factor, rope.Number("low_freq_factor", 1.0, 1e-3, 1e6));
  ALUDEL_ASSIGN_OR_RETURN(result->high_freq_factor, rope.Number("high_freq_factor", 4.0, 1e-3, 1e6));
  if (result->high_freq_factor <= result->low_freq_factor) {
    return rope.Unsupported("high_freq_factor",
                            absl::StrCat("above low_freq_factor (", result->low_freq_factor, ")"));
  }
  return absl::OkStatus();
}

// A scaled rope reaches beyond max_position_embeddings, which for linear and dynamic scaling is the length
// the model was trained with (transformers' documentation of `factor`); for yarn `original * factor` is the
// reach, and published configs give either number as max_position_embeddings. Llama 3.1 states its reach.
int64_t ReachablePositions(const RopeConfig& rope, int64_t declared) {
  if (rope.scaling == RopeScaling::kNone || rope.scaling == RopeScaling::kLlama3) return declared;
  const double scaled = std::floor(static_cast<double>(rope.original_max_positions) * rope.factor);
  return std::max(declared, static_cast<int64_t>(std::min(scaled, static_cast<double>(kMaxPositions))));
}

// `rope_scaling` beside a top-level rope_theta (transformers 4), or `rope_parameters` that holds both (5).
absl::Status ReadRope(const Fields& fields, ModelConfig* config) {
  constexpr double kMinTheta = 1.0 + 1e-6;
  constexpr double kMaxTheta = 1e12;
  RopeConfig& result = config->rope;
  ALUDEL_ASSIGN_OR_RETURN(result.theta, fields.Number("rope_theta", 10000.0, kMinTheta, kMaxTheta));
  const char* name = fields.Has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const json* object = fields.Find(name);
  // Transformers 4 reads one, 5 the other, and theta from yet another place.
  if (const json* scaling = fields.Find("rope_scaling"); scaling != nullptr && *scaling != *object) {
    return fields.Unsupported("rope_scaling",
                              "nothing beside other rope_parameters: the scaling goes in there");
  }
  if (object == nullptr) return absl::OkStatus();
  if (!object->is_object()) return fields.Unsupported(name, "an object");
  for (const auto& [key, value] : object->items()) {
    if (value.is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat(fields.origin(), ": ", name, ".", key, " is an object, want one rope for all layers"));
    }
  }
  const Fields rope(*object, absl::StrCat(fields.origin(), ": ", name));
  ALUDEL_ASSIGN_OR_RETURN(result.theta, rope.Number("rope_theta", result.theta, kMinTheta, kMaxTheta));
  ALUDEL_ASSIGN_OR_RETURN(const double partial, rope.Number("partial_rotary_factor", 1.0, 0.0, 1.0));
  if (partial != 1.0) return rope.Unsupported("partial_rotary_factor", "1");
  if (rope.Has("mrope_section")) return rope.Unsupported("mrope_section", "nothing");
  ALUDEL_ASSIGN_OR_RETURN(result.scaling, ReadRopeType(rope));
  if (result.scaling == RopeScaling::kNone) return absl::OkStatus();

  const int64_t declared = config->max_positions;
  ALUDEL_ASSIGN_OR_RETURN(const int64_t outer_original,
                          fields.Int("original_max_position_embeddings", declared, 1, kMaxPositions));
  ALUDEL_ASSIGN_OR_RETURN(result.original_max_positions,
                          rope.Int("original_max_position_embeddings", outer_original, 1, kMaxPositions));
  const bool yarn_ratio = result.scaling == RopeScaling::kYarn && !rope.Has("factor");
  const double ratio = static_cast<double>(declared) / static_cast<double>(result.original_max_positions);
  if (!rope.Has("factor") && !(yarn_ratio && ratio >= 1.0))
    return rope.Unsupported("factor", "a number of at least 1");
  ALUDEL_ASSIGN_OR_RETURN(result.factor, rope.Number("factor", ratio, 1.0, 1e6));
  if (result.scaling == RopeScaling::kDynamic && result.original_max_positions != declared) {
    // Transformers ignores the field here; other runtimes obey it. Neither guess is this runtime's to make.
    return rope.Unsupported(
        "original_max_position_embeddings",
        absl::StrCat("max_position_embeddings (", declared, ") or nothing for type dynamic"));
  }
  if (result.scaling == RopeScaling::kDynamic && config->head_dim <= 2) {
    return fields.Unsupported("head_dim", "more than 2 for rope type dynamic");
  }
  if (result.scaling == RopeScaling::kLlama3) ALUDEL_RETURN_IF_ERROR(ReadLlama3(rope, &result));
  if (result.scaling == RopeScaling::kYarn) ALUDEL_RETURN_IF_ERROR(ReadYarn(rope, &result));
  config->max_positions = ReachablePositions(result, declared);
  return absl::OkStatus();
}

// All layers see everything, or all see the same window. Models that mix the two are refused. A window that
// is null is none, one that is left out is the class's default.
absl::Status ReadSlidingWindow(const Fields& fields, const Architecture& architecture, ModelConfig* config) {
  constexpr int64_t kDefaultWindow = 4096;
  const json* layer_types = fields.Find("layer_types");
  const bool has_window = !fields.IsNull("sliding_window");
  bool sliding = has_window;
  if (!architecture.sliding_by_default) {
    ALUDEL_ASSIGN_OR_RETURN(const bool use_window, fields.Bool("use_sliding_window", false));
    sliding = use_window && has_window;
    ALUDEL_ASSIGN_OR_RETURN(const int64_t full_layers, fields.Int("max_window_layers", 28, 0, kMaxLayers));
    if (full_layers >= config->layers && layer_types == nullptr) sliding = false;
    if (sliding && full_layers > 0 && layer_types == nullptr) {
      return fields.Unsupported(
          "max_window_layers",
          absl::StrCat("0 or at least num_hidden_layers (", config->layers, ") with use_sliding_window"));
    }
  }
  if (layer_types != nullptr) {
    if (!layer_types->is_array() || layer_types->size() != static_cast<size_t>(config->layers)) {
      return fields.Unsupported("layer_types", absl::StrCat("an array of ", config->layers, " strings"));
    }
    for (const json& type : *layer_types) {
      if ((type != "full_attention" && type != "sliding_attention") || type != (*layer_types)[0]) {
        return absl::InvalidArgumentError(
            absl::StrCat(fields.origin(), ": layer_types holds ", DescribeJson(type),
                         ", want all layers full_attention or all sliding_attention"));
      }
    }
    sliding = (*layer_types)[0] == "sliding_attention";
    if (sliding && !has_window) return fields.Unsupported("sliding_window", "a number for these layer_types");
  }
  if (!sliding) return absl::OkStatus();
  ALUDEL_ASSIGN_OR_RETURN(config->sliding_window,
                          fields.Int("sliding_window", kDefaultWindow, 1, kMaxPositions));
  return absl::OkStatus();
}

// Adds the ids of `eos_token_id` (an integer or a list) that are not there yet.
absl::Status AddEosIds(const Fields& fields, int vocab, std::vector<int>* eos_ids) {
  const json* found = fields.Find("eos_token_id");
  if (found == nullptr) return absl::OkStatus();
  const json list = found->is_array() ? *found : json::array({*found});
  const std::string expected =
      absl::StrCat("an id in [0, ", vocab - 1, "] or at most ", kMaxEosIds, " of them");
  if (list.size() > kMaxEosIds) return fields.Unsupported("eos_token_id", expected);
  for (const json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocab)) {
      return absl::InvalidArgumentError(
          absl::StrCat(fields.origin(), ": eos_token_id holds ", DescribeJson(id), ", want ", expected));
    }
    const int value = id.get<int>();
    if (std::find(eos_ids->begin(), eos_ids->end(), value) == eos_ids->end()) eos_ids->push_back(value);
  }
  return absl::OkStatus();
}

absl::Status ReadShape(const Fields& fields, const Architecture& architecture, ModelConfig* config) {
  ALUDEL_ASSIGN_OR_RETURN(config->layers, fields.RequiredInt("num_hidden_layers", kMaxLayers));
  ALUDEL_ASSIGN_OR_RETURN(config->hidden, fields.RequiredInt("hidden_size", kMaxHidden));
  ALUDEL_ASSIGN_OR_RETURN(config->heads, fields.RequiredInt("num_attention_heads", kMaxHeads));
  ALUDEL_ASSIGN_OR_RETURN(config->ffn, fields.RequiredInt("intermediate_size", kMaxFfn));
  ALUDEL_ASSIGN_OR_RETURN(config->vocab, fields.RequiredInt("vocab_size", kMaxVocab));
  config->kv_heads = config->heads;
  if (fields.Has("num_key_value_heads") || !architecture.kv_heads_equal_heads) {
    ALUDEL_ASSIGN_OR_RETURN(config->kv_heads, fields.RequiredInt("num_key_value_heads", kMaxHeads));
  }
  if (config->heads % config->kv_heads != 0) {
    return fields.Unsupported("num_key_value_heads",
                              absl::StrCat("a divisor of num_attention_heads (", config->heads, ")"));
  }
  if (!fields.Has("head_dim") && architecture.head_dim == 0 && config->hidden % config->heads != 0) {
    return fields.Unsupported("hidden_size", absl::StrCat("a multiple of num_attention_heads (",
                                                          config->heads, ") where head_dim is not given"));
  }
  const int default_head_dim =
      architecture.head_dim != 0 ? architecture.head_dim : config->hidden / config->heads;
  ALUDEL_ASSIGN_OR_RETURN(const int64_t head_dim, fields.Int("head_dim", default_head_dim, 1, kMaxHeadDim));
  config->head_dim = static_cast<int>(head_dim);
  if (head_dim % 2 != 0 || head_dim > kMaxHeadDim) {
    return absl::InvalidArgumentError(absl::StrCat(fields.origin(), ": head_dim is ", head_dim,
                                                   ", want an even number of at most ", kMaxHeadDim));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ModelConfig::FromJson(absl::string_view text, absl::string_view origin) {
  ALUDEL_ASSIGN_OR_RETURN(const json root, ParseJson(text, origin, kConfigDepth));
  if (!root.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": config is ", DescribeJson(root), ", want an object"));
  }
  const Fields fields(root, std::string(origin));
  ALUDEL_ASSIGN_OR_RETURN(const Architecture* architecture, ReadArchitecture(fields));
  ModelConfig config;
  config.architecture = std::string(architecture->name);
  config.qk_norm = architecture->qk_norm;
  ALUDEL_RETURN_IF_ERROR(RefuseUnsupported(fields, *architecture));
  ALUDEL_RETURN_IF_ERROR(ReadBiases(fields, *architecture, &config));
  // The second is what llm-compressor once called it.
  for (const char* name : {"quantization_config", "compression_config"}) {
    const json* quantization = fields.Find(name);
    if (quantization == nullptr) continue;
    ALUDEL_ASSIGN_OR_RETURN(
        config.quantization,
        QuantizationConfig::FromJson(*quantization, absl::StrCat(fields.origin(), ": ", name)));
    break;
  }
  ALUDEL_RETURN_IF_ERROR(ReadShape(fields, *architecture, &config));
  ALUDEL_ASSIGN_OR_RETURN(config.max_positions, fields.Int("max_position_embeddings",
                                                           architecture->max_positions, 1, kMaxPositions));
  ALUDEL_ASSIGN_OR_RETURN(config.rms_norm_eps, fields.Number("rms_norm_eps", 1e-6, 0.0, 1.0));
  ALUDEL_ASSIGN_OR_RETURN(config.tied_embeddings, fields.Bool("tie_word_embeddings", false));
  ALUDEL_RETURN_IF_ERROR(ReadRope(fields, &config));
  ALUDEL_RETURN_IF_ERROR(ReadSlidingWindow(fields, *architecture, &config));
  ALUDEL_RETURN_IF_ERROR(AddEosIds(fields, config.vocab, &config.eos_ids));
  if (!root.contains("eos_token_id") && architecture->eos_id >= 0) config.eos_ids = {architecture->eos_id};
  const int default_bos = root.contains("bos_token_id") ? -1 : architecture->bos_id;
  ALUDEL_ASSIGN_OR_RETURN(const int64_t bos, fields.Int("bos_token_id", default_bos, 0, config.vocab - 1));
  config.bos_id = static_cast<int>(bos);
  return config;
}

namespace {

// The JSON of a file that need not exist; null where it does not.
absl::StatusOr<json> ReadOptional(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxConfigBytes);
  if (absl::IsNotFound(text.status())) return json();
  if (!text.ok()) return text.status();
  return ParseJson(*text, path, kConfigDepth);
}

// Quantizers that say what they did in a file of their own, in place of config.json.
absl::Status ReadQuantizationBeside(const std::string& directory, ModelConfig* config) {
  const std::string model_opt = absl::StrCat(directory, "/hf_quant_config.json");
  ALUDEL_ASSIGN_OR_RETURN(const json object, ReadOptional(model_opt));
  if (!object.is_null()) {
    ALUDEL_ASSIGN_OR_RETURN(config->quantization, QuantizationConfig::FromModelOpt(object, model_opt));
    return absl::OkStatus();
  }
  // Not read: they leave out what newer files say, and leave open whether the weights beside them are theirs.
  constexpr struct {
    const char* file;
    const char* method;
  } kUnread[] = {{"quantize_config.json", "gptq"}, {"quant_config.json", "awq"}};
  for (const auto& [file, method] : kUnread) {
    const std::string path = absl::StrCat(directory, "/", file);
    if (absl::IsNotFound(ReadFile(path, kMaxConfigBytes).status())) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        path,
        ": found, but config.json has no quantization_config: put the file's content there, with "
        "\"quant_method\": \"",
        method, "\" added, or remove the file if the weights are not quantized"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ModelConfig::Load(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/config.json");
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxConfigBytes);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(absl::StrCat(text.status().message(), ForeignWeights(directory)));
  }
  if (!text.ok()) return text.status();
  ALUDEL_ASSIGN_OR_RETURN(ModelConfig config, FromJson(*text, path));
  if (config.quantization.method == QuantizationMethod::kNone) {
    ALUDEL_RETURN_IF_ERROR(ReadQuantizationBeside(directory, &config));
  }
  const std::string generation_path = absl::StrCat(directory, "/generation_config.json");
  ALUDEL_ASSIGN_OR_RETURN(const json generation, ReadOptional(generation_path));
  ALUDEL_RETURN_IF_ERROR(AddEosIds(Fields(generation, generation_path), config.vocab, &config.eos_ids));
  return config;
}

}  // namespace aludel
