#include "runtime/model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  EXPECT_EQ(qwen3.head_dim, 64) << "head_dim need not be hidden / heads";
  json by_type = Llama();
  by_type.erase("architectures");
  EXPECT_EQ(Read(by_type).architecture, "LlamaForCausalLM");
}

TEST(ModelConfig, ReadsSlidingWindowsAsTheirArchitectureMeansThem) {
  EXPECT_EQ(Read(With(Architecture("MistralForCausalLM"), "sliding_window", 4096)).sliding_window, 4096);
  EXPECT_EQ(Read(With(Architecture("MistralForCausalLM"), "sliding_window", nullptr)).sliding_window, 0);
  json qwen = With(Architecture("Qwen2ForCausalLM"), "sliding_window", 1024);
  EXPECT_EQ(Read(qwen).sliding_window, 0) << "use_sliding_window is false by default";
  qwen["use_sliding_window"] = true;
  qwen["max_window_layers"] = 32;
  EXPECT_EQ(Read(qwen).sliding_window, 0) << "the window starts after the last layer";
  qwen["max_window_layers"] = 0;
  EXPECT_EQ(Read(qwen).sliding_window, 1024);
  qwen["max_window_layers"] = 16;
  EXPECT_THAT(Error(qwen), AllOf(HasSubstr("max_window_layers is 16"), HasSubstr("32")));
  qwen["layer_types"] = std::vector<std::string>(32, "full_attention");
  EXPECT_EQ(Read(qwen).sliding_window, 0);
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
}

TEST(ModelConfig, ReadsRopeParametersOfTransformers5) {
  json config = Llama();
  config.erase("rope_theta");
  config["rope_parameters"] = {{"rope_type", "linear"}, {"rope_theta", 250000.0}, {"factor", 2.0}};
  const ModelConfig read = Read(config);
  EXPECT_EQ(read.rope.theta, 250000.0);
  EXPECT_EQ(read.rope.factor, 2.0);
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
  EXPECT_THAT(error({{"type", "yarn"}, {"factor", 2}, {"truncate", false}}), HasSubstr("truncate"));
  EXPECT_THAT(error("linear"), HasSubstr("want an object"));
}

TEST(ModelConfig, NamesWhatItDoesNotSupport) {
  EXPECT_THAT(Error(Architecture("MambaForCausalLM")),
              AllOf(HasSubstr("MambaForCausalLM"), HasSubstr("Qwen3ForCausalLM")));
  EXPECT_THAT(Error(With(Llama(), "hidden_act", "gelu")), AllOf(HasSubstr("hidden_act"), HasSubstr("silu")));
  EXPECT_THAT(Error(With(Llama(), "attention_bias", true)), HasSubstr("attention_bias is true, want false"));
  EXPECT_THAT(Error(With(Llama(), "mlp_bias", true)), HasSubstr("mlp_bias"));
  EXPECT_THAT(Error(With(Llama(), "partial_rotary_factor", 0.5)), HasSubstr("partial_rotary_factor"));
}

TEST(ModelConfig, NamesTheQuantisationItDoesNotSupport) {
  const auto error = [](const json& quantisation) {
    return Error(With(Llama(), "quantization_config", quantisation));
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
  for (const char* name : {"base", "chat", "json"}) {
    auto config = ModelConfig::Load(std::string("deploy/demo/") + name);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->layers, 8);
    EXPECT_EQ(config->kv_heads, 4);
    EXPECT_THAT(config->eos_ids, ElementsAre(2));
  }
}

}  // namespace
}  // namespace aludel
