#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "runtime/model/weights/safetensors.h"

namespace aludel {

// Writes a model's first `layers` layers, with its tokenizer: what a device takes a fraction of the time for. Its answers mean
// nothing, but are the same wherever it runs.
inline void WriteFirstLayers(const std::string& model, int layers, const std::string& directory) {
  namespace fs = std::filesystem;
  const auto files = ModelFiles::Open(model);
  ASSERT_TRUE(files.ok()) << files.status();
  std::vector<SafetensorsTensor> tensors;  // by name, so that the final norm is the last
  for (const auto& [name, entry] : files->entries()) {
    absl::string_view rest = name;
    int layer = 0;
    if (absl::ConsumePrefix(&rest, "model.layers.") &&
        absl::SimpleAtoi(rest.substr(0, rest.find('.')), &layer) && layer >= layers) {
      continue;
    }
    tensors.push_back({name, entry->dtype, entry->shape, entry->data});
  }
  ASSERT_TRUE(WriteSafetensors(directory + "/model.safetensors", tensors, {}).ok());
  nlohmann::ordered_json config;
  std::ifstream(model + "/config.json") >> config;
  config["num_hidden_layers"] = std::min(layers, config["num_hidden_layers"].get<int>());
  std::ofstream(directory + "/config.json") << config.dump(1) << "\n";
  for (const auto& file : fs::directory_iterator(model)) {
    const std::string name = file.path().filename().string();
    if (absl::StartsWith(name, "tokenizer")) fs::copy_file(file.path(), fs::path(directory) / name);
  }
}

}  // namespace aludel
