// The files of a LoRA adapter, over a tiny model: adapter_config.json up to the first newline, and
// adapter_model.safetensors behind it. Every number that an accepted adapter updates is computed, and the adapter is
// loaded beside its base, which takes and refuses the same files.
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "kernels/check.h"
#include "kernels/open_device.h"
#include "runtime/model/adapters/lora_weights.h"
#include "runtime/model/weights/stored_matrix.h"
#include "runtime/model/weights/weights.h"
#include "tests/fuzz/scratch_directory.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace aludel;
  constexpr char kBase[] = "tests/runtime/model/golden/tiny/llama_sharded";
  static const ScratchDirectory directory;
  static const ModelConfig config = ModelConfig::Load(kBase).value();
  const absl::string_view input(reinterpret_cast<const char*>(bytes), size);
  const size_t newline = input.find('\n');
  directory.Write("adapter_config.json", input.substr(0, newline));
  directory.Write("adapter_model.safetensors",
                  newline == absl::string_view::npos ? "" : input.substr(newline + 1));
  const auto files = ModelFiles::Open({kBase, directory.path()});
  // An activated adapter is taken beside its base alone.
  const bool activated = absl::StrContains(files.status().message(), "cannot be merged");
  const bool merges = files.ok() && CheckWeights(*files, config).ok();
  static const std::unique_ptr<Device> device = OpenDevice({.name = "cpu", .threads = 1}).value();
  const auto beside = LoraWeights::Load(device.get(), directory.path(), {kBase, "hash", config, DType::kF32});
  ALUDEL_CHECK(activated || beside.ok() == merges);
  if (!merges) return 0;
  const auto matrix = StoredMatrix::Open(*files, config.quantization, "model.layers.0.self_attn.q_proj",
                                         config.q_dim(), config.hidden);
  std::vector<float> values(static_cast<size_t>(config.q_dim() * config.hidden));
  (*matrix)->Read(0, config.q_dim(), values.data());
  return 0;
}
