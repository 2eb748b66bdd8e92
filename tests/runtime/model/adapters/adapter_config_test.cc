#include "runtime/model/adapters/adapter_config.h"

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kQ0[] = "model.layers.0.self_attn.q_proj";
constexpr char kQ1[] = "model.layers.1.self_attn.q_proj";
constexpr char kDown1[] = "model.layers.1.mlp.down_proj";
constexpr char kDown11[] = "model.layers.11.mlp.down_proj";

// An adapter with these fields beside the least that there must be.
absl::StatusOr<AdapterConfig> Parse(const std::string& fields) {
  return AdapterConfig::FromJson(absl::StrCat(R"({"peft_type": "LORA", "task_type": "CAUSAL_LM")",
                                              fields.empty() ? "" : ", ", fields, "}"),
                                 "a.json");
}

std::string ErrorOf(const std::string& fields) { return std::string(Parse(fields).status().message()); }

std::vector<std::string> Targeted(const std::string& fields) {
  const AdapterConfig config = Parse(fields).value();
  std::vector<std::string> modules;
  for (const char* module : {kQ0, kQ1, kDown1, kDown11, "lm_head", "model.embed_tokens"}) {
    if (config.Targets(module).value()) modules.push_back(module);
  }
  return modules;
}

using Modules = std::vector<std::string>;

TEST(AdapterConfig, NamesMatchWholeComponentsAtTheEnd) {
  EXPECT_EQ(Targeted(R"("target_modules": ["q_proj"])"), (Modules{kQ0, kQ1}));
  EXPECT_EQ(Targeted(R"("target_modules": ["proj", "_proj", "elf_attn.q_proj"])"), Modules());
  EXPECT_EQ(Targeted(R"("target_modules": ["self_attn.q_proj"])"), (Modules{kQ0, kQ1}));
  EXPECT_EQ(Targeted(R"("target_modules": ["1.mlp.down_proj"])"), (Modules{kDown1}));
  EXPECT_EQ(Targeted(R"("target_modules": ["lm_head", "model.layers.0.self_attn.q_proj"])"),
            (Modules{kQ0, "lm_head"}));
}

TEST(AdapterConfig, AllLinearIsEveryLayersMatrices) {
  EXPECT_EQ(Targeted(R"("target_modules": "all-linear")"), (Modules{kQ0, kQ1, kDown1, kDown11}));
}

TEST(AdapterConfig, APatternMatchesTheWholeName) {
  EXPECT_EQ(Targeted(R"("target_modules": ".*\\.(q_proj|v_proj)$")"), (Modules{kQ0, kQ1}));
  EXPECT_EQ(Targeted(R"("target_modules": "model\\.layers\\.1\\..*")"), (Modules{kQ1, kDown1}));
  EXPECT_EQ(Targeted(R"("target_modules": "q_proj")"), Modules());
  EXPECT_EQ(Targeted(R"("target_modules": "(?!lm_head|.*mlp|.*embed).*")"), (Modules{kQ0, kQ1}));
}

TEST(AdapterConfig, LayersAndExclusionsNarrowTheTargets) {
  EXPECT_EQ(Targeted(R"("target_modules": ["q_proj", "lm_head"], "layers_to_transform": [1, 11])"),
            (Modules{kQ1}));
  EXPECT_EQ(
      Targeted(R"("target_modules": ["down_proj"], "layers_to_transform": 11, "layers_pattern": "layers")"),
      (Modules{kDown11}));
  EXPECT_EQ(Targeted(R"("target_modules": "all-linear", "exclude_modules": ["down_proj"])"),
            (Modules{kQ0, kQ1}));
  EXPECT_EQ(Targeted(R"("target_modules": "all-linear", "exclude_modules": ".*\\.1\\..*")"),
            (Modules{kQ0, kDown11}));
}

TEST(AdapterConfig, ScaleIsAlphaOverRankOrItsRoot) {
  const std::string targets = R"("target_modules": "all-linear")";
  EXPECT_EQ(Parse(targets)->ShapeOf(kQ0)->rank, 8);
  EXPECT_EQ(Parse(targets)->ShapeOf(kQ0)->scale, 1.0f);
  EXPECT_EQ(Parse(targets + R"(, "r": 16, "lora_alpha": 8)")->ShapeOf(kQ0)->scale, 0.5f);
  EXPECT_EQ(Parse(targets + R"(, "r": 16, "lora_alpha": 8, "use_rslora": true)")->ShapeOf(kQ0)->scale, 2.0f);
}

TEST(AdapterConfig, PatternsOverrideRankAndAlpha) {
  const AdapterConfig config = Parse(R"("target_modules": "all-linear", "r": 4, "lora_alpha": 8,
    "rank_pattern": {"down_proj": 16, "model.layers.0.self_attn.q_proj": 2},
    "alpha_pattern": {"layers\\.1\\..*": 32})")
                                   .value();
  EXPECT_EQ(config.ShapeOf(kQ0)->rank, 2);
  EXPECT_EQ(config.ShapeOf(kQ0)->scale, 4.0f);
  EXPECT_EQ(config.ShapeOf(kQ1)->rank, 4);
  EXPECT_EQ(config.ShapeOf(kQ1)->scale, 8.0f);
  EXPECT_EQ(config.ShapeOf(kDown1)->scale, 2.0f);
  EXPECT_EQ(config.ShapeOf(kDown11)->scale, 0.5f);
}

