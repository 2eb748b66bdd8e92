#include "runtime/model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

using ::nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json Llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", 4096},
          {"intermediate_size", 14336},
          {"num_hidden_layers", 32},
          {"num_attention_heads", 32},
          {"num_key_value_heads", 8},
          {"vocab_size", 128256},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 500000.0},
          {"hidden_act", "silu"},
          {"max_position_embeddings", 131072},
          {"tie_word_embeddings", false},
          {"attention_bias", false},
          {"bos_token_id", 128000},
          {"eos_token_id", {128001, 128008, 128009}}};
}

json With(json config, const char* field, json value) {
  config[field] = std::move(value);
  return config;
}

json Architecture(const char* name) { return With(Llama(), "architectures", {name}); }

ModelConfig Read(const json& config) {
  auto result = ModelConfig::FromJson(config.dump(), "config.json");
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *result : ModelConfig();
}

std::string Error(const json& config) {
  return std::string(ModelConfig::FromJson(config.dump(), "config.json").status().message());
}

TEST(ModelConfig, ReadsALlama31Config) {
  const json rope = {{"rope_type", "llama3"},
                     {"factor", 8.0},
                     {"low_freq_factor", 1.0},
                     {"high_freq_factor", 4.0},
                     {"original_max_position_embeddings", 8192}};
  const ModelConfig config = Read(With(Llama(), "rope_scaling", rope));
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.layers, 32);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.kv_dim(), 1024);
  EXPECT_EQ(config.q_dim(), 4096);
  EXPECT_EQ(config.ffn, 14336);
  EXPECT_EQ(config.max_positions, 131072) << "Llama 3.1 states its reach, scaling included";
  EXPECT_EQ(config.rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(config.rope.theta, 500000.0);
  EXPECT_EQ(config.rope.factor, 8.0);
  EXPECT_EQ(config.rope.original_max_positions, 8192);
  EXPECT_EQ(config.sliding_window, 0);
  EXPECT_THAT(config.eos_ids, ElementsAre(128001, 128008, 128009));
  EXPECT_EQ(config.bos_id, 128000);
  EXPECT_FALSE(config.qkv_bias || config.qk_norm || config.tied_embeddings);
}

TEST(ModelConfig, TakesTransformersDefaultsForWhatAConfigOmits) {
  json config = Llama();
  for (const char* field : {"num_key_value_heads", "rms_norm_eps", "rope_theta", "max_position_embeddings",
                            "bos_token_id", "eos_token_id", "hidden_act", "tie_word_embeddings"}) {
    config.erase(field);
  }
  const ModelConfig llama = Read(config);
  EXPECT_EQ(llama.kv_heads, 32);
  EXPECT_EQ(llama.rms_norm_eps, 1e-6);
  EXPECT_EQ(llama.rope.theta, 10000.0);
  EXPECT_EQ(llama.max_positions, 2048);
  EXPECT_EQ(llama.bos_id, 1);
  EXPECT_THAT(llama.eos_ids, ElementsAre(2));
  EXPECT_THAT(Error(With(config, "architectures", {"MistralForCausalLM"})), HasSubstr("num_key_value_heads"));
}

TEST(ModelConfig, KnowsWhatSetsTheArchitecturesApart) {
  EXPECT_TRUE(Read(Architecture("Qwen2ForCausalLM")).qkv_bias);
  const ModelConfig qwen3 = Read(With(Architecture("Qwen3ForCausalLM"), "head_dim", 64));
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_FALSE(qwen3.qkv_bias);
  for (const char* name : {"LlamaForCausalLM", "Qwen3ForCausalLM"}) {
    const ModelConfig biased = Read(With(Architecture(name), "attention_bias", true));
    EXPECT_TRUE(biased.qkv_bias && biased.o_bias && !biased.mlp_bias) << name;
  }
  EXPECT_FALSE(Read(With(Architecture("Qwen2ForCausalLM"), "attention_bias", true)).o_bias);
  EXPECT_TRUE(Read(With(Llama(), "mlp_bias", true)).mlp_bias);
  EXPECT_EQ(qwen3.head_dim, 64) << "head_dim need not be hidden / heads";
  json by_type = Llama();
  by_type.erase("architectures");
  EXPECT_EQ(Read(by_type).architecture, "LlamaForCausalLM");
}

