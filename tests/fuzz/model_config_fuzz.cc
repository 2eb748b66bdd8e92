// config.json, and generation_config.json: the part after the first newline, if there is one. What is
// accepted must give finite rope frequencies without trapping, and ids of the vocabulary.
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "runtime/model/model_config.h"
#include "runtime/text/generation_config.h"
#include "tests/fuzz/scratch_directory.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace aludel;
  static const ScratchDirectory directory;
  const absl::string_view input(reinterpret_cast<const char*>(bytes), size);
  const size_t newline = input.find('\n');
  directory.Write("config.json", input.substr(0, newline));
  if (newline == absl::string_view::npos) {
    directory.Remove("generation_config.json");
  } else {
    directory.Write("generation_config.json", input.substr(newline + 1));
  }
  if (const auto defaults = GenerationConfig::Load(directory.path()); defaults.ok()) {
    if (!std::isfinite(defaults->temperature.value_or(1))) std::abort();
    defaults->Describe();
  }
  const auto config = ModelConfig::Load(directory.path());
  if (!config.ok()) return 0;
  if (config->heads % config->kv_heads != 0 || config->head_dim % 2 != 0) std::abort();
  for (const int id : config->eos_ids) {
    if (id < 0 || id >= config->vocab) std::abort();
  }
  const RopeFrequencies rope = MakeRopeFrequencies(*config, config->max_positions);
  if (!std::isfinite(rope.attention_factor)) std::abort();
  for (const float frequency : rope.inverse_frequency) {
    if (!std::isfinite(frequency)) std::abort();
  }
  return 0;
}
