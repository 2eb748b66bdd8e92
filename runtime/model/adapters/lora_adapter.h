#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/model/adapters/adapter_config.h"
#include "runtime/model/weights/safetensors.h"

namespace aludel {

// The update of one weight W [outputs, inputs]: W + scale * B A. Both tensors are plain (F32, BF16 or F16).
struct LoraUpdate {
  const SafetensorsEntry* a = nullptr;  // [rank, inputs]
  const SafetensorsEntry* b = nullptr;  // [outputs, rank]
  float scale = 0;
};

// A LoRA adapter in PEFT's layout: adapter_config.json and adapter_model.safetensors. Thread-compatible.
class LoraAdapter {
 public:
  // adapter_model.safetensors of a directory. NotFound says what lies there in its place.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> OpenFile(const std::string& directory);
  // Reads the config; `file` is what OpenFile gave, and must outlive the adapter. Errors name the file and
  // the field.
  static absl::StatusOr<std::unique_ptr<LoraAdapter>> Open(const std::string& directory,
                                                           const SafetensorsFile* file);

  const std::string& directory() const { return directory_; }
  const AdapterConfig& config() const { return config_; }
  // adapter_config.json as it is: a part of the model's identity.
  const std::string& config_text() const { return config_text_; }
  const SafetensorsFile& file() const { return *file_; }

  // The update of `module`'s weight [outputs, inputs]; none where the adapter leaves that as it is. A tensor
  // that is missing or has another shape or type is an error.
  absl::StatusOr<std::optional<LoraUpdate>> Find(const std::string& module, int64_t outputs,
                                                 int64_t inputs) const;

  // After every weight of a model was asked for: an error where a tensor is not among those `used`, which
  // would be left out in silence, or where there are none.
  absl::Status CheckStrays(const std::set<const SafetensorsEntry*>& used, const std::string& base) const;

 private:
  LoraAdapter(std::string directory, const SafetensorsFile* file, std::string config_text,
              AdapterConfig config)
      : directory_(std::move(directory)),
        file_(file),
        config_text_(std::move(config_text)),
        config_(std::move(config)) {}

  const std::string directory_;
  const SafetensorsFile* const file_;
  const std::string config_text_;
  const AdapterConfig config_;
};

}  // namespace aludel