TEST(ModelConfig, ReadsSlidingWindowsAsTheirArchitectureMeansThem) {
  EXPECT_EQ(Read(With(Architecture("MistralForCausalLM"), "sliding_window", 4096)).sliding_window, 4096);
  EXPECT_EQ(Read(With(Architecture("MistralForCausalLM"), "sliding_window", nullptr)).sliding_window, 0);
  EXPECT_EQ(Read(Architecture("MistralForCausalLM")).sliding_window, 4096) << "left out is not null";
  EXPECT_EQ(Read(Architecture("LlamaForCausalLM")).sliding_window, 0);
  json qwen = With(Architecture("Qwen2ForCausalLM"), "sliding_window", 1024);
  EXPECT_EQ(Read(qwen).sliding_window, 0) << "use_sliding_window is false by default";
  qwen["use_sliding_window"] = true;
  qwen["max_window_layers"] = 32;
  EXPECT_EQ(Read(qwen).sliding_window, 0) << "the window starts after the last layer";
  qwen["max_window_layers"] = 0;
  EXPECT_EQ(Read(qwen).sliding_window, 1024);
  EXPECT_EQ(Read(With(qwen, "sliding_window", nullptr)).sliding_window, 0);
  json by_default = qwen;
  by_default.erase("sliding_window");
  EXPECT_EQ(Read(by_default).sliding_window, 4096);
  qwen["max_window_layers"] = 16;
  EXPECT_THAT(Error(qwen), AllOf(HasSubstr("max_window_layers is 16"), HasSubstr("32")));
  qwen["layer_types"] = std::vector<std::string>(32, "full_attention");
  EXPECT_EQ(Read(qwen).sliding_window, 0);
  json sliding = With(qwen, "layer_types", std::vector<std::string>(32, "sliding_attention"));
  EXPECT_EQ(Read(sliding).sliding_window, 1024);
  sliding["sliding_window"] = nullptr;
  EXPECT_THAT(Error(sliding), HasSubstr("sliding_window is missing"));
  qwen["layer_types"][5] = "sliding_attention";
  EXPECT_THAT(Error(qwen), AllOf(HasSubstr("layer_types"), HasSubstr("sliding_attention")));
}