TEST(AdapterConfig, PatternsThatDisagreeAreAnError) {
  const AdapterConfig config =
      Parse(R"("target_modules": "all-linear", "rank_pattern": {"down_proj": 16, "mlp.down_proj": 4})")
          .value();
  EXPECT_THAT(std::string(config.ShapeOf(kDown1).status().message()),
              AllOf(HasSubstr("a.json"), HasSubstr("down_proj"), HasSubstr("two values")));
}

TEST(AdapterConfig, RefusesWhatWouldChangeTheNumbers) {
  const std::map<std::string, std::string> wants = {
      {R"("use_dora": true)", "use_dora is true, want nothing: DoRA"},
      {R"("lora_bias": true)", "lora_bias is true"},
      {R"("bias": "all")", "bias is \"all\", want \"none\""},
      {R"("fan_in_fan_out": true)", "fan_in_fan_out is true"},
      {R"("modules_to_save": ["lm_head"])", "modules_to_save is"},
      {R"("trainable_token_indices": [1])", "trainable_token_indices is"},
      {R"("alora_invocation_tokens": "<go>")", "alora_invocation_tokens is"},
      {R"("alora_invocation_tokens": [1, -1])", "alora_invocation_tokens holds"},
      {R"("layer_replication": [[0, 4]])", "layer_replication is"},
      {R"("target_parameters": ["x"])", "target_parameters is"},
      {R"("init_lora_weights": "pissa_niter_4")", "init_lora_weights is \"pissa_niter_4\""},
      {R"("init_lora_weights": "olora")", "init_lora_weights is \"olora\""},
      {R"("use_future": true)", "use_future is true, want nothing: this field is not known"},
      {R"("task_type": "SEQ_CLS")", "task_type is \"SEQ_CLS\""},
  };
  for (const auto& [field, want] : wants) {
    const std::string json =
        absl::StrCat(R"({"peft_type": "LORA", "target_modules": ["q_proj"], )", field, "}");
    EXPECT_THAT(std::string(AdapterConfig::FromJson(json, "a.json").status().message()),
                AllOf(HasSubstr("a.json: "), HasSubstr(want)))
        << field;
  }
  EXPECT_THAT(std::string(AdapterConfig::FromJson(R"({"peft_type": "IA3"})", "a.json").status().message()),
              HasSubstr("peft_type is \"IA3\", want \"LORA\""));
}

TEST(AdapterConfig, IgnoresWhatChangesNone) {
  EXPECT_TRUE(Parse(R"("target_modules": ["q_proj"], "lora_dropout": 0.1, "inference_mode": false,
    "peft_version": "0.19.1", "megatron_core": "megatron.core", "revision": "main", "use_dora": false,
    "modules_to_save": null, "use_future": false, "eva_config": null, "loftq_config": {}, "init_lora_weights": "eva")")
                  .ok());
}

TEST(AdapterConfig, NamesMalformedFields) {
  const std::map<std::string, std::string> wants = {
      {R"("r": 4)", "target_modules is missing"},
      {R"("target_modules": [])", "target_modules is"},
      {R"("target_modules": ["q_proj", 3])", "target_modules holds 3, want names"},
      {R"("target_modules": "(q_proj")", "target_modules: regular expression \"(q_proj\""},
      {R"("target_modules": ["q_proj"], "r": 0)", "r is"},
      {R"("target_modules": ["q_proj"], "r": 1e300)", "r is"},
      {R"("target_modules": ["q_proj"], "lora_alpha": "8")", "lora_alpha is"},
      {R"("target_modules": ["q_proj"], "rank_pattern": {"q_proj": -1})", "rank_pattern: q_proj is"},
      {R"("target_modules": ["q_proj"], "rank_pattern": {"(": 1})", "rank_pattern: regular expression"},
      {R"("target_modules": ["q_proj"], "layers_to_transform": [-1])", "layers_to_transform is"},
      {R"("target_modules": "all-linear", "layers_to_transform": [1])", "layers_to_transform is"},
      {R"("target_modules": ["q_proj"], "layers_to_transform": [1], "layers_pattern": "h")",
       "layers_pattern is"},
  };
  for (const auto& [fields, want] : wants) {
    EXPECT_THAT(ErrorOf(fields), AllOf(HasSubstr("a.json"), HasSubstr(want))) << fields;
  }
}

TEST(AdapterConfig, APatternThatHangsIsAnError) {
  const AdapterConfig config = Parse(R"("target_modules": "(?:(?:(?:[a-z0-9._]+)+)+)+[XY]")").value();
  EXPECT_TRUE(absl::IsResourceExhausted(config.Targets(kQ0).status()));
}

std::string Repeated(const char* text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(AdapterConfig, HostilePatternsCostLittle) {
  // Groups widen what each step of a match keeps.
  EXPECT_THAT(ErrorOf(absl::StrCat(R"("target_modules": ")", Repeated("()", 7000), R"(.*")")),
              HasSubstr("regular expression of 14002 bytes"));
  EXPECT_THAT(ErrorOf(R"("target_modules": "(?:[a]{2}[^b]){60000}")"), HasSubstr("target_modules"));
  const auto config = Parse(absl::StrCat(R"("target_modules": ")", Repeated("()", 1900), R"((.*.*)*o")"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->Targets(kQ0).status().code(), absl::StatusCode::kResourceExhausted);
  std::string ranks;
  for (int i = 0; i < 257; ++i) absl::StrAppend(&ranks, i == 0 ? "" : ", ", "\"m", i, "\": 4");
  EXPECT_THAT(ErrorOf(absl::StrCat(R"("rank_pattern": {)", ranks, "}")), HasSubstr("at most 256"));
}

}  // namespace
}  // namespace aludel
