#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/model/model_config.h"
#include "runtime/model/weights/safetensors.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {

// Writes a LoRA adapter of rank 1 that adds `value` to every weight of q in the first layer of a model.
inline void WriteAdapter(const TemporaryDirectory& directory, const std::string& base, float value) {
  const ModelConfig config = ModelConfig::Load(base).value();
  const std::vector<float> a(static_cast<size_t>(config.hidden), value);
  const std::vector<float> b(static_cast<size_t>(config.q_dim()), 1);
  const std::string module = "base_model.model.model.layers.0.self_attn.q_proj.";
  const auto bytes = [](const std::vector<float>& values) {
    return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(values.data()),
                               values.size() * sizeof(float));
  };
  ASSERT_TRUE(WriteSafetensors(directory.File("adapter_model.safetensors"),
                               {{module + "lora_A.weight", "F32", {1, config.hidden}, bytes(a)},
                                {module + "lora_B.weight", "F32", {config.q_dim(), 1}, bytes(b)}},
                               {})
                  .ok());
  directory.Write("adapter_config.json",
                  R"({"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["q_proj"],
                      "layers_to_transform": [0]})");
}

}  // namespace aludel