TEST(ModelConfig, ReadsEveryRopeVariant) {
  EXPECT_EQ(Read(With(Llama(), "rope_scaling", nullptr)).rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(Read(With(Llama(), "rope_scaling", {{"rope_type", "default"}})).rope.scaling, RopeScaling::kNone);

  const json base = With(Llama(), "max_position_embeddings", 4096);
  const ModelConfig linear = Read(With(base, "rope_scaling", {{"type", "linear"}, {"factor", 4}}));
  EXPECT_EQ(linear.rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(linear.max_positions, 16384);

  const ModelConfig dynamic = Read(With(base, "rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}));
  EXPECT_EQ(dynamic.rope.scaling, RopeScaling::kDynamic);
  EXPECT_EQ(dynamic.rope.original_max_positions, 4096);
  EXPECT_EQ(dynamic.max_positions, 8192);

  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  const ModelConfig qwen = Read(With(With(Llama(), "max_position_embeddings", 32768), "rope_scaling", yarn));
  EXPECT_EQ(qwen.rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(qwen.max_positions, 131072);
  EXPECT_EQ(qwen.rope.beta_fast, 32.0);
  EXPECT_EQ(qwen.rope.attention_factor, 0.0) << "derived from factor";
  EXPECT_TRUE(qwen.rope.truncate);
  json whole = yarn;
  whole["truncate"] = false;
  EXPECT_FALSE(Read(With(base, "rope_scaling", whole)).rope.truncate);
}

TEST(ModelConfig, ReadsRopeParametersOfTransformers5) {
  json config = Llama();
  config.erase("rope_theta");
  config["rope_parameters"] = {{"rope_type", "linear"}, {"rope_theta", 250000.0}, {"factor", 2.0}};
  const ModelConfig read = Read(config);
  EXPECT_EQ(read.rope.theta, 250000.0);
  EXPECT_EQ(read.rope.factor, 2.0);
  config["rope_scaling"] = config["rope_parameters"];
  EXPECT_EQ(Read(config).rope.factor, 2.0);
  config["rope_scaling"]["factor"] = 4.0;  // as cards of models tell users to add it
  EXPECT_THAT(Error(config), AllOf(HasSubstr("rope_scaling is"), HasSubstr("rope_parameters")));
  config.erase("rope_scaling");
  config["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}}}};
  EXPECT_THAT(Error(config), HasSubstr("rope_parameters.full_attention"));
}

TEST(ModelConfig, NamesABadRopeField) {
  const auto error = [](json rope) { return Error(With(Llama(), "rope_scaling", std::move(rope))); };
  EXPECT_THAT(error({{"type", "longrope"}}), AllOf(HasSubstr("\"longrope\""), HasSubstr("yarn")));
  EXPECT_THAT(error({{"type", "linear"}}), HasSubstr("factor is missing"));
  EXPECT_THAT(error({{"type", "linear"}, {"factor", 0.5}}), HasSubstr("factor is 0.5"));
  EXPECT_THAT(error({{"type", "llama3"}, {"factor", 8}}), HasSubstr("low_freq_factor is missing"));
  EXPECT_THAT(error({{"type", "llama3"},
                     {"factor", 8},
                     {"low_freq_factor", 4},
                     {"high_freq_factor", 4},
                     {"original_max_position_embeddings", 8192}}),
              HasSubstr("high_freq_factor"));
  EXPECT_THAT(error({{"type", "dynamic"}, {"factor", 2}, {"original_max_position_embeddings", 8192}}),
              HasSubstr("original_max_position_embeddings is 8192"));
  EXPECT_THAT(error({{"type", "yarn"}, {"factor", 2}, {"truncate", 1}}), HasSubstr("truncate"));
  EXPECT_THAT(error("linear"), HasSubstr("want an object"));
}

TEST(ModelConfig, NamesWhatItDoesNotSupport) {
  EXPECT_THAT(Error(Architecture("MambaForCausalLM")),
              AllOf(HasSubstr("MambaForCausalLM"), HasSubstr("Qwen3ForCausalLM")));
  EXPECT_THAT(Error(With(Llama(), "hidden_act", "gelu")), AllOf(HasSubstr("hidden_act"), HasSubstr("silu")));
  EXPECT_THAT(Error(With(Architecture("MistralForCausalLM"), "attention_bias", true)),
              HasSubstr("attention_bias is true, want false"));
  for (const char* name : {"MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
    EXPECT_THAT(Error(With(Architecture(name), "mlp_bias", true)), HasSubstr("mlp_bias is true, want false"));
  }
  EXPECT_THAT(Error(With(Llama(), "partial_rotary_factor", 0.5)), HasSubstr("partial_rotary_factor"));
}

TEST(ModelConfig, NamesFieldsOfRelatedModelsThatChangeTheNumbers) {
  const std::pair<const char*, json> changes[] = {{"dual_chunk_attention_config", {{"chunk_size", 262144}}},
                                                  {"use_mrope", true},
                                                  {"attn_logit_softcapping", 50.0},
                                                  {"final_logit_softcapping", 30.0},
                                                  {"attention_multiplier", 0.0078125},
                                                  {"residual_multiplier", 0.22},
                                                  {"logits_scaling", 8.0},
                                                  {"num_local_experts", 8},
                                                  {"use_qk_norm", true},
                                                  {"rotary_pct", 0.25},
                                                  {"no_rope_layers", {1, 0}}};
  for (const auto& [name, value] : changes) {
    EXPECT_THAT(Error(With(Llama(), name, value)), HasSubstr(std::string("config.json: ") + name + " is "))
        << name;
    EXPECT_EQ(Error(With(Llama(), name, nullptr)), "") << name;
  }
  const std::pair<const char*, json> neutral[] = {{"dual_chunk_attention_config", json::object()},
                                                  {"use_mrope", false},
                                                  {"residual_multiplier", 1},
                                                  {"num_experts", 0},
                                                  {"no_rope_layers", json::array()}};
  for (const auto& [name, value] : neutral) EXPECT_EQ(Error(With(Llama(), name, value)), "") << name;
  const json sections = {{"rope_type", "default"}, {"mrope_section", {16, 24, 24}}};
  EXPECT_THAT(Error(With(Llama(), "rope_scaling", sections)), HasSubstr("mrope_section"));
}

TEST(ModelConfig, RefusesCodeThatACheckpointBrings) {
  json own = With(Llama(), "auto_map", {{"AutoModelForCausalLM", "modeling_new.NewForCausalLM"}});
  EXPECT_THAT(Error(own), AllOf(HasSubstr("auto_map.AutoModelForCausalLM is \"modeling_new.NewForCausalLM\""),
                                HasSubstr("LlamaForCausalLM")));
  own.erase("architectures");
  EXPECT_THAT(Error(own), HasSubstr("auto_map")) << "model_type says llama, the code says otherwise";
  own["auto_map"] = {{"AutoModelForCausalLM", "someone/copy--modeling_llama.LlamaForCausalLM"}};
  EXPECT_EQ(Error(own), "");
}

TEST(ModelConfig, NamesTheQuantizationItDoesNotSupport) {
  const auto error = [](const json& quantization) {
    return Error(With(Llama(), "quantization_config", quantization));
  };
  EXPECT_THAT(error({{"quant_method", "bitsandbytes"}}),
              AllOf(HasSubstr("quantization_config.quant_method is"), HasSubstr("bitsandbytes"),
                    HasSubstr("\"fp8\" or \"awq\" or \"gptq\"")));
  EXPECT_THAT(error(json::array()), HasSubstr("quantization_config is"));
  EXPECT_THAT(error({{"quant_method", "awq"}}), HasSubstr("quantization_config.bits is missing, want 4"));
  EXPECT_THAT(error({{"quant_method", "awq"}, {"bits", 4}, {"version", "gemv"}}),
              HasSubstr("quantization_config.version is"));
  EXPECT_THAT(error({{"quant_method", "awq"}, {"bits", 4}, {"zero_point", false}}), HasSubstr("zero_point"));
  EXPECT_THAT(error({{"quant_method", "gptq"}, {"bits", 3}}), HasSubstr("bits is 3"));
  EXPECT_THAT(error({{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 0}}), HasSubstr("group_size"));
  EXPECT_THAT(error({{"quant_method", "gptq"}, {"bits", 4}, {"checkpoint_format", "marlin"}}),
              HasSubstr("checkpoint_format"));
  EXPECT_THAT(error({{"quant_method", "gptq"}, {"bits", 4}, {"dynamic", {{"x", 1}}}}), HasSubstr("dynamic"));
  EXPECT_THAT(error({{"quant_method", "fp8"}, {"fmt", "e5m2"}}), HasSubstr("fmt is"));
  EXPECT_THAT(error({{"quant_method", "fp8"}, {"weight_block_size", {128}}}), HasSubstr("weight_block_size"));
  EXPECT_THAT(Error(With(Llama(), "compression_config", {{"format", "pack-quantized"}})),
              HasSubstr("compression_config"));
}

// What llm-compressor writes for FP8 with a scale per channel.
json Compressed() {
  return json::parse(R"({
    "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
    "quantization_status": "compressed", "kv_cache_scheme": null, "sparsity_config": {}, "transform_config": {},
    "config_groups": {"group_0": {"targets": ["Linear"], "format": "float-quantized",
      "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true, "dynamic": false},
      "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": true}}}})");
}

TEST(ModelConfig, ReadsFp8OfCompressedTensors) {
  const auto read = [](const json& quantization) {
    return Read(With(Llama(), "quantization_config", quantization)).quantization;
  };
  EXPECT_EQ(read(Compressed()).method, QuantizationMethod::kFp8);
  EXPECT_EQ(read(Compressed()).block_rows, 0);
  EXPECT_TRUE(read(Compressed()).fp8_inputs);
  for (const json& inputs :
       {json(nullptr), json{{"num_bits", 8}, {"type", "int"}}, json{{"num_bits", 16}, {"type", "float"}}}) {
    json of_weights = Compressed();
    of_weights["config_groups"]["group_0"]["input_activations"] = inputs;
    EXPECT_FALSE(read(of_weights).fp8_inputs) << inputs;
    // One group of two that is not.
    of_weights["config_groups"]["group_1"] = Compressed()["config_groups"]["group_0"];
    EXPECT_FALSE(read(of_weights).fp8_inputs) << inputs;
  }
  json block = Compressed();
  json& weights = block["config_groups"]["group_0"]["weights"];
  weights["strategy"] = "block";
  weights["block_structure"] = {128, 64};
  EXPECT_EQ(read(block).block_rows, 128);
  EXPECT_EQ(read(block).block_cols, 64);
  json named = Compressed();  // as the first FP8 checkpoints of Llama 3.1 are
  named["format"] = "naive-quantized";
  EXPECT_EQ(read(named).method, QuantizationMethod::kFp8);
  EXPECT_EQ(Read(With(Llama(), "compression_config", Compressed())).quantization.method,
            QuantizationMethod::kFp8);
}

TEST(ModelConfig, NamesTheCompressedTensorsItDoesNotRead) {
  const auto error = [](const char* pointer, const json& value) {
    json quantization = Compressed();
    quantization[json::json_pointer(pointer)] = value;
    return Error(With(Llama(), "quantization_config", quantization));
  };
  for (const char* format : {"pack-quantized", "int-quantized", "nvfp4-pack-quantized"}) {
    EXPECT_THAT(error("/format", format), HasSubstr(absl::StrCat("quantization_config.format is \"", format,
                                                                 "\", want \"float-quantized\"")));
  }
  const std::string weights = "/config_groups/group_0/weights/";
  EXPECT_THAT(error("/config_groups/group_0/format", "pack-quantized"), HasSubstr("group_0.format is"));
  EXPECT_THAT(error((weights + "num_bits").c_str(), 4),
              HasSubstr("config_groups.group_0.weights.num_bits is 4"));
  EXPECT_THAT(error((weights + "type").c_str(), "int"), HasSubstr("weights.type is \"int\", want \"float\""));
  EXPECT_THAT(error((weights + "strategy").c_str(), "group"), HasSubstr("weights.strategy is \"group\""));
  EXPECT_THAT(error((weights + "strategy").c_str(), "block"),
              HasSubstr("weights.block_structure is missing"));
  EXPECT_THAT(error((weights + "symmetric").c_str(), false), HasSubstr("weights.symmetric is false"));
  EXPECT_THAT(error("/config_groups", json::object()), HasSubstr("a group with weights"));
  EXPECT_THAT(error("/transform_config", {{"config_groups", {1}}}), HasSubstr("transform_config"));
  EXPECT_THAT(error("/sparsity_config", {{"format", "sparse-24-bitmask"}}), HasSubstr("sparse-24-bitmask"));
  json second = Compressed()["config_groups"]["group_0"];
  second["weights"]["strategy"] = "block";
  second["weights"]["block_structure"] = {128, 128};
  EXPECT_THAT(error("/config_groups/group_1", second), HasSubstr("group_1.weights has blocks other than"));
}

TEST(ModelConfig, ReadsFp8OfModelOptInEitherFile) {
  json in_config =
      With(Llama(), "quantization_config", {{"quant_method", "modelopt"}, {"quant_algo", "FP8"}});
  EXPECT_EQ(Read(in_config).quantization.method, QuantizationMethod::kFp8);
  EXPECT_TRUE(Read(in_config).quantization.fp8_inputs);
  in_config["quantization_config"]["quant_algo"] = "NVFP4";
  EXPECT_THAT(Error(in_config), HasSubstr("quantization_config.quant_algo is \"NVFP4\", want \"FP8\""));
  TemporaryDirectory directory;
  directory.Write("config.json", Llama().dump());
  directory.Write(
      "hf_quant_config.json",
      R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}})");
  EXPECT_EQ(ModelConfig::Load(directory.path())->quantization.method, QuantizationMethod::kFp8);
  directory.Write("hf_quant_config.json", R"({"quantization": {"quant_algo": "W4A8_AWQ"}})");
  EXPECT_THAT(std::string(ModelConfig::Load(directory.path()).status().message()),
              AllOf(HasSubstr("hf_quant_config.json: quantization.quant_algo is"), HasSubstr("W4A8_AWQ")));
}

TEST(ModelConfig, RefusesAQuantizationThatStandsInAFileBeside) {
  TemporaryDirectory directory;
  for (const char* file : {"quantize_config.json", "quant_config.json"}) {
    directory.Write("config.json", Llama().dump());
    directory.Write(file, R"({"bits": 4, "group_size": 128})");
    EXPECT_THAT(std::string(ModelConfig::Load(directory.path()).status().message()),
                AllOf(HasSubstr(file), HasSubstr("no quantization_config"), HasSubstr("quant_method")));
    directory.Write("config.json",
                    With(Llama(), "quantization_config", {{"quant_method", "gptq"}, {"bits", 4}}).dump());
    EXPECT_TRUE(ModelConfig::Load(directory.path()).ok()) << "what config.json says counts";
    std::filesystem::remove(directory.File(file));
  }
}

TEST(ModelConfig, NamesWhatADirectoryHoldsInPlaceOfAConfig) {
  TemporaryDirectory directory;
  directory.Write("model-q4_k_m.gguf", "x");
  const absl::Status status = ModelConfig::Load(directory.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("config.json"), HasSubstr("model-q4_k_m.gguf is llama.cpp's format")));
}

TEST(ModelConfig, RefusesNumbersOutOfRange) {
  for (const char* field : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                            "num_key_value_heads", "vocab_size", "head_dim", "max_position_embeddings"}) {
    for (const json& value :
         {json(0), json(-1), json(int64_t{1} << 40), json(UINT64_MAX), json(1.5), json("8")}) {
      EXPECT_THAT(Error(With(Llama(), field, value)), HasSubstr(field)) << value;
    }
  }
  EXPECT_THAT(Error(With(Llama(), "num_key_value_heads", 5)),
              HasSubstr("divisor of num_attention_heads (32)"));
  EXPECT_THAT(Error(With(Llama(), "hidden_size", 4097)), HasSubstr("multiple of num_attention_heads"));
  EXPECT_THAT(Error(With(Llama(), "head_dim", 127)), HasSubstr("even"));
  EXPECT_THAT(Error(With(Llama(), "rope_theta", 0.0)), HasSubstr("rope_theta"));
  EXPECT_THAT(Error(With(Llama(), "rms_norm_eps", -1.0)), HasSubstr("rms_norm_eps"));
  EXPECT_THAT(Error(With(Llama(), "eos_token_id", 128256)), HasSubstr("eos_token_id"));
  EXPECT_THAT(Error(With(Llama(), "bos_token_id", 128256)), HasSubstr("bos_token_id"));
}

TEST(ModelConfig, EveryTruncationOfAConfigIsAnError) {
  const std::string whole = Llama().dump();
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_FALSE(ModelConfig::FromJson(whole.substr(0, bytes), "config.json").ok()) << bytes;
  }
  EXPECT_THAT(std::string(ModelConfig::FromJson("[]", "c").status().message()), HasSubstr("want an object"));
}

