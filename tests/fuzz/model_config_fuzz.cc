// config.json. What is accepted must give finite rope frequencies without trapping.
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "runtime/model/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace aludel;
  auto config = ModelConfig::FromJson(absl::string_view(reinterpret_cast<const char*>(bytes), size), "fuzz");
  if (!config.ok()) return 0;
  if (config->heads % config->kv_heads != 0 || config->head_dim % 2 != 0) std::abort();
  for (const float frequency : MakeRopeFrequencies(*config, config->max_positions).inverse_frequency) {
    if (!std::isfinite(frequency)) std::abort();
  }
  return 0;
}