TEST(ModelConfig, AddsEosIdsOfTheGenerationConfig) {
  TemporaryDirectory directory;
  EXPECT_EQ(ModelConfig::Load(directory.path()).status().code(), absl::StatusCode::kNotFound);
  directory.Write("config.json", With(Llama(), "eos_token_id", 128009).dump());
  EXPECT_THAT(ModelConfig::Load(directory.path())->eos_ids, ElementsAre(128009));
  directory.Write("generation_config.json", R"({"eos_token_id": [128001, 128009]})");
  EXPECT_THAT(ModelConfig::Load(directory.path())->eos_ids, ElementsAre(128009, 128001));
  directory.Write("generation_config.json", R"({"eos_token_id": "x"})");
  EXPECT_THAT(std::string(ModelConfig::Load(directory.path()).status().message()),
              AllOf(HasSubstr("generation_config.json"), HasSubstr("eos_token_id")));
}

TEST(ModelConfig, ReadsTheDemoModels) {
  for (const char* name : {"base", "chat"}) {
    auto config = ModelConfig::Load(std::string("deploy/demo/") + name);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->layers, 8);
    EXPECT_EQ(config->kv_heads, 4);
    EXPECT_THAT(config->eos_ids, ElementsAre(2));
  }
}

}  // namespace
}  // namespace aludel
